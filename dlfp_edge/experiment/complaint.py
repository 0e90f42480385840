"""Turns what pydantic says of a workload into one line that names the key and the mend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dlfp_edge.errors import hint


def one_line(error: ValidationError, table: Mapping[str, Any], models: Mapping[str, type[BaseModel]]) -> str:
    """The first complaint about `table`. `models` maps tables and lists of tables by name, the top by "", to models."""
    # A misspelt key also makes the right one missing: name the misspelt one.
    first = min(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    where, model = _place(first, table, models)
    return where + _message(first, model)


def _place(
    detail: ErrorDetails, table: Mapping[str, Any], models: Mapping[str, type[BaseModel]]
) -> tuple[str, type[BaseModel]]:
    location = detail["loc"]
    kind = str(location[0]) if location else ""
    if kind in models and isinstance(table.get(kind), dict) and detail["type"] != "list_type":
        return f"{kind}: ", models[kind]
    if len(location) < 2 or not isinstance(location[1], int):
        return "", models[""]
    index = location[1]
    entry = table[kind][index]
    name = entry.get("name") if isinstance(entry, dict) else None
    where = repr(name) if isinstance(name, str) and name else f"number {index + 1}"
    return f"{kind} {where}: ", models.get(kind, models[""])


def _message(detail: ErrorDetails, model: type[BaseModel]) -> str:
    key, problem, given = detail["loc"][-1] if detail["loc"] else "", detail["msg"], detail["input"]
    keys = [field.alias or name for name, field in model.model_fields.items()]
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}: {hint(str(key), keys, 'keys are')}"
    if detail["type"] == "missing":
        return f"missing key '{key}': add it"
    if detail["type"] == "value_error":
        return problem.removeprefix("Value error, ")
    if detail["type"] == "model_type" and len(detail["loc"]) == 1:
        return f"'{key}' must be written as one table that begins with [{key}]"
    if detail["type"] in ("list_type", "model_type") and len(detail["loc"]) < 3:
        return f"'{detail['loc'][0]}' must be written as tables that each begin with [[{detail['loc'][0]}]]"
    return f"'{key}': {problem[:1].lower()}{problem[1:]}, not {_shown(given)}"


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else text[:37] + "..."
