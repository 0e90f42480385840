"""How far background prompts came in a stretch of time: told by an engine's steps, or seen from outside.

Tokens that were found in a prefix cache count like computed ones: the prompt has come as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from dlfp_edge.task import Class, TaskRecord
from dlfp_edge.trace import StepRecord


class PrefillMeter(Protocol):
    """Counts background prompt tokens."""

    def settled(self, end: float, live: Sequence[TaskRecord]) -> bool:
        """Whether what the `live` background requests do at `end` is known by now."""
        ...

    def tokens(self, start: float, end: float, records: Sequence[TaskRecord]) -> float:
        """Prompt tokens done between two moments, of the background requests of `records`, finished or not."""
        ...


class StepMeter:
    """Counts what an engine's steps computed, a step that spans an end in proportion, and what was cached."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, int]] = []

    def add(self, step: StepRecord) -> None:
        """Take a step."""
        tokens = sum(
            segment.consumed
            for segment in step.segments
            if segment.kind == "prefill" and segment.task_class == Class.BACKGROUND
        )
        if any(segment.task_class == Class.BACKGROUND for segment in step.segments):
            self._steps.append((step.submitted, step.completed, tokens))

    def settled(self, end: float, live: Sequence[TaskRecord]) -> bool:
        return bool(self._steps) and self._steps[-1][1] >= end

    def tokens(self, start: float, end: float, records: Sequence[TaskRecord]) -> float:
        cached = (
            record.cached_prompt_tokens
            for record in records
            if record.task_class is Class.BACKGROUND and record.started is not None and start <= record.started <= end
        )
        return sum(count * _overlap(begin, done, start, end) for begin, done, count in self._steps) + sum(cached)


class ProgressMeter:
    """Counts what an endpoint's client can see: a prompt's progress where it is told, its first token where not.

    Between two moments at which it is known how far a prompt has come, it is taken to have come evenly. A prompt that
    waits behind another is counted as being read meanwhile: that moves tokens within the stretch, not in or out of it,
    but for the prompts that span its ends.
    """

    def settled(self, end: float, live: Sequence[TaskRecord]) -> bool:
        return all(_curve(record)[-1][0] >= end for record in live)

    def tokens(self, start: float, end: float, records: Sequence[TaskRecord]) -> float:
        background = (record for record in records if record.task_class is Class.BACKGROUND)
        return sum(
            (after[1] - before[1]) * _overlap(before[0], after[0], start, end)
            for record in background
            for before, after in pairwise(_curve(record))
        )


def _curve(record: TaskRecord) -> list[tuple[float, int]]:
    """When a prompt had come how far, as far as that is known."""
    told: list[tuple[float, int]] = getattr(record, "progress", [])
    began = record.arrived if record.started is None else record.started
    points = [(began, 0), *((when, min(tokens, record.prompt_tokens)) for when, tokens in told if when > began)]
    if record.token_times:
        points = [point for point in points if point[0] < record.token_times[0]]
        points.append((record.token_times[0], record.prompt_tokens))
    return points


def _overlap(begin: float, done: float, start: float, end: float) -> float:
    """The share of [begin, done] that lies in [start, end]; of a moment, whether it does."""
    if done <= begin:
        return float(start <= begin <= end)
    return max(0.0, min(done, end) - max(begin, start)) / (done - begin)
