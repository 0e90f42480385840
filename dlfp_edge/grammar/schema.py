"""A JSON schema as a grammar whose every text is JSON that validates against it.

A keyword that the grammar does not enforce is refused, with its place; one that says nothing about the types allowed is
kept by itself. The grammar may be narrower than the schema: properties come in the schema's order, only listed ones
where there are any and the schema does not ask for more, numbers have at most 15 digits, strings and arrays without an
upper bound may still be bounded by the length of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from dlfp_edge.errors import UsageError, hint

from .json_rules import COMMON, FORMATS
from .json_values import apart, equal, is_type, shape, written
from .literals import any_but, literal, one_of, plain_key
from .matcher import compile_grammar
from .numbers import LARGEST, decimals, integers
from .schema_input import checked, shown, under

MOST_PROPERTIES = 200
MOST_NAMES = 4_000
"""Characters in the names of properties beside which others are allowed."""

MOST_OPTIONS = 100
MOST_REFERENCES = 20
MOST_COUNT = 2_000
"""Upper bounds of lengths beyond this are taken as this."""

_ANNOTATIONS = frozenset(
    [
        *("$comment", "$defs", "$schema", "default", "definitions", "deprecated", "description", "discriminator"),
        *("examples", "readOnly", "title", "writeOnly"),
    ]
)
_BY_TYPE = {
    "null": (),
    "boolean": (),
    "integer": (),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "string": ("minLength", "maxLength", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
}
_TYPE_OF = {keyword: kind for kind, keywords in _BY_TYPE.items() for keyword in keywords}
_COMBINED = ("anyOf", "oneOf", "allOf")


def schema_grammar(schema: dict[str, Any] | bool | str) -> str:
    """The grammar (GBNF) of a schema given as a dictionary or as JSON text.

    Raises UsageError with one line that names the keyword at fault and its place.
    """
    text = _Converter(checked(schema)).grammar()
    try:
        compile_grammar(text)
    except UsageError as error:
        raise UsageError(f"json_schema cannot be followed: {error}") from None
    return text


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._waiting: list[tuple[str, Any]] = []

    def grammar(self) -> str:
        """All rules as text."""
        self._rules["root"] = self._at("#", self._schema)
        while self._waiting:
            place, schema = self._waiting.pop()
            self._rules[self._names[place]] = self._body(schema, place)
        everything = {**self._rules, **COMMON}
        return "".join(f"{name} ::= {body}\n" for name, body in everything.items())

    def _at(self, place: str, schema: Any) -> str:
        """The name of the rule for the schema at a place."""
        if place not in self._names:
            self._names[place] = f"s{len(self._names)}"
            self._waiting.append((place, schema))
        return self._names[place]

    def _rule(self, body: str) -> str:
        """The name of a rule that says this, the same for the same."""
        if body not in self._shared:
            name = self._shared[body] = f"r{len(self._shared)}"
            self._rules[name] = body
        return self._shared[body]

    def _body(self, schema: Any, place: str) -> str:
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise UsageError(f"json_schema allows nothing at {place}: it is {shown(schema)}")
        said = [key for key in schema if key not in _ANNOTATIONS and not (key == "$id" and place == "#")]
        self._refuse_unknown(said, place)
        for keyword in ("$ref", *_COMBINED):
            if keyword in said:
                for other in said:
                    if other != keyword:
                        raise _refused(other, place, f"beside '{keyword}'")
                return self._elsewhere(keyword, schema[keyword], place)
        if "const" in said or "enum" in said:
            return self._values(schema, said, place)
        if not said:
            return "value"
        return " | ".join(self._of_type(kind, schema, place) for kind in self._types(schema, said, place))

    def _refuse_unknown(self, said: Iterable[str], place: str) -> None:
        known = ("type", "enum", "const", "$ref", *_COMBINED, *_TYPE_OF)
        for keyword in said:
            if keyword == "nullable":
                raise UsageError(f"json_schema: 'nullable' at {place} is not JSON Schema: add \"null\" to its type")
            if keyword not in known:
                raise _refused(keyword, place)

    def _elsewhere(self, keyword: str, value: Any, place: str) -> str:
        if keyword == "$ref":
            return self._at(*self._resolved(value, place))
        if not isinstance(value, list) or not value:
            raise UsageError(f"json_schema: '{keyword}' at {place} is {shown(value)}: give a list of schemas")
        if keyword == "allOf" and len(value) > 1:
            raise _refused("allOf", place, "of more than one schema")
        if keyword == "oneOf":
            self._refuse_overlap(value, place)
        parts = [(f"{place}/{keyword}/{index}", option) for index, option in enumerate(value)]
        return " | ".join(self._at(at, option) for at, option in parts)

    def _resolved(self, reference: Any, place: str) -> tuple[str, Any]:
        """The place a local reference names and the schema there; a chain of references is followed to its end."""
        passed = {place}
        while True:
            if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
                raise UsageError(
                    f"json_schema: '$ref' at {place} is {shown(reference)}: only places in the schema itself, "
                    "such as #/$defs/NAME, can be referred to"
                )
            if reference in passed:
                raise UsageError(
                    f"json_schema: '$ref' at {place} leads back to itself: refer to a schema that says more"
                )
            passed.add(reference)
            if len(passed) > MOST_REFERENCES:
                raise UsageError(f"json_schema: '$ref' at {place} leads through more than {MOST_REFERENCES} others")
            schema = self._found(reference, place)
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and set(schema) == {"$ref"}):
                return reference, schema
            reference = schema["$ref"]

    def _found(self, reference: str, place: str) -> Any:
        part = self._schema
        for key in reference.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict) and key in part:
                part = part[key]
            elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            else:
                raise UsageError(f"json_schema: '$ref' at {place} names {reference}, which is not there")
        return part

    def _values(self, schema: dict[str, Any], said: Iterable[str], place: str) -> str:
        for keyword in said:
            if keyword not in ("const", "enum", "type"):
                raise _refused(keyword, place, f"beside '{'const' if 'const' in schema else 'enum'}'")
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            raise UsageError(f"json_schema: 'enum' at {place} is {shown(values)}: give a list of values")
        if "const" in schema:
            values = [value for value in values if equal(value, schema["const"])]
        if "type" in schema:
            types = self._types(schema, ["type"], place)
            values = [value for value in values if any(is_type(value, kind) for kind in types)]
        if not values:
            raise UsageError(
                f"json_schema: no value is left at {place}: its enum, const and type contradict each other"
            )
        return one_of([written(value) for value in values], self._rule)

    def _types(self, schema: dict[str, Any], said: Iterable[str], place: str) -> list[str]:
        """The types the schema names, else those its keywords are about."""
        if "type" not in schema:
            return sorted({_TYPE_OF[keyword] for keyword in said})
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for kind in types:
            if not isinstance(kind, str) or kind not in _BY_TYPE:
                raise UsageError(f"json_schema: 'type' at {place} is {shown(kind)}; {hint(str(kind), _BY_TYPE)}")
        if not types:
            raise UsageError(f"json_schema: 'type' at {place} is empty: name a type")
        return list(dict.fromkeys(types))

    def _of_type(self, kind: str, schema: dict[str, Any], place: str) -> str:
        if kind in ("integer", "number"):
            return self._rule(self._number(kind, schema, place))
        if kind == "string":
            return self._rule(self._string(schema, place))
        if kind == "array":
            return self._array(schema, place)
        return self._object(schema, place) if kind == "object" else kind

    def _number(self, kind: str, schema: dict[str, Any], place: str) -> str:
        bounds = {name: self._bound(schema, name, place) for name in _BY_TYPE["number"] if name in schema}
        if not bounds:
            return kind
        inner, outer = Fraction(-LARGEST), Fraction(LARGEST)
        least, open_least = max(
            (bounds.get("minimum", inner), False), (bounds.get("exclusiveMinimum", inner), "exclusiveMinimum" in bounds)
        )
        most, closed_most = min(
            (bounds.get("maximum", outer), True),
            (bounds.get("exclusiveMaximum", outer), "exclusiveMaximum" not in bounds),
        )
        if kind == "integer":
            first = math.floor(least) + 1 if open_least else math.ceil(least)
            last = math.floor(most) if closed_most else math.ceil(most) - 1
            body = integers(max(first, -LARGEST), min(last, LARGEST))
        else:
            least, most = max(least, inner), min(most, outer)
            body = decimals(least, most, open_least=open_least, open_most=not closed_most)
        if not body:
            raise UsageError(f"json_schema: no whole number fits '{next(iter(bounds))}' at {place}: widen its bounds")
        return body

    def _bound(self, schema: dict[str, Any], name: str, place: str) -> Fraction:
        value = schema[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"json_schema: '{name}' at {place} is {shown(value)}: give a number")
        return Fraction(value)

    def _string(self, schema: dict[str, Any], place: str) -> str:
        least, most = self._counts(schema, "minLength", "maxLength", place)
        if "format" in schema:
            form = schema["format"]
            if not isinstance(form, str) or form not in FORMATS:
                raise _refused("format", place, f"{shown(form)} (only {', '.join(FORMATS)})")
            if least or most is not None:
                raise _refused("minLength" if least else "maxLength", place, "beside 'format'")
            return rf'"\"" {FORMATS[form]} "\""'
        if not least and most is None:
            return "string"
        return rf'"\"" char{_times(least, most)} "\""'

    def _counts(self, schema: dict[str, Any], low: str, high: str, place: str) -> tuple[int, int | None]:
        """How many at least and at most; None where there is no upper bound."""
        counts = []
        for name, default in ((low, 0), (high, None)):
            value = schema.get(name, default)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise UsageError(f"json_schema: '{name}' at {place} is {shown(value)}: give a whole number from 0")
            counts.append(value)
        least, most = counts[0] or 0, counts[1]
        if most is not None and most < least:
            raise UsageError(f"json_schema: '{low}' at {place} is above '{high}': nothing fits")
        if least > MOST_COUNT:
            raise UsageError(f"json_schema: '{low}' at {place} is {least}; the most is {MOST_COUNT}")
        return least, None if most is None else min(most, MOST_COUNT)

    def _array(self, schema: dict[str, Any], place: str) -> str:
        least, most = self._counts(schema, "minItems", "maxItems", place)
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if not isinstance(first, list):
            raise UsageError(f"json_schema: 'prefixItems' at {place} is {shown(first)}: give a list of schemas")
        if isinstance(rest, list):
            raise UsageError(f"json_schema: 'items' at {place} is a list: name it 'prefixItems'")
        if rest is False:
            most = len(first) if most is None else min(most, len(first))
        if schema.get("uniqueItems", False) is not False and (most is None or most > 1):
            raise _refused("uniqueItems", place)
        if most is not None and most < least:
            raise UsageError(f"json_schema: 'minItems' at {place} is above what 'items' allows")
        fixed = [self._at(f"{place}/prefixItems/{index}", option) for index, option in enumerate(first[:most])]
        body = self._more_items(rest, place, max(0, least - len(fixed)), None if most is None else most - len(fixed))
        if body:
            body = self._optional(f'"," space {body}' if fixed else body, least > len(fixed))
        for index in range(len(fixed) - 1, -1, -1):
            body = self._rule(f"{fixed[index]} {body}".rstrip())
            if index:
                body = f'"," space {body}'
            body = self._optional(body, least > index)
        return f'"[" {body} "]"' if body else '"[]"'

    def _more_items(self, items: Any, place: str, least: int, most: int | None) -> str:
        """At least one item of a kind, up to as many; empty where there may be none."""
        if most == 0:
            return ""
        item = "value" if items is True else self._at(f"{place}/items", items)
        further = _times(max(0, least - 1), None if most is None else most - 1)
        return self._rule(f'{item} ("," space {item}){further}')

    @staticmethod
    def _optional(body: str, needed: bool) -> str:
        return body if needed else f"({body})?"

    def _object(self, schema: dict[str, Any], place: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise UsageError(f"json_schema: 'properties' at {place} is {shown(properties)}: give schemas by name")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise UsageError(f"json_schema: 'required' at {place} is {shown(required)}: give a list of names")
        others = schema.get("additionalProperties", not (properties or required))
        if not isinstance(others, dict | bool):
            raise UsageError(f"json_schema: 'additionalProperties' at {place} is {shown(others)}: give a schema")
        for name in required:
            if name not in properties and schema.get("additionalProperties") is False:
                raise UsageError(f"json_schema: 'required' at {place} names {shown(name)}, which is not allowed there")
        if len(properties) > MOST_PROPERTIES:
            raise UsageError(
                f"json_schema: 'properties' at {place} has {len(properties)}; the most that can be enforced is "
                f"{MOST_PROPERTIES}"
            )
        members = self._members(properties, required, others, place)
        known = self._in_order(members, set(required), self._extra(schema, members, others, place))
        return f'"{{" {known} "}}"' if known else '"{}"'

    def _members(self, properties: dict[str, Any], required: Sequence[str], others: Any, place: str) -> dict[str, str]:
        """The rule of each named member, those last that are required without being described."""
        values = {name: self._at(under(f"{place}/properties", name), body) for name, body in properties.items()}
        undescribed = self._at(f"{place}/additionalProperties", others) if isinstance(others, dict) else "value"
        values |= {name: undescribed for name in required if name not in values}
        return {name: self._rule(f'{literal(written(name))} ":" space {value}') for name, value in values.items()}

    def _extra(
        self, schema: dict[str, Any], members: dict[str, str], others: Any, place: str
    ) -> tuple[str, int | None] | None:
        """The rule of a member that is not named, and how many of them there may be (None: any number)."""
        least, most = self._counts(schema, "minProperties", "maxProperties", place)
        if least > len(set(schema.get("required", []))):
            raise _refused("minProperties", place, "above the number of required properties")
        if most is not None and most < len(members):
            raise _refused("maxProperties", place, "below the number of properties")
        if others is False or most == len(members):
            return None
        value = "value" if others is True else self._at(f"{place}/additionalProperties", others)
        if sum(map(len, members)) > MOST_NAMES:
            raise _refused("additionalProperties", place, f"beside names of more than {MOST_NAMES} characters")
        key = any_but([name for name in members if plain_key(name)], self._rule) if members else "string"
        return self._rule(f'{key} ":" space {value}'), None if most is None else most - len(members)

    def _in_order(self, members: dict[str, str], required: set[str], extra: tuple[str, int | None] | None) -> str:
        """Members in order, with commas between those that are there. `rest` follows one of them, `first` none."""
        first = rest = ""
        if extra is not None:
            member, most = extra
            rest = self._rule(f'("," space {member}){_times(0, most)}')
            first = self._rule(f'({member} ("," space {member}){_times(0, None if most is None else most - 1)})?')
        for name, member in reversed(members.items()):
            begun = self._rule(f"{member} {rest}".rstrip())
            if name in required:
                first, rest = begun, self._rule(f'"," space {begun}')
            else:
                first = self._rule(f"{begun} | {first}" if first else f"{begun}?")
                rest = self._rule(f'("," space {member})? {rest}'.rstrip())
        return first

    def _refuse_overlap(self, options: list[Any], place: str) -> None:
        """Raises UsageError unless no value can match two options: by type, by value, or by a property's value."""
        if len(options) > MOST_OPTIONS:
            raise _refused("oneOf", place, f"of more than {MOST_OPTIONS} schemas")
        shapes = [shape(self._meant(option, place)) for option in options]
        for index, one in enumerate(shapes):
            if not all(apart(one, other) for other in shapes[:index]):
                raise _refused("oneOf", place, "of schemas that one value may match together (use anyOf)")

    def _meant(self, option: Any, place: str) -> Any:
        """The schema itself, or the one that it refers to."""
        if isinstance(option, dict) and set(option) - _ANNOTATIONS == {"$ref"}:
            option = self._resolved(option["$ref"], place)[1]
        return option


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _refused(keyword: str, place: str, more: str = "") -> UsageError:
    said = f" {more}" if more else ""
    return UsageError(f"json_schema: '{keyword}' at {place}{said} cannot be enforced: leave it out")
