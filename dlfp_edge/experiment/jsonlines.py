"""JSON that any parser reads, and a file of whole lines of it, but for the last one of a process killed meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping
from io import RawIOBase
from pathlib import PurePath
from typing import Any


def to_json(document: object) -> str:
    """Strict JSON, indented: a number that is not finite becomes null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if value is None or isinstance(value, str | int):
        return value
    return _finite(encode(value))


def encode(value: object) -> Any:
    """What `json.dumps` needs for what it does not know: dataclasses become objects, paths text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


class LineFile:
    """Appends values as lines to an unbuffered binary file, which it owns and which may hold something already.

    Once a write has failed, the file is cut back to its last whole line and takes nothing more.
    """

    def __init__(self, file: RawIOBase, size: int = 0) -> None:
        self._file = file
        self._pending: list[bytes] = []
        self._size = size
        self._failed = False

    def append(self, value: object) -> None:
        """Take a value; nothing is written before `flush`."""
        if not self._failed:
            self._pending.append(json.dumps(value, default=encode, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> None:
        """Write what was taken. Raises OSError, once: the file takes nothing after that."""
        lines, self._pending = b"".join(self._pending), []
        done = 0
        try:
            while done < len(lines):
                done += self._file.write(lines[done:]) or 0
        except OSError:
            self._failed = True
            with contextlib.suppress(OSError):
                self._file.truncate(self._size + lines.rfind(b"\n", 0, done) + 1)
            raise
        self._size += done

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
