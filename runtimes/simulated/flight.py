"""A submitted step on its way: how far it is, and where it may be stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate

from dlfp_edge.runtime import Step

from .cost import Cost, Work


@dataclass(slots=True)
class Flight:
    """A step between submission and result. Progress is a fraction of the whole step's work.

    `marks` are the fractions at which a part of the work is done and safe: the ends of its ubatches, or of its segments
    in the `order` they run; `passed` are the times at which those so far were reached. `slower` stretches this step
    alone (noise). The step ends when progress reaches `target`, or at the time `stop_at` if that comes first.
    """

    handle: int
    step: Step
    submitted: float
    order: tuple[int, ...]
    marks: tuple[float, ...]
    work: Work
    slower: float
    target: float = 1.0
    stop_at: float = math.inf
    cancelled: bool = False
    passed: list[float] = field(default_factory=list)
    ends_at: float = math.inf
    _since: float = 0.0
    _progress: float = 0.0
    _duration_s: float = math.inf

    def begin(self, now: float) -> None:
        """Start to run; nothing moves before `set_pace`."""
        self._since = now

    def set_pace(self, now: float, duration_s: float) -> None:
        """From `now` on, run such that the whole step would take `duration_s`."""
        self.advance(now)
        self._duration_s = duration_s * self.slower
        self._set_end()

    def advance(self, now: float) -> None:
        """Note what was done by `now`, which is at most `ends_at`."""
        if now <= self._since and self._duration_s > 0.0:
            return
        progress = self._progress_at(now)
        while len(self.passed) < len(self.marks) and self.marks[len(self.passed)] <= progress:
            mark = self.marks[len(self.passed)]
            self.passed.append(self._since + (mark - self._progress) * self._duration_s)
        self._progress = progress
        self._since = now

    def stop(self, when: float) -> None:
        """End at `when`, unless it is done by then."""
        self.stop_at = min(self.stop_at, when)
        self._set_end()

    def stop_at_mark(self, now: float) -> None:
        """End at the next mark."""
        self.advance(now)
        if len(self.passed) < len(self.marks):
            self.target = self.marks[len(self.passed)]
        self._set_end()

    @property
    def _done_at(self) -> float:
        return self._since + (self.target - self._progress) * self._duration_s

    def _set_end(self) -> None:
        self.ends_at = min(self._done_at, self.stop_at)

    def _progress_at(self, now: float) -> float:
        if now >= self._done_at:
            return self.target
        return self._progress + (now - self._since) / self._duration_s


def copying(step: Step, cost: Cost) -> tuple[tuple[int, ...], tuple[float, ...], Work]:
    """Order, marks and work of a step that copies KV cells."""
    assert step.transfer is not None
    return (), (1.0,), Work(cost.copy_s * (step.transfer.end - step.transfer.start), 0.0)


def batch(step: Step, cost: Cost, ubatch: int) -> tuple[tuple[int, ...], tuple[float, ...], Work]:
    """Order, marks and work of a step that runs as one batch, in ubatches."""
    total = step.total_tokens
    marks = (1.0,) if total <= ubatch else (*(done / total for done in range(ubatch, total, ubatch)), 1.0)
    return tuple(range(len(step.segments))), marks, cost.work(step.segments)


def one_by_one(step: Step, cost: Cost) -> tuple[tuple[int, ...], tuple[float, ...], Work]:
    """Order, marks and work of a step whose segments run one after another, decodes first."""
    order = sorted(range(len(step.segments)), key=lambda index: len(step.segments[index].tokens) > 1)
    works = [cost.work([step.segments[index]]) for index in order]
    ends = list(accumulate(work.seconds(1.0) for work in works))
    marks = (*(end / ends[-1] if ends[-1] else 1.0 for end in ends[:-1]), 1.0)
    whole = Work(sum(work.serial_s for work in works), sum(work.parallel_s for work in works))
    return tuple(order), marks, whole
