"""What the trials of a comparison come to: a row for each arm, verdicts over paired trials, background at equal P99."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.experiment.agreement import Agreement, agreement
from dlfp_edge.experiment.arms import Arm, EngineOpener
from dlfp_edge.experiment.machine import NO_SAMPLER
from dlfp_edge.experiment.plan import Point
from dlfp_edge.experiment.record import Request, TrialRecord
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.measure.interference import over_solo
from dlfp_edge.measure.latency import LATE_S
from dlfp_edge.measure.percentiles import Distribution, distribution
from dlfp_edge.measure.slo import Slo, attainment, relative_slo
from dlfp_edge.task import Class

FEW_TURNS = 100
"""Fewer first tokens than these have no P99 worth the name."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Over(_Part):
    """Gaps against the stream's solo median: shares above multiples of it, and what they exceed it by, in seconds."""

    over_2x: float | None
    over_5x: float | None
    over_10x: float | None
    excess_s: float | None
    excess_per_1000_s: float | None


class Row(_Part):
    """One arm over its trials that count. Times in ms; None where nothing was measured.

    `itl` are the contended gaps (where there is no background, all), `shown` those a paced stream's reader saw
    meanwhile, `seen` either, as each stream has it. `late_share` of the shown ones ended more than 15 ms after their
    token was due, `lateness` is how long after. `ttft` has requests that still waited at a trial's end with their wait
    so far (`first_tokens_s`). `background_normalised` is the background rate of a target with kernels of its own
    times what the candidate reads alone over what it does. `merged_answers` have no gaps: their server sent several
    tokens at once.
    """

    setting: str
    solo: str
    trials: int
    void: int
    failed_trials: int
    seconds: float
    gaps: int
    itl: Distribution
    shown: Distribution
    seen: Distribution
    late_share: float | None = None
    lateness: Distribution = Field(default_factory=Distribution)
    all_itl: Distribution
    ttft: Distribution
    tpot: Distribution
    e2el: Distribution
    over_solo: Over
    streams: dict[str, Over]
    slo_share: float | None
    goodput_per_s: float | None
    slo: str | None
    output_tokens_per_s: float | None
    background_tokens_per_s: float | None
    background_normalised: float | None
    documents_per_min: float | None
    prefill_ratio: float | None = Field(description="prompt tokens/s read alone, of the candidate's")
    decode_ratio: float | None = Field(description="solo median gap, of the candidate's")
    requests: int
    http_failures: int
    engine_failures: int
    missed_deadlines: int
    merged_answers: int
    agreement: Agreement | None
    own_cpus: float | None
    foreign_cpus: float | None
    steal_cpus: float | None
    memory_bytes: int | None
    energy_j_per_token: float | None = None
    unavailable: dict[str, str] = Field(default_factory=dict)


class EqualP99(_Part):
    """Background at the candidate's P99, read off the line between two points of a sweep.

    `background` and `documents_per_min` are None where no two points stand around that P99; `ratio` is the candidate's
    background over it, of normalised rates.
    """

    sweep: str
    background: float | None
    ratio: float | None
    reason: str | None = None


def contended(request: Request) -> list[float]:
    """The gaps a trial is about, in seconds: those while background work existed."""
    return [gap for gap, beside in zip(request.gaps_s, request.contended, strict=True) if beside]


def shown(request: Request) -> list[float]:
    """The gaps a paced stream's reader saw while background work existed, in seconds."""
    return [gap for gap, beside in zip(request.shown_s, request.contended, strict=False) if beside]


def lateness(request: Request) -> list[float]:
    """How long after it was due each token of a paced stream was shown while background work existed, in seconds."""
    return [late_s for late_s, beside in zip(request.late_s, request.contended, strict=False) if beside]


def seen(request: Request) -> list[float]:
    """The gaps its reader saw, in seconds: shown ones where the stream is paced."""
    return shown(request) if request.paced else contended(request)


def seen_gaps(record: TrialRecord) -> list[float]:
    """The gaps that all readers of a trial saw, in seconds."""
    return [gap for request in record.of_class(Class.FOREGROUND) for gap in seen(request)]


def first_tokens_s(requests: Iterable[Request]) -> list[float]:
    """Times to the first token, in seconds.

    One that was not there at a trial's end counts with its wait so far, where that is longer than the usual: left out,
    the longest waits would be those that nobody sees.
    """
    requests = list(requests)
    known = [request.ttft_s for request in requests if request.ttft_s is not None]
    usual = median(known) if known else 0.0
    return known + [r.age_s for r in requests if r.cut and r.ttft_s is None and r.age_s > usual]


def point_of(record: TrialRecord, ratio: float | None) -> Point | None:
    """The trial's place on the frontier, background normalised by `ratio`; None where it has none."""
    gaps, background = seen_gaps(record), background_per_s(record, ratio)
    return Point(record.arm, float(np.percentile(gaps, 99)), background) if gaps and background is not None else None


def background_per_s(record: TrialRecord, ratio: float | None) -> float | None:
    """Background prompt tokens done per second, normalised by `ratio`."""
    if record.background_tokens is None or not record.duration_s or not ratio:
        return None
    return record.background_tokens / record.duration_s / ratio


def ratios(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> dict[str, float | None]:
    """What background rates of each arm are divided by: 1 for our engines, which all have the candidate's kernels; for
    others what they read alone over what the candidate's family does. None where that is not known.
    """
    solo = {arm.label: arm.solo for arm in arms}
    alone = {label: _isolated([r for r in records if r.arm == label]) for label in solo.values()}
    return {
        arm.label: 1.0 if isinstance(arm.opener, EngineOpener) else _ratio(alone[arm.solo], alone[solo[candidate]])
        for arm in arms
    }


def rows(
    arms: Sequence[Arm], records: Sequence[TrialRecord], workload: Workload, candidate: str, baseline: str | None
) -> list[Row]:
    """A row for each arm that was tried."""
    tried = {arm.label: [r for r in records if r.arm == arm.label] for arm in arms}
    usual = tried[next(arm.solo for arm in arms if arm.label == candidate)]
    slo, reads = slo_of(workload, usual), ratios(arms, records, candidate)
    others = tried.get(baseline, []) if baseline else []
    return [
        _row(arm, tried[arm.label], tried[arm.solo], usual, slo, reads[arm.label], others)
        for arm in arms
        if tried[arm.label]
    ]


def _row(
    arm: Arm,
    records: Sequence[TrialRecord],
    solo: Sequence[TrialRecord],
    usual: Sequence[TrialRecord],
    slo: Slo | None,
    ratio: float | None,
    baseline: Sequence[TrialRecord],
) -> Row:
    counting = [r for r in records if r.counts and not r.repeat]
    asked = [request for r in counting for request in r.requests]
    foreground = [request for request in asked if request.task_class is Class.FOREGROUND]
    seconds = sum(r.duration_s for r in counting)
    gaps = {
        stream.name: [gap for r in foreground if r.stream == stream.name for gap in contended(r)]
        for stream in arm.workload.of_class(Class.FOREGROUND)
    }
    over = over_solo(gaps, solo_medians(solo))
    late = [late_s for request in foreground for late_s in lateness(request)]
    met = attainment(meets(request, slo) for request in foreground) if slo is not None else None
    tokens = _total(r.background_tokens for r in counting)
    per_s = None if tokens is None else _ratio(tokens, seconds)
    failed = [request.failure for r in records for request in r.requests if request.failed]
    return Row(
        setting=arm.label,
        solo=arm.solo,
        trials=len(counting),
        void=sum(r.status == "void" for r in records),
        failed_trials=sum(r.status == "failed" for r in records),
        seconds=seconds,
        gaps=sum(map(len, gaps.values())),
        itl=distribution(gap for values in gaps.values() for gap in values),
        shown=distribution(gap for request in foreground for gap in shown(request)),
        seen=distribution(gap for request in foreground for gap in seen(request)),
        late_share=_ratio(sum(late_s > LATE_S for late_s in late), len(late)),
        lateness=distribution(late),
        all_itl=distribution(gap for request in foreground for gap in request.gaps_s),
        ttft=distribution(first_tokens_s(foreground)),
        tpot=distribution(r.tpot_s for r in foreground if r.tpot_s is not None),
        e2el=distribution(r.e2el_s for r in foreground if r.e2el_s is not None),
        over_solo=_over(over.pooled),
        streams={name: _over(figures) for name, figures in over.streams.items()},
        slo_share=None if met is None else met.share,
        goodput_per_s=None if met is None else met.goodput(seconds),
        slo=None if slo is None else f"{slo.source}: {describe_slo(slo)}",
        output_tokens_per_s=_ratio(sum(len(r.gaps_s) + (r.ttft_s is not None) for r in foreground), seconds),
        background_tokens_per_s=per_s,
        background_normalised=_ratio(per_s, ratio),
        documents_per_min=None
        if per_s is None
        else _ratio(60.0 * sum(r.complete for r in asked if r.task_class is Class.BACKGROUND), seconds),
        prefill_ratio=_ratio(_isolated(solo), _isolated(usual)),
        decode_ratio=_ratio(_decode_s(solo), _decode_s(usual)),
        requests=len(foreground),
        http_failures=failed.count("http"),
        engine_failures=failed.count("engine"),
        missed_deadlines=failed.count("deadline"),
        merged_answers=sum(request.merged for request in foreground),
        agreement=agreement(records, baseline),
        own_cpus=_machine(counting, "own_cpus"),
        foreign_cpus=_machine(counting, "foreign_cpus"),
        steal_cpus=_machine(counting, "steal_cpus"),
        memory_bytes=max((int((r.machine or {}).get("memory_bytes") or 0) for r in counting), default=0) or None,
        unavailable={"energy_j_per_token": NO_SAMPLER},
    )


def solo_medians(solo: Sequence[TrialRecord]) -> dict[str, float | None]:
    """Each foreground stream's median gap alone, in seconds."""
    gaps: dict[str, list[float]] = {}
    for record in solo:
        if record.counts:
            for request in record.of_class(Class.FOREGROUND):
                gaps.setdefault(request.stream, []).extend(request.gaps_s)
    return {name: median(values) if values else None for name, values in gaps.items()}


def slo_of(workload: Workload, solo: Sequence[TrialRecord]) -> Slo | None:
    """The workload's objectives, or those relative to what the target does alone; None where that is not known."""
    if workload.slo is not None:
        return workload.slo
    first = [r.ttft_s for record in solo if record.counts for r in record.requests if r.ttft_s is not None]
    gap_s = _decode_s(solo)
    if not first or gap_s is None:
        return None
    longest = max((s.answer_length(s.longest) for s in workload.of_class(Class.FOREGROUND)), default=1)
    return relative_slo(solo_ttft_s=median(first), solo_gap_s=gap_s, max_tokens=longest)


def meets(request: Request, slo: Slo) -> bool | None:
    """Whether a request met its objectives; one that failed did not. None of one cut while it still could."""
    if request.cut:
        late = request.age_s > slo.e2el_s or (request.ttft_s or request.age_s) > slo.ttft_s
        return False if late else None
    return request.complete and slo.met(request.ttft_s, request.tpot_s, request.e2el_s)


def describe_slo(slo: Slo) -> str:
    """An SLO in a few words."""
    return f"TTFT {slo.ttft_s:.2g} s, mean ITL {1e3 * slo.itl_s:.0f} ms, E2EL {slo.e2el_s:.2g} s"


def equal_p99(rows_: Sequence[Row], sweeps: Mapping[str, Sequence[str]], candidate: str) -> list[EqualP99]:
    """For each sweep its background at the candidate's P99, interpolated over the logarithm of P99."""
    by_name = {row.setting: row for row in rows_}
    mine = by_name.get(candidate)
    if mine is None or mine.seen.p99 is None:
        return []
    found = []
    for sweep, labels in sweeps.items():
        points = sorted(
            (row.seen.p99, row.background_normalised)
            for label in labels
            if (row := by_name.get(label)) is not None
            and row.seen.p99 is not None
            and row.background_normalised is not None
        )
        found.append(_interpolated(sweep, points, mine))
    return found


def _interpolated(sweep: str, points: Sequence[tuple[float, float]], mine: Row) -> EqualP99:
    p99 = mine.seen.p99
    assert p99 is not None
    if not points:
        return EqualP99(sweep=sweep, background=None, ratio=None, reason="no point was measured")
    if p99 < points[0][0]:
        return EqualP99(
            sweep=sweep, background=None, ratio=None, reason=f"its P99 is never below {points[0][0]:.0f} ms"
        )
    if p99 > points[-1][0]:
        return EqualP99(
            sweep=sweep, background=None, ratio=None, reason=f"its P99 is never above {points[-1][0]:.0f} ms"
        )
    background = float(np.interp(math.log(p99), [math.log(x) for x, _ in points], [y for _, y in points]))
    return EqualP99(sweep=sweep, background=background, ratio=_ratio(mine.background_normalised, background))


def _over(figures: object) -> Over:
    return Over(**{name: getattr(figures, name) for name in Over.model_fields})


def _isolated(solo: Sequence[TrialRecord]) -> float | None:
    rates = [r.isolated_tokens_per_s for r in solo if r.counts and r.isolated_tokens_per_s]
    return median(rates) if rates else None


def _decode_s(solo: Sequence[TrialRecord]) -> float | None:
    known = [value for value in solo_medians(solo).values() if value]
    return median(known) if known else None


def _machine(records: Sequence[TrialRecord], name: str) -> float | None:
    values = [float(value) for r in records if r.machine and (value := r.machine.get(name)) is not None]
    return fmean(values) if values else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ratio(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None
