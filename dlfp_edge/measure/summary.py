"""The `summary.json` of a run: its schema, and how it is built from the totals.

Latencies are ms. A figure that could not be measured is null, and `unavailable` maps its dotted name to the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.measure.percentiles import Distribution, distribution
from dlfp_edge.measure.tally import RunTally, Tally
from dlfp_edge.task import Class
from dlfp_edge.trace import Counters

SCHEMA_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LateTokens(_Part):
    """Tokens of paced streams shown more than 15 ms after they were due, by the schedule in force at the time."""

    count: int | None
    share: float | None = Field(description="of the gaps of paced streams, 0 to 1")
    p99_ms: float | None = Field(description="how long after it was due a token was shown")
    max_ms: float | None


class LoweredPace(_Part):
    """Requests whose pace decoding could not keep, even alone."""

    requests: int
    tokens_per_s: float | None = Field(description="the lowest pace that one of them was shown at")


class ClassSummary(_Part):
    """One class of requests. ITL figures pool every gap between tokens over the requests."""

    requests: int = Field(description="ended, however they ended")
    failed: int = Field(description="ended with an error or past their deadline, or refused by a full queue")
    cancelled: int = Field(description="cancelled, by the user or at the end of the run")
    cached_prompt_tokens: int = Field(description="of prompts, left by requests that begin the same")
    pauses: int = Field(description="times a request had to leave its KV cells to others")
    ttft_ms: Distribution = Field(description="from (scheduled) arrival to the first token")
    cached_ttft_ms: Distribution = Field(description="the same of requests with cached prompt tokens alone")
    itl_ms: Distribution = Field(description="gaps between tokens becoming available")
    contended_itl_ms: Distribution = Field(description="the gaps while background work existed")
    shown_itl_ms: Distribution = Field(description="gaps between a paced stream's tokens being shown")
    tpot_ms: Distribution = Field(description="(latency - TTFT) / (n - 1) of complete answers")
    e2el_ms: Distribution = Field(description="from (scheduled) arrival to the last token of complete answers")
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None = Field(description="prefill computed, finished prompts or not")
    finished_per_min: float | None = Field(description="complete answers per minute")
    missed_deadlines: int
    late_tokens: LateTokens
    lowered_pace: LoweredPace


class SoloItl(_Part):
    """Foreground gaps while background work was held, in windows of the same run."""

    p50: float | None
    p99: float | None
    count: int


class Overhead(_Part):
    """What planning a step took, in ms."""

    p50: float | None
    p99: float | None


class Latency(_Part):
    """From asking a step to stop until it had, in ms."""

    p50: float | None
    p99: float | None
    max: float | None


class OverTarget(_Part):
    """Contended foreground gaps as multiples of the target in force for each."""

    p50: float | None
    p99: float | None
    max: float | None
    count: int


class Preemptions(_Part):
    """Steps that were interrupted, and the work that was lost."""

    count: int
    latency_ms: Latency
    aborted_tokens: int
    wasted_fraction: float | None = Field(description="aborted / computed tokens")


class Summary(_Part):
    """One run. Background rates count contended windows only; foreground rates the whole run."""

    schema_version: int = SCHEMA_VERSION
    workload: str
    seed: int
    scale: float
    duration_s: float = Field(description="measured time")
    contended_s: float = Field(description="the part of it in which background work was not held")
    placement: str
    controller: str
    target_itl_ms: float | None
    itl_over_target: OverTarget
    foreground: ClassSummary
    background: ClassSummary
    solo_itl_ms: SoloItl
    solo_ttft_ms: Distribution
    steps: int
    updates: int
    resets: int
    scheduler_overhead_ms: Overhead
    preemptions: Preemptions
    backstops: int
    messages: list[str] = Field(description="what the engine had to say, each once, in the order it came up")
    unavailable: dict[str, str] = Field(description="dotted name of a null figure -> why it is null")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run was: workload, settings, target in seconds, the classes it had, and what the engine said."""

    workload: str
    seed: int
    scale: float
    placement: str
    controller: str
    target_s: float | None
    classes: frozenset[Class]
    messages: tuple[str, ...] = ()


def build_summary(facts: RunFacts, tally: RunTally, counters: Counters) -> dict[str, Any]:
    """The content of `summary.json`, valid for `Summary`."""
    plan, stop = distribution(counters.plan_s), distribution(counters.preemption_s)
    solo = distribution(tally.solo.gaps)
    summary = Summary(
        workload=facts.workload,
        seed=facts.seed,
        scale=facts.scale,
        duration_s=tally.foreground.counted_s,
        contended_s=tally.background.counted_s,
        placement=facts.placement,
        controller=facts.controller,
        target_itl_ms=None if facts.target_s is None else facts.target_s * 1e3,
        itl_over_target=_over_target(tally.foreground),
        foreground=_class_summary(tally.foreground),
        background=_class_summary(tally.background),
        solo_itl_ms=SoloItl(p50=solo.p50, p99=solo.p99, count=solo.count),
        solo_ttft_ms=distribution(tally.solo.ttft),
        steps=counters.steps,
        updates=counters.updates,
        resets=counters.resets,
        scheduler_overhead_ms=Overhead(p50=plan.p50, p99=plan.p99),
        preemptions=Preemptions(
            count=counters.preemptions,
            latency_ms=Latency(p50=stop.p50, p99=stop.p99, max=stop.max),
            aborted_tokens=counters.aborted_tokens,
            wasted_fraction=_ratio(counters.aborted_tokens, counters.computed_tokens),
        ),
        backstops=counters.backstops,
        messages=list(facts.messages),
        unavailable={},
    )
    document = summary.model_dump(mode="json")
    document["unavailable"] = {name: _reason(name, facts) for name in _nulls(document)}
    return document


def _class_summary(tally: Tally) -> ClassSummary:
    return ClassSummary(
        requests=tally.requests,
        failed=tally.failed,
        cancelled=tally.cancelled,
        cached_prompt_tokens=tally.cached_tokens,
        pauses=tally.pauses,
        ttft_ms=distribution(tally.ttft),
        cached_ttft_ms=distribution(tally.cached_ttft),
        itl_ms=distribution(tally.gaps),
        contended_itl_ms=distribution(tally.contended),
        shown_itl_ms=distribution(tally.shown),
        tpot_ms=distribution(tally.tpot),
        e2el_ms=distribution(tally.e2el),
        output_tokens_per_s=_ratio(tally.output_tokens, tally.counted_s),
        prompt_tokens_per_s=_ratio(tally.prompt_tokens, tally.counted_s),
        finished_per_min=_ratio(60.0 * tally.complete, tally.counted_s),
        missed_deadlines=tally.missed_deadlines,
        late_tokens=_late(tally),
        lowered_pace=LoweredPace(requests=len(tally.lowered), tokens_per_s=min(tally.lowered, default=None)),
    )


def _late(tally: Tally) -> LateTokens:
    lateness, count = distribution(tally.lateness), len(tally.shown)
    return LateTokens(
        count=tally.late if count else None,
        share=_ratio(tally.late, count),
        p99_ms=lateness.p99,
        max_ms=lateness.max,
    )


def _over_target(tally: Tally) -> OverTarget:
    ratios = distribution(tally.over_target, scale=1.0)
    return OverTarget(p50=ratios.p50, p99=ratios.p99, max=ratios.max, count=ratios.count)


def _ratio(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None


def _nulls(value: object, name: str = "") -> Iterator[str]:
    """The dotted names of the nulls in nested dicts."""
    if value is None:
        yield name
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, f"{name}.{key}" if name else key)


_REASONS = {
    "target_itl_ms": "the controller has no target",
    "itl_over_target": "no foreground gap with a target saw background work",
    "ttft_ms": "no request got a first token",
    "cached_ttft_ms": "no prompt begins like an earlier one",
    "itl_ms": "no request got two tokens",
    "contended_itl_ms": "no gap between tokens saw background work",
    "shown_itl_ms": "no stream is paced",
    "late_tokens": "no stream is paced",
    "lowered_pace": "no pace had to be lowered",
    "tpot_ms": "no answer of two tokens or more was complete",
    "e2el_ms": "no answer was complete",
    "output_tokens_per_s": "no time was measured",
    "prompt_tokens_per_s": "no time was measured",
    "finished_per_min": "no time was measured",
    "solo_itl_ms": "no foreground gap lay wholly in a window without background work",
    "solo_ttft_ms": "no foreground request went from arrival to first token in a window without background work",
    "scheduler_overhead_ms": "no step was planned",
    "preemptions": "no step was interrupted",
}


def _reason(name: str, facts: RunFacts) -> str:
    """Why the figure of this dotted name is null."""
    first, *rest = name.split(".")
    if first in {member.value for member in Class}:
        if Class(first) not in facts.classes:
            return f"the workload has no {first} stream"
        first = rest[0]
    if name == "preemptions.wasted_fraction":
        return "no token was computed"
    return _REASONS[first]
