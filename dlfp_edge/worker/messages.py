"""The objects inside messages, as JSON and back. Fields need no code here: a new one travels as its type says."""

from __future__ import annotations

import copy
import json
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from dlfp_edge.errors import UsageError
from dlfp_edge.limits import Limits
from dlfp_edge.runtime import Capabilities, LoadOptions
from dlfp_edge.settings import Settings
from dlfp_edge.task import TaskRecord, TaskSpec
from dlfp_edge.trace import Snapshot

T = TypeVar("T")


class Codec(Generic[T]):
    """A dataclass as JSON values and back."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind

    def encode(self, value: T) -> Any:
        """JSON values. Types are judged where they are decoded."""
        return self._adapter.dump_python(value, mode="json", warnings=False)

    def decode(self, value: Any) -> T:
        """The object. Raises UsageError that names the first field of a wrong type; nothing is converted."""
        try:
            return self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or self._kind.__name__
            raise UsageError(f"{where} is {first['input']!r}: {first['msg']}") from None

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._kind)


SPEC = Codec(TaskSpec)
RECORD = Codec(TaskRecord)
SETTINGS = Codec(Settings)
OPTIONS = Codec(LoadOptions)
CAPABILITIES = Codec(Capabilities)
SNAPSHOT = Codec(Snapshot)
LIMITS = Codec(Limits)


def part_of(record: TaskRecord, start: int, end: int | None) -> TaskRecord:
    """The record as it is now, but with only the entries `start` to `end` (None: the last) of its lists."""
    part = copy.copy(record)
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, list):
            setattr(part, field.name, value[start:end])
    return part


def add_part(record: TaskRecord, part: TaskRecord) -> None:
    """Bring a record up to date with what `part_of` made of the worker's; its id and its label stay."""
    for field in fields(record):
        value = getattr(part, field.name)
        if isinstance(value, list):
            getattr(record, field.name).extend(value)
        elif field.name not in ("request_id", "label"):
            setattr(record, field.name, value)


def shifted(record: TaskRecord, offset_s: float) -> TaskRecord:
    """The record with its times on another clock, which is ahead by `offset_s`."""
    if not offset_s:
        return record
    return replace(
        record,
        arrived=record.arrived + offset_s,
        started=None if record.started is None else record.started + offset_s,
        finished=None if record.finished is None else record.finished + offset_s,
        token_times=[when + offset_s for when in record.token_times],
        shown_times=[when + offset_s for when in record.shown_times],
        due_times=[when + offset_s for when in record.due_times],
    )
