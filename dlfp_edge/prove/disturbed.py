"""What a trial was like once another program had come: gaps and background from then on, to the trial's end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.prove.scored import Scored, mean_ratio
from dlfp_edge.task import Class

SETTLING_GAPS = 10
"""The first gaps in which nobody can know yet that somebody came."""


def disturbed_s(record: TrialRecord) -> float | None:
    """How long another program ran before the trial's end; None where none did."""
    told = (record.condition or {}).get("busy_s")
    return None if told is None else float(told)


def quiet_gaps(record: TrialRecord) -> list[float]:
    """The foreground's gaps before another program came, in seconds."""
    since_s = disturbed_s(record)
    return [gap_s for left_s, gap_s in _gaps(record, contended=False) if since_s is None or left_s > since_s]


def p99_over_bound(scored: Scored) -> float | None:
    """P99 of the default's gaps from the tenth on, over the longer of the target and the P99 of decodes alone then."""
    mine = _p99_s(scored.own, contended=True)
    alone = _p99_s(scored.of(scored.solo), contended=False)
    if mine is None or alone is None or scored.quiet_target_s is None:
        return None
    return mine / max(alone, scored.quiet_target_s)


def background_over(scored: Scored) -> float | None:
    """Background over that of the best fixed setting meanwhile, the mean over the seeds."""
    mine, theirs = scored.disturbed.get(scored.candidate, {}), scored.disturbed.get(scored.best or "", {})
    return mean_ratio((rate, theirs.get(seed)) for seed, rate in mine.items())


def background_per_s(record: TrialRecord, steps: Iterable[Mapping[str, Any]]) -> float | None:
    """Background prompt tokens a second beside another program, from the lines of the trial's steps."""
    since_s, steps = disturbed_s(record), list(steps)
    if not since_s or not steps:
        return None
    began = max(step["completed"] for step in steps) - since_s
    return sum(_tokens(step) * _share_after(began, step) for step in steps) / since_s


def _tokens(step: Mapping[str, Any]) -> int:
    background = (s for s in step["segments"] if s["task_class"] == Class.BACKGROUND.value and s["kind"] == "prefill")
    return sum(int(segment["consumed"]) for segment in background)


def _share_after(moment: float, step: Mapping[str, Any]) -> float:
    took_s = max(step["completed"] - step["submitted"], 1e-9)
    return float(min(1.0, max(0.0, (step["completed"] - moment) / took_s)))


def _p99_s(records: Sequence[TrialRecord], *, contended: bool) -> float | None:
    gaps: list[float] = []
    for record in records:
        since_s = disturbed_s(record)
        if since_s is None:
            return None
        after = sorted((-left_s, gap_s) for left_s, gap_s in _gaps(record, contended=contended) if left_s <= since_s)
        gaps += [gap_s for _, gap_s in after[SETTLING_GAPS:]]
    return distribution(gaps, scale=1.0).p99


def _gaps(record: TrialRecord, *, contended: bool) -> Iterator[tuple[float, float]]:
    """Each foreground gap, and how long before the trial's end it ended; of `contended` ones, only those."""
    for request in record.of_class(Class.FOREGROUND):
        left_s = request.age_s - (request.ttft_s or 0.0)
        for gap_s, beside in zip(request.gaps_s, request.contended, strict=True):
            left_s -= gap_s
            if beside or not contended:
                yield left_s, gap_s
