"""Instructions that many background tasks begin with: computed once by the first of them, then forked."""

from __future__ import annotations

from dataclasses import dataclass

from dlfp_edge.running import Running
from dlfp_edge.runtime import Lane, Sampling
from dlfp_edge.task import TaskSpec

SHORTEST = 16
"""Prefixes below this many tokens cost less to compute than to keep."""


@dataclass(slots=True)
class _Kept:
    sequence: int
    used_at: float
    forks: list[Running]


class Prefixes:
    """The shared prefixes one lane keeps, each on a sequence of its own; the least recently used makes room.

    A prompt that would go on for fewer than `least_rest` tokens is computed whole: the runtime takes no chunk as short.
    """

    def __init__(self, lane: Lane, sequences: list[int], least_rest: int = 1) -> None:
        self._lane = lane
        self._free = list(sequences)
        self._least_rest = least_rest
        self._kept: dict[tuple[int, ...], _Kept] = {}
        self._computing: dict[tuple[int, ...], Running] = {}

    @property
    def cells(self) -> int:
        """KV cells the kept prefixes hold."""
        return sum(len(tokens) for tokens in self._kept)

    def waits(self, spec: TaskSpec) -> bool:
        """Whether another task is computing this prefix right now, so that waiting saves doing it twice."""
        return self._key(spec) in self._computing

    def shared(self, spec: TaskSpec) -> int:
        """Prompt tokens of `spec` that can be forked instead of computed."""
        key = self._key(spec)
        return len(key) if key in self._kept else 0

    def attach(self, running: Running, now: float) -> None:
        """Fork the prefix into a task just opened, or note that this task is the one to compute it."""
        key = self._key(running.task.spec)
        if not key:
            return
        kept = self._kept.get(key)
        if kept is None:
            self._computing[key] = running
            return
        kept.used_at = now
        kept.forks = [fork for fork in kept.forks if not fork.ended] + [running]
        self._lane.fork(kept.sequence, running.sequence, len(key))
        running.shared = running.computed = running.planned = len(key)
        running.task.record.cached_prompt_tokens = len(key)

    def harvest(self, running: Running, now: float) -> None:
        """Keep the prefix once the task computing it is past it and none of its steps is in flight."""
        key = self._key(running.task.spec)
        if self._computing.get(key) is not running or running.in_flight or running.computed < len(key):
            return
        del self._computing[key]
        sequence = self._sequence()
        if sequence is not None:
            self._lane.open(sequence, Sampling())
            self._lane.fork(running.sequence, sequence, len(key))
            self._kept[key] = _Kept(sequence, now, [running])
            running.shared = len(key)

    def abandon(self, running: Running) -> None:
        """The task ended before its prefix was there: another one may compute it."""
        key = self._key(running.task.spec)
        if self._computing.get(key) is running:
            del self._computing[key]

    def forget(self, sequences: tuple[int, ...]) -> None:
        """Drop prefixes whose KV cells the runtime lost."""
        for key, kept in list(self._kept.items()):
            if kept.sequence in sequences:
                self._drop(key)

    def make_room(self, cells: int, keep: TaskSpec) -> bool:
        """Drop the least recently used prefixes until `cells` are free; drops none where that would not be enough.

        The prefix of `keep` stays, and one that running tasks still share would free nothing.
        """
        own = self._key(keep)
        idle = [key for key, kept in self._kept.items() if key != own and all(fork.ended for fork in kept.forks)]
        if sum(len(key) for key in idle) < cells:
            return False
        for key in sorted(idle, key=lambda key: self._kept[key].used_at):
            if cells > 0:
                cells -= len(key)
                self._drop(key)
        return True

    def _sequence(self) -> int | None:
        if not self._free:
            self._drop(min(self._kept, key=lambda key: self._kept[key].used_at))
        return self._free.pop() if self._free else None

    def _drop(self, key: tuple[int, ...]) -> None:
        kept = self._kept.pop(key)
        for fork in kept.forks:
            fork.shared = 0
        self._lane.close(kept.sequence)
        self._free.append(kept.sequence)

    def _key(self, spec: TaskSpec) -> tuple[int, ...]:
        rest = len(spec.prompt) - spec.shared_prefix
        if spec.shared_prefix < SHORTEST or rest < self._least_rest or not (self._free or self._kept):
            return ()
        return spec.prompt[: spec.shared_prefix]
