"""Running totals of a run. Gaps are kept as packed doubles, so a long run stays small and percentiles stay exact."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlfp_edge.measure.latency import (
    complete,
    contended_gaps_s,
    e2el_s,
    gaps_s,
    late_tokens,
    lateness_s,
    shown_gaps_s,
    tpot_s,
    ttft_s,
)
from dlfp_edge.measure.windows import WindowPlan
from dlfp_edge.task import Class, Finish, TaskRecord
from dlfp_edge.trace import StepRecord


def _doubles() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Tally:
    """What became of the requests of one class. Durations are seconds.

    Gaps come from every request, also one that was cancelled or failed: its reader saw them. TPOT and E2EL come from
    complete answers. Tokens count by when they became available, and only in `counted_s`: contended windows for
    background, the whole run for foreground. `prompt_tokens` is prefill the steps computed, finished prompt or not.
    `cached_tokens` of the prompts were there already, and `cached_ttft` are the first-token times of requests with such
    tokens. `over_target` are contended gaps as multiples of the target that was in force for each. `lowered` are the
    lowest paces, in tokens/s, of requests whose pace could not be kept.
    """

    requests: int = 0
    complete: int = 0
    failed: int = 0
    cancelled: int = 0
    missed_deadlines: int = 0
    late: int = 0
    cached_tokens: int = 0
    pauses: int = 0
    output_tokens: float = 0.0
    prompt_tokens: float = 0.0
    counted_s: float = 0.0
    ttft: array[float] = field(default_factory=_doubles)
    cached_ttft: array[float] = field(default_factory=_doubles)
    gaps: array[float] = field(default_factory=_doubles)
    contended: array[float] = field(default_factory=_doubles)
    shown: array[float] = field(default_factory=_doubles)
    lateness: array[float] = field(default_factory=_doubles)
    lowered: array[float] = field(default_factory=_doubles)
    tpot: array[float] = field(default_factory=_doubles)
    e2el: array[float] = field(default_factory=_doubles)
    over_target: array[float] = field(default_factory=_doubles)

    def add(self, record: TaskRecord) -> None:
        """Count a request that ended."""
        self.requests += 1
        self.complete += complete(record)
        self.failed += record.failed
        self.cancelled += record.finish is Finish.CANCELLED
        self.missed_deadlines += record.finish is Finish.DEADLINE
        self.late += late_tokens(record)
        self.cached_tokens += record.cached_prompt_tokens
        self.pauses += record.pauses
        first_s = ttft_s(record)
        if record.cached_prompt_tokens and first_s is not None:
            self.cached_ttft.append(first_s)
        self.gaps.extend(gaps_s(record))
        self.contended.extend(contended_gaps_s(record))
        self.shown.extend(shown_gaps_s(record))
        self.lateness.extend(lateness_s(record))
        if record.lowest_pace is not None:
            self.lowered.append(record.lowest_pace)
        for values, value in ((self.ttft, ttft_s), (self.tpot, tpot_s), (self.e2el, e2el_s)):
            duration = value(record)
            if duration is not None:
                values.append(duration)

    def merge(self, other: Tally) -> None:
        """Add another run's totals: durations pool, tokens and time add up."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class SoloTally:
    """Gaps and first-token times of foreground requests while nothing else was asked for."""

    gaps: array[float] = field(default_factory=_doubles)
    ttft: array[float] = field(default_factory=_doubles)

    def add(self, record: TaskRecord, plan: WindowPlan) -> None:
        """Take what lies wholly in a settled solo window and was not contended."""
        moments = [record.arrived, *record.token_times]
        for index, contended in enumerate(record.contended):
            if not contended and plan.solo(moments[index], moments[index + 1]):
                (self.gaps if index else self.ttft).append(moments[index + 1] - moments[index])


@dataclass(slots=True)
class TargetGaps:
    """Makes contended gaps multiples of the target in force from steps, fed in their order.

    What an interrupted step took (`lost_s`) is part of the gap that the next one ends.
    """

    lost_s: float = 0.0

    def add(self, step: StepRecord) -> float | None:
        """The gap that the step ended, over its target; None where it ended none."""
        if step.target_s is None or step.observed_s is None:
            self.lost_s = 0.0
        elif step.interrupted:
            self.lost_s += step.observed_s
        else:
            multiple = (self.lost_s + step.observed_s) / step.target_s
            self.lost_s = 0.0
            return multiple
        return None


def over_targets(steps: Iterable[StepRecord]) -> list[float]:
    """The contended gaps that steps ended, as multiples of the target in force: one a step, whoever saw it."""
    gaps = TargetGaps()
    return [multiple for step in steps if (multiple := gaps.add(step)) is not None]


@dataclass(slots=True)
class RunTally:
    """The totals of one run, fed with steps and ended requests."""

    plan: WindowPlan
    end: float | None = None
    foreground: Tally = field(default_factory=Tally)
    background: Tally = field(default_factory=Tally)
    solo: SoloTally = field(default_factory=SoloTally)
    target_gaps: TargetGaps = field(default_factory=TargetGaps)

    def add(self, record: TaskRecord) -> None:
        """Count a request that ended."""
        tally = self._of(record.task_class)
        tally.add(record)
        for moment in record.token_times:
            tally.output_tokens += self._counted(record.task_class, moment, moment)
        if record.task_class is Class.FOREGROUND:
            self.solo.add(record, self.plan)

    def add_step(self, step: StepRecord) -> None:
        """Count a step's prefill, in proportion to how much of the step lies in counted time, and its gap."""
        self._add_gap(step)
        for segment in step.segments:
            if segment.kind == "prefill" and segment.consumed:
                task_class = Class(segment.task_class)
                share = self._counted(task_class, step.submitted, step.completed)
                self._of(task_class).prompt_tokens += segment.consumed * share

    def _add_gap(self, step: StepRecord) -> None:
        multiple = self.target_gaps.add(step)
        if multiple is not None:
            self.foreground.over_target.append(multiple)

    def close(self, end: float) -> None:
        """End the measured time; what happens later counts no tokens."""
        self.end = end
        self.foreground.counted_s = end - self.plan.start
        self.background.counted_s = self.plan.contended_s(self.plan.start, end)

    def _of(self, task_class: Class) -> Tally:
        return self.foreground if task_class is Class.FOREGROUND else self.background

    def _counted(self, task_class: Class, begin: float, end: float) -> float:
        """The share of [begin, end] in counted time; for a moment, whether it lies there."""
        last = end if self.end is None else min(end, self.end)
        if end <= begin:
            return float(self.plan.start <= begin <= last and self._counts(task_class, begin))
        if task_class is Class.FOREGROUND:
            return max(0.0, last - max(begin, self.plan.start)) / (end - begin)
        return self.plan.contended_s(begin, last) / (end - begin)

    def _counts(self, task_class: Class, moment: float) -> bool:
        return task_class is Class.FOREGROUND or self.plan.contended_at(moment)
