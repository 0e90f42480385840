"""Which tasks the front has, which of them the worker has, and what becomes of them when the worker dies.

A background task whose worker died begins again: its reader has seen nothing of it. So does an answer of which nothing
was shown; one that was under way is lost, because it could not go on with the same words. A task that may have been the
reason (it could have been running) is a *suspect*: suspects go to the next worker one at a time, before any other
background work, and one that is the only suspect there when the worker dies for the second time is not tried again.
Once some have completed like that, it was hardly a task, and the rest go together; if a worker dies of that, every
suspect left is tried alone. A worker that somebody killed says less about its tasks, so that takes five times; it is
not nothing, because the system kills for memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

from dlfp_edge.handle import Task
from dlfp_edge.task import Class, Finish

MOST_BLAME = 2.0
"""Of a task that was the only suspect when workers died: it is not tried again. A crash counts 1."""

BLAME_FROM_OUTSIDE = 0.4
"""What a death counts by a signal that somebody sent."""


MOST_ALONE = 3
"""So many suspects complete alone before the others go together again."""


@dataclass(slots=True, eq=False)
class Entry:
    """A task the front has.

    `number` is its place among all tasks, `turn` that among those the worker has (None: it has not got it). `deaths`
    counts workers that died while it may have run, `blame` those of them in which it was the only suspect.
    """

    number: int
    task: Task
    turn: int | None = None
    cancelled: bool = False
    deaths: int = 0
    blame: float = 0.0

    @property
    def sent(self) -> bool:
        """Whether the worker has it."""
        return self.turn is not None

    @property
    def suspect(self) -> bool:
        """Whether it may have killed a worker."""
        return self.deaths > 0

    @property
    def foreground(self) -> bool:
        """Whether somebody is watching."""
        return self.task.task_class is Class.FOREGROUND


class Fate(Enum):
    """What a worker's death makes of a task."""

    AGAIN = "again"
    LOST = "lost"
    CANCELLED = "cancelled"
    BLAMED = "blamed"


class Ledger:
    """The front's tasks in the order they came. `running` is how many of a class the worker can run at once."""

    def __init__(self, running: Mapping[Class, int]) -> None:
        self._running = running
        self._entries: dict[str, Entry] = {}
        self._turns = itertools.count()
        self._alone: float = MOST_ALONE
        """How many suspects have yet to complete alone."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Take a task."""
        self._entries[entry.task.request_id] = entry

    def get(self, request_id: str) -> Entry | None:
        """The task of this id, unless it has ended."""
        return self._entries.get(request_id)

    def remove(self, entry: Entry) -> None:
        """Forget a task that has ended."""
        self._entries.pop(entry.task.request_id, None)
        if not any(other.suspect for other in self._entries.values()):
            self._alone = MOST_ALONE
        elif entry.suspect and entry.sent and entry.task.record.finish in (Finish.STOP, Finish.LENGTH):
            self._alone -= 1

    def all(self) -> list[Entry]:
        """Every task, in order."""
        return list(self._entries.values())

    def count(self, task_class: Class, *, unsent: bool = False) -> int:
        """Tasks of a class, or those of them that no worker has."""
        return sum(
            entry.task.task_class is task_class and not (unsent and entry.sent) for entry in self._entries.values()
        )

    def to_send(self) -> list[Entry]:
        """What the worker is to be given now."""
        waiting = [entry for entry in self._entries.values() if not entry.sent]
        suspects = [entry for entry in self._entries.values() if entry.suspect]
        if not suspects or self._alone <= 0:
            return waiting
        fresh = [entry for entry in waiting if entry.foreground and not entry.suspect]
        if any(entry.sent for entry in suspects):
            return fresh
        return [min(suspects, key=lambda entry: (not entry.foreground, entry.number)), *fresh]

    def sent(self, entry: Entry) -> None:
        """The worker has got a task."""
        entry.turn = next(self._turns)

    def died(self, *, outside: bool) -> list[tuple[Entry, Fate]]:
        """The worker has died, perhaps by a signal from outside: what becomes of each task it had.

        Those that go on have to be sent again.
        """
        had = sorted((entry for entry in self._entries.values() if entry.sent), key=lambda entry: entry.turn or 0)
        suspects = [entry for entry in had if entry.suspect]
        if len(suspects) > 1:
            self._alone = inf
        elif self._alone < inf:
            self._alone = MOST_ALONE
        for task_class, most in self._running.items():
            for entry in [entry for entry in had if entry.task.task_class is task_class][:most]:
                if suspects == [entry]:
                    entry.blame += BLAME_FROM_OUTSIDE if outside else 1.0
                entry.deaths += 1
        for entry in had:
            entry.turn = None
        return [(entry, _fate(entry)) for entry in had]


def _fate(entry: Entry) -> Fate:
    if entry.cancelled:
        return Fate.CANCELLED
    if entry.foreground and entry.task.record.shown_times:
        return Fate.LOST
    return Fate.BLAMED if entry.blame >= MOST_BLAME else Fate.AGAIN
