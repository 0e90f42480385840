"""A schema as it was given: JSON of bounded size, and how its places and values are named."""

from __future__ import annotations

import json
import math
from typing import Any

from dlfp_edge.errors import UsageError

MOST_TEXT = 100_000
MOST_DEPTH = 40
_MOST_BITS = 1_000


def checked(schema: object) -> Any:
    """The schema, once it is known to be JSON of bounded size and depth."""
    if isinstance(schema, str):
        schema = _parsed(schema)
    if not isinstance(schema, dict | bool):
        raise UsageError(f"json_schema is {shown(schema)}: give an object or its JSON text")
    waiting: list[tuple[object, str, int]] = [(schema, "#", 0)]
    size = 0
    while waiting:
        part, place, depth = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        if size > MOST_TEXT or depth > MOST_DEPTH:
            what = f"is nested deeper than {MOST_DEPTH}" if depth > MOST_DEPTH else f"is larger than {MOST_TEXT}"
            raise UsageError(f"json_schema {what} at {place[:200]}: make it smaller")
        if isinstance(part, dict):
            for key, value in part.items():
                if not isinstance(key, str):
                    raise UsageError(f"json_schema has a key that is no text at {place}: {shown(key)}")
                size += len(key)
                waiting.append((value, under(place, key), depth + 1))
        elif isinstance(part, list):
            waiting += [(value, f"{place}/{index}", depth + 1) for index, value in enumerate(part)]
        elif isinstance(part, int) and part.bit_length() > _MOST_BITS:
            raise UsageError(f"json_schema holds a number of more than {_MOST_BITS} bits at {place[:200]}")
        elif not (part is None or isinstance(part, str | int) or (isinstance(part, float) and math.isfinite(part))):
            raise UsageError(f"json_schema holds what JSON cannot at {place}: {shown(part)}")
    return schema


def _parsed(text: str) -> object:
    if len(text) > MOST_TEXT:
        raise UsageError(f"json_schema has {len(text)} characters; the most is {MOST_TEXT}")
    try:
        return json.loads(text)
    except RecursionError:
        raise UsageError("json_schema is nested too deep to be read: make it smaller") from None
    except ValueError as error:
        raise UsageError(f"json_schema is not JSON: {error}") from None


def under(place: str, key: str) -> str:
    """The place of a key in an object, as a JSON pointer."""
    return f"{place}/{key.replace('~', '~0').replace('/', '~1')}"


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
