"""JSON values and the schemas that name them: types, equality, and whether two schemas can share a value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema's values have in common, each None where it does not say.

    `values` are all of them, as canonical JSON. `types` count whole numbers as numbers. `members` are the shapes of
    properties that are required.
    """

    values: frozenset[str] | None
    types: frozenset[str] | None
    members: dict[str, Shape]


def shape(schema: Any) -> Shape:
    """The shape of a schema; what it leaves open makes shapes alike."""
    if not isinstance(schema, dict):
        return Shape(None, None, {})
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return Shape(frozenset(map(_canonical, values)), frozenset(map(_type_name, values)), {})
    types = schema.get("type")
    names = types if isinstance(types, list) else [types]
    named = frozenset("number" if kind == "integer" else str(kind) for kind in names) if types else None
    return Shape(None, named, _members(schema) if named == frozenset(["object"]) else {})


def apart(one: Shape, other: Shape) -> bool:
    """Whether no value can have both shapes: told by their values, their types, or those of a property."""
    if one.values is not None and other.values is not None:
        return one.values.isdisjoint(other.values)
    if one.types is not None and other.types is not None and one.types.isdisjoint(other.types):
        return True
    return any(apart(member, other.members[name]) for name, member in one.members.items() if name in other.members)


def _members(schema: dict[str, Any]) -> dict[str, Shape]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {name: shape(properties[name]) for name in required if isinstance(name, str) and name in properties}


def _type_name(value: Any) -> str:
    return next(kind for kind in ("null", "boolean", "number", "string", "array", "object") if is_type(value, kind))


def is_type(value: Any, kind: str) -> bool:
    """Whether a value is of a type; a number without a fraction is a whole one."""
    if kind == "integer":
        return not isinstance(value, bool) and isinstance(value, int | float) and float(value).is_integer()
    kinds = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
    if kind == "number":
        return not isinstance(value, bool) and isinstance(value, int | float)
    return isinstance(value, kinds[kind])


def equal(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is 1.0 and not true."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> str:
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_normal(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def written(value: Any) -> str:
    """A value as JSON, as short as it goes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (
        text if not any("\ud800" <= point <= "\udfff" for point in text) else json.dumps(value, separators=(",", ":"))
    )
