"""What a candidate changed against each control, over trials paired by seed, and whether that may be claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dlfp_edge.experiment.agreement import agreement
from dlfp_edge.experiment.gates import Gate
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import FEW_TURNS, background_per_s, contended, first_tokens_s, meets, seen_gaps
from dlfp_edge.experiment.trial_load import ENOUGH_GAPS
from dlfp_edge.measure.paired import paired, reductions
from dlfp_edge.measure.percentiles import Distribution, distribution
from dlfp_edge.measure.slo import Slo, attainment
from dlfp_edge.task import Class

FEW_SEEDS = 3

Outcome = Literal["better", "worse", "trade-off", "no claim", "reconnaissance", "void"]


class Change(BaseModel):
    """One metric. `values` are changes for the better in percent of the control's value, one a seed, with their mean
    and Student t 95% interval; `claim` is +1 or -1 where that interval lies wholly above or below zero, else 0, and
    where the mean reads 0.0%.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    values: list[float]
    mean: float | None
    low: float | None
    high: float | None
    claim: int
    text: str


class GateResult(BaseModel):
    """One gate of the workload. `passed` is None where it could not be judged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: str
    passed: bool | None


class Verdict(BaseModel):
    """The candidate against one control. `why` says what an outcome other than a claim comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    control: str
    outcome: Outcome
    seeds: list[int]
    changes: list[Change]
    gates: list[GateResult]
    why: list[str]


@dataclass(frozen=True, slots=True)
class _Metric:
    """`of` gives a trial's value; `lower` says whether less is better."""

    name: str
    of: Callable[[TrialRecord], float | None]
    lower: bool


def verdict(
    control: str,
    candidate_trials: Sequence[TrialRecord],
    control_trials: Sequence[TrialRecord],
    *,
    slo: Slo | None,
    ratios: Mapping[str, float | None],
    gates: Sequence[Gate],
    quick: bool,
    exact: bool,
    harness: str | None,
) -> Verdict:
    """Judge the candidate's trials against the control's.

    Both are held to one `slo`, and each arm's background rate is divided by its ratio. `harness` is what makes every
    verdict void.
    """
    pairs = _pairs(candidate_trials, control_trials)
    metrics = _metrics(pairs, slo, ratios)
    changes = [_change(metric, pairs) for metric in metrics]
    judged = [_judge(gate, metrics, pairs) for gate in gates]
    faults = _faults(pairs, exact=exact, harness=harness)
    doubts = _doubts(pairs, quick=quick)
    barred = _barred(candidate_trials, control_trials, pairs)
    outcome: Outcome = "void" if faults else "reconnaissance" if doubts else _outcome(changes, judged, barred)
    return Verdict(
        control=control,
        outcome=outcome,
        seeds=[mine.seed for mine, _ in pairs],
        changes=[change for change in changes if change.values],
        gates=judged,
        why=[*faults, *doubts, *barred],
    )


_Pair = tuple[TrialRecord, TrialRecord]


def _pairs(candidate: Sequence[TrialRecord], control: Sequence[TrialRecord]) -> list[_Pair]:
    """Trials that count, the candidate's and the control's of one seed."""
    theirs = {record.seed: record for record in control if record.counts and not record.repeat}
    mine = [record for record in candidate if record.counts and not record.repeat]
    return [(record, theirs[record.seed]) for record in mine if record.seed in theirs]


def _metrics(pairs: Sequence[_Pair], slo: Slo | None, ratios: Mapping[str, float | None]) -> list[_Metric]:
    def of_seen(name: str) -> Callable[[TrialRecord], float | None]:
        return lambda record: getattr(distribution(seen_gaps(record)), name)

    def first(name: str) -> Callable[[TrialRecord], float | None]:
        return lambda record: getattr(_ttft(record), name)

    few = any(_ttft(record).count < FEW_TURNS for pair in pairs for record in pair)
    turns = [_Metric("ttft_p90", first("p90"), True), _Metric("ttft_max", first("max"), True)]
    return [
        _Metric("itl_p99", of_seen("p99"), True),
        _Metric("itl_max", of_seen("max"), True),
        *(turns if few else [_Metric("ttft_p99", first("p99"), True), *turns]),
        _Metric("e2el_p50", lambda record: _e2el(record).p50, True),
        _Metric("e2el_p99", lambda record: _e2el(record).p99, True),
        _Metric("goodput", lambda record: _goodput(record, slo), False),
        _Metric("background", lambda record: background_per_s(record, ratios.get(record.arm)), False),
    ]


METRICS = (
    "itl_p99",
    "itl_max",
    "ttft_p90",
    "ttft_p99",
    "ttft_max",
    "e2el_p50",
    "e2el_p99",
    "goodput",
    "background",
)
"""The metrics whose changes a verdict can have."""

_CLAIMED = ("itl_p99", "ttft_p90", "e2el_p50", "goodput", "background")
"""The metrics an outcome rests on: one a question, so that no question counts twice."""


def _change(metric: _Metric, pairs: Sequence[_Pair]) -> Change:
    """Nothing is claimed where a pair has no value: which have one may hang on what they are."""
    falls = reductions([metric.of(theirs) for _, theirs in pairs], [metric.of(mine) for mine, _ in pairs])
    values = falls if metric.lower else [-fall for fall in falls]
    interval = paired(values)
    shown = interval.claims and interval.mean is not None and round(abs(interval.mean), 1) > 0
    whole = len(values) == len(pairs)
    claim = 0 if not (shown and whole) or interval.mean is None else 1 if interval.mean > 0 else -1
    return Change(
        metric=metric.name,
        values=values,
        mean=interval.mean,
        low=interval.low,
        high=interval.high,
        claim=claim,
        text=interval.text() if whole else f"no claim ({len(values)} of {len(pairs)} pairs)",
    )


def _judge(gate: Gate, metrics: Sequence[_Metric], pairs: Sequence[_Pair]) -> GateResult:
    """A gate holds where every trial keeps it and, for a reduction, the interval lies above zero; one pair has none."""
    metric = next((metric for metric in metrics if metric.name == gate.metric), None)
    values = [] if metric is None else [(metric.of(theirs), metric.of(mine)) for mine, theirs in pairs]
    few = gate.least_reduction is not None and len(values) < 2
    if metric is None or few or not values or any(value is None for pair in values for value in pair):
        return GateResult(gate=gate.text(), passed=None)
    kept = all(gate.passes(old, new) for old, new in values)
    claimed = gate.least_reduction is None or _change(metric, pairs).claim == 1
    return GateResult(gate=gate.text(), passed=kept and claimed)


def _doubts(pairs: Sequence[_Pair], *, quick: bool) -> list[str]:
    """What makes a comparison reconnaissance."""
    doubts = ["a quick run"] if quick else []
    if len(pairs) < FEW_SEEDS:
        doubts.append(f"seeds: {len(pairs)} of {FEW_SEEDS}")
    fewest = min((_gaps(record) for pair in pairs for record in pair), default=ENOUGH_GAPS)
    if fewest < ENOUGH_GAPS:
        doubts.append(f"contended gaps: {fewest} of {ENOUGH_GAPS} in a trial")
    return doubts


def _faults(pairs: Sequence[_Pair], *, exact: bool, harness: str | None) -> list[str]:
    faults = [] if harness is None else [f"the harness is void: {harness}"]
    for mine, theirs in pairs:
        prompts = {request.label: request.prompt for request in theirs.requests}
        if any(prompts.get(request.label, request.prompt) != request.prompt for request in mine.requests):
            faults.append(f"seed {mine.seed}: the two were not asked the same")
        if exact:
            agreed = agreement([mine], [theirs])
            if agreed is not None and agreed.alike < agreed.answers:
                faults.append(f"seed {mine.seed}: {agreed.alike} of {agreed.answers} answers alike under --exact")
    return faults


def _outcome(changes: Sequence[Change], gates: Sequence[GateResult], barred: Sequence[str]) -> Outcome:
    claims = {change.claim for change in changes if change.metric in _CLAIMED}
    if {1, -1} <= claims:
        return "trade-off"
    if -1 in claims:
        return "worse"
    return "better" if 1 in claims and not barred and all(gate.passed for gate in gates) else "no claim"


def _barred(candidate: Sequence[TrialRecord], control: Sequence[TrialRecord], pairs: Sequence[_Pair]) -> list[str]:
    """Why the candidate cannot win: it failed where the control did not."""
    why = []
    if any(_failures(mine) > _failures(theirs) for mine, theirs in pairs):
        why.append("the candidate added failed requests: it cannot win")
    fine = {record.seed for record in control if record.counts}
    lost = sorted({record.seed for record in candidate if not record.counts and not record.repeat} & fine)
    if lost:
        why.append(f"the candidate's trials of seeds {', '.join(map(str, lost))} do not count: it cannot win")
    return why


def _failures(record: TrialRecord) -> int:
    return sum(request.failed for request in record.requests)


def _gaps(record: TrialRecord) -> int:
    return sum(len(contended(request)) for request in record.of_class(Class.FOREGROUND))


def _ttft(record: TrialRecord) -> Distribution:
    return distribution(first_tokens_s(record.of_class(Class.FOREGROUND)))


def _e2el(record: TrialRecord) -> Distribution:
    return distribution(r.e2el_s for r in record.of_class(Class.FOREGROUND) if r.e2el_s is not None)


def _goodput(record: TrialRecord, slo: Slo | None) -> float | None:
    if slo is None:
        return None
    return attainment(meets(request, slo) for request in record.of_class(Class.FOREGROUND)).goodput(record.duration_s)
