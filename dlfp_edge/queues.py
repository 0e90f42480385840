"""Tasks that wait, one bounded queue a class."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from dlfp_edge.errors import QueueFull
from dlfp_edge.task import Class

AGE_LIMIT_S = 30.0
"""How long a task may be overtaken by smaller ones of its class that fit where it does not."""


class Refusal(Enum):
    """Why a task cannot start now: what it needs is not free, or it is better off a little later."""

    NO_ROOM = "no room"
    LATER = "later"


class Waiting(Protocol):
    """What a queue needs to know of a task."""

    @property
    def arrived(self) -> float: ...

    @property
    def task_class(self) -> Class: ...


T = TypeVar("T", bound=Waiting)
Place = TypeVar("Place")

LOOKAHEAD = 8
"""How many tasks are tried at a time: what each needs takes some microseconds to find out."""


class Queues(Generic[T]):
    """First come, first served within a class; a task that does not fit yet can be overtaken for a while.

    `changes` counts tasks put in and taken out. With `single_class` both classes wait in one line, whichever is asked
    for, and nobody is overtaken.
    """

    def __init__(self, limit: int, *, single_class: bool = False) -> None:
        self.changes = 0
        self._limit = limit
        self._lookahead = 1 if single_class else LOOKAHEAD
        self._counts = dict.fromkeys(Class, 0)
        line: list[T] = []
        self._waiting: dict[Class, list[T]] = {member: line if single_class else [] for member in Class}

    def put(self, entry: T) -> None:
        """Queue a task. Raises QueueFull, and then nothing was queued."""
        waiting = self.count(entry.task_class)
        if waiting >= self._limit:
            raise QueueFull(
                f"{waiting} {entry.task_class.value} tasks wait already, the limit: try again when some are done"
            )
        self._waiting[entry.task_class].append(entry)
        self._changed(entry, 1)

    def take(self, task_class: Class, now: float, place: Callable[[T], Place | Refusal]) -> tuple[T, Place] | None:
        """Remove the first task that has a place and return both; one too long without room lets nobody pass."""
        queue = self._waiting[task_class]
        for index, entry in enumerate(queue[: self._lookahead]):
            found = place(entry)
            if not isinstance(found, Refusal):
                self._changed(entry, -1)
                return queue.pop(index), found
            if found is Refusal.NO_ROOM and now - entry.arrived > AGE_LIMIT_S:
                return None
        return None

    def first(self, task_class: Class) -> T | None:
        """The task of a class that has waited longest."""
        queue = self._waiting[task_class]
        return queue[0] if queue else None

    def remove(self, entry: T) -> bool:
        """Take a task out; False where it was not waiting."""
        queue = self._waiting[entry.task_class]
        if entry not in queue:
            return False
        queue.remove(entry)
        self._changed(entry, -1)
        return True

    def count(self, task_class: Class) -> int:
        """How many tasks of a class wait."""
        return self._counts[task_class]

    def _changed(self, entry: T, by: int) -> None:
        self.changes += 1
        self._counts[entry.task_class] += by
