"""A hundred JSON schemas of the kinds that people write, for measuring that answers keep to them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

Schema = dict[str, Any]

COUNT = 100

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}


def schema_set() -> list[Schema]:
    """The schemas, always the same."""
    return list(islice(_all(), COUNT))


def _all() -> Iterator[Schema]:
    yield from _values()
    yield from _strings()
    yield from _numbers()
    yield from _choices()
    yield from _arrays()
    yield from _objects()
    yield from _references()
    yield from _records()


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted, **more}


def _array(items: Any, least: int | None = None, most: int | None = None) -> Schema:
    bounds = {"minItems": least, "maxItems": most}
    return {"type": "array", "items": items, **{name: count for name, count in bounds.items() if count is not None}}


def _values() -> Iterator[Schema]:
    yield {}
    for kind in ("object", "array", "string", "number", "integer", "boolean", "null"):
        yield {"type": kind}
    yield {"type": ["string", "null"]}
    yield {"type": ["integer", "boolean"], "title": "a number or a flag", "default": 1}


def _strings() -> Iterator[Schema]:
    for least, most in ((0, 0), (1, 1), (3, 5), (12, 12), (0, 20), (40, 60)):
        yield {"type": "string", "minLength": least, "maxLength": most}
    yield {"type": "string", "minLength": 8}
    for form in ("date", "time", "date-time", "uuid", "ipv4"):
        yield {"type": "string", "format": form}


def _numbers() -> Iterator[Schema]:
    for least, most in ((0, 0), (0, 9), (-5, 5), (18, 120), (1, 65535), (-1000, -10), (999, 1001), (0, 10**12)):
        yield {"type": "integer", "minimum": least, "maximum": most}
    yield {"type": "integer", "exclusiveMinimum": 0}
    yield {"type": "integer", "exclusiveMaximum": -7.5}
    yield {"type": "number", "minimum": 0, "maximum": 1}
    yield {"type": "number", "exclusiveMinimum": -2, "exclusiveMaximum": 2}
    yield {"type": "number", "minimum": -40.5, "maximum": 60}
    yield {"type": "number", "minimum": 100}


def _choices() -> Iterator[Schema]:
    yield {"const": "done"}
    yield {"const": {"ok": True, "list": [1, "two", None]}}
    yield {"enum": ["red", "green", "blue"]}
    yield {"enum": ["a", "ab", "abc", 1, 10, 100, None, True, 1.5]}
    yield {"enum": ["größe", "naïve", "日本", "😀", 'quote " and \\', "line\nbreak", "tab\t"]}
    yield {"enum": [f"item-{number:03}" for number in range(200)]}
    yield {"type": "integer", "enum": [1, 2, "3", 4.0]}
    yield {"anyOf": [_STRING, _INTEGER, {"type": "null"}]}
    yield {"anyOf": [_object({"a": _INTEGER}), _object({"b": _STRING})]}
    yield {"oneOf": [_STRING, _array(_INTEGER, 1, 3), {"type": "null"}]}
    yield {"oneOf": [_object({"kind": {"const": kind}, "value": _INTEGER}) for kind in ("cat", "dog", "fish")]}
    yield {"allOf": [_object({"only": _FLAG})], "description": "one part"}


def _arrays() -> Iterator[Schema]:
    for least, most in ((0, 0), (1, 1), (2, 4), (5, None), (0, 3)):
        yield _array(_INTEGER, least, most)
    yield _array(_STRING, 3, 3)
    yield _array(_array(_array({"enum": [0, 1]}, 2, 2), 2, 2), 2, 2)
    yield {"type": "array", "prefixItems": [_STRING, _INTEGER, _FLAG], "items": False, "minItems": 3}
    yield {"type": "array", "prefixItems": [_STRING, _INTEGER], "items": _NUMBER, "minItems": 1, "maxItems": 4}
    yield {"type": "array", "prefixItems": [{"const": "point"}, _NUMBER, _NUMBER], "minItems": 3}
    yield _array(True, 2)


def _objects() -> Iterator[Schema]:
    yield _object({}, additionalProperties=False)
    yield _object({"name": _STRING, "age": {"type": "integer", "minimum": 0, "maximum": 120}})
    yield _object({"a": _INTEGER, "b": _INTEGER, "c": _INTEGER}, [])
    yield _object({"a": _FLAG, "b": _FLAG, "c": _FLAG, "d": _FLAG}, ["b", "d"])
    yield _object({"first": _STRING, "last": _STRING}, ["last"], additionalProperties=_INTEGER)
    yield {"type": "object", "additionalProperties": _FLAG}
    yield {"type": "object", "additionalProperties": _STRING, "maxProperties": 2}
    yield _object(
        {"größe": _NUMBER, "名前": _STRING, "😀": _FLAG, 'a "quoted" key': {"type": "null"}, "tab\tkey": _INTEGER}
    )
    yield _object({"known": _STRING}, ["known", "undescribed"])
    yield _object({"empty": {"type": "string", "maxLength": 0}, "": _INTEGER})
    yield _object({f"field{number}": _INTEGER for number in range(40)}, ["field7", "field30"])
    yield _object({"outer": _object({"middle": _object({"inner": _object({"value": _FLAG})})})})
    yield _object({"meta": {"type": "object"}, "data": {}})


def _references() -> Iterator[Schema]:
    point = _object({"x": _NUMBER, "y": _NUMBER})
    yield {**_array({"$ref": "#/$defs/point"}, 2, 5), "$defs": {"point": point}}
    yield {
        **_object({"from": {"$ref": "#/definitions/p"}, "to": {"$ref": "#/definitions/p"}}),
        "definitions": {"p": point},
    }
    yield _object({"value": _INTEGER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
    tree = _object({"name": {"type": "string", "maxLength": 8}, "children": _array({"$ref": "#/$defs/tree"}, 0, 3)})
    yield {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    either = {"anyOf": [_object({"op": {"enum": ["+", "-"]}, "of": _array({"$ref": "#/$defs/e"}, 2, 2)}), _INTEGER]}
    yield {"$ref": "#/$defs/e", "$defs": {"e": either}}
    yield {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"$ref": "#/$defs/c%"}, "c%": {"enum": ["by a chain"]}}}


def _records() -> Iterator[Schema]:
    """Records as applications ask for them, of growing size."""
    person = {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "born": {"type": "string", "format": "date"},
        "email": {"type": ["string", "null"], "maxLength": 60},
        "tags": _array({"enum": ["new", "paid", "vip"]}, 0, 3),
        "score": {"type": "number", "minimum": 0, "maximum": 100},
        "active": _FLAG,
        "id": {"type": "string", "format": "uuid"},
        "note": {"type": "string", "maxLength": 200, "description": "free text"},
    }
    names = list(person)
    for count in range(1, len(names) + 1):
        some = {name: person[name] for name in names[:count]}
        yield _object(some)
        yield _array(_object(some, names[: count // 2]), 1, 2)
    for count in range(1, 40):
        yield _object({"kind": {"const": f"record {count}"}, "values": _array(_INTEGER, count % 5, count % 5 + 2)})
