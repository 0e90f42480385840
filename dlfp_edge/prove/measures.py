"""The measures that bars name, each computed from the trials a cell is scored by.

Gaps are contended ones, pooled over the seeds. Ratios of rates are the mean over the seeds of each seed's ratio, since
its trials were asked the same. None where nothing was measured. Infinite where a bar holds since there is nothing to
hold it against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import background_per_s, contended, first_tokens_s, shown
from dlfp_edge.measure.latency import LATE_S
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.prove.disturbed import background_over, p99_over_bound
from dlfp_edge.prove.scored import Scored, mean_ratio
from dlfp_edge.prove.servers import over_pairs, over_servers
from dlfp_edge.prove.streams import starved, ttft_over_solo
from dlfp_edge.task import Class

UNLIMITED = "shared/unlimited"


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure with its meaning in a line."""

    of: Callable[[Scored], float | None]
    what: str


def _gap_p99(records: Sequence[TrialRecord]) -> float | None:
    return distribution(g for t in records for r in t.of_class(Class.FOREGROUND) for g in contended(r)).p99


def _ttft_p90(records: Sequence[TrialRecord]) -> float | None:
    return distribution(first_tokens_s(r for t in records for r in t.of_class(Class.FOREGROUND))).p90


def _p99_over_solo(scored: Scored) -> float | None:
    mine, solo = _gap_p99(scored.own), _gap_p99(scored.of(scored.solo))
    return mine / solo if mine is not None and solo else None


def _ttft_over_solo(scored: Scored) -> float | None:
    mine, solo = _ttft_p90(scored.own), _ttft_p90(scored.of(scored.solo))
    return mine - solo if mine is not None and solo is not None else None


def _lateness(scored: Scored) -> list[float]:
    """By how many seconds each shown token of paced streams came after 1/pace from the one before."""
    return [
        gap - 1.0 / scored.paces[request.stream]
        for record in scored.own
        for request in record.of_class(Class.FOREGROUND)
        if request.paced and request.stream in scored.paces
        for gap in shown(request)
    ]


def _late_share(scored: Scored) -> float | None:
    late = _lateness(scored)
    return sum(by_s > LATE_S for by_s in late) / len(late) if late else None


def _max_late(scored: Scored) -> float | None:
    late = _lateness(scored)
    return 1000.0 * max(0.0, max(late)) if late else None


def _over_target(scored: Scored) -> list[float]:
    return [multiple for record in scored.own for multiple in record.over_target]


def _p99_over_target(scored: Scored) -> float | None:
    return distribution(_over_target(scored), scale=1.0).p99


def _share_above(times: float, scored: Scored) -> float | None:
    found = _over_target(scored)
    return sum(multiple > times for multiple in found) / len(found) if found else None


def _background(record: TrialRecord, scored: Scored) -> float | None:
    return background_per_s(record, scored.ratios.get(record.arm))


def _documents(record: TrialRecord, scored: Scored) -> float | None:
    ratio = scored.ratios.get(record.arm)
    if not record.duration_s or not ratio:
        return None
    return 60.0 * sum(request.complete for request in record.of_class(Class.BACKGROUND)) / record.duration_s / ratio


def _throttled_per_s(records: Sequence[TrialRecord]) -> float | None:
    told = [record.condition or {} for record in records]
    if not told or not all(each.get("throttled_in_s") for each in told):
        return None
    return sum(float(each["throttled"]) for each in told) / sum(float(each["throttled_in_s"]) for each in told)


def _throttled_over_solo(scored: Scored) -> float | None:
    mine, solo = _throttled_per_s(scored.own), _throttled_per_s(scored.of(scored.solo))
    return mine - solo if mine is not None and solo is not None else None


Rate = Callable[[TrialRecord, Scored], float | None]


def _over(rate: Rate, control: Callable[[Scored], str | None], scored: Scored) -> float | None:
    """The candidate's rate over a control's, the mean over the seeds; None unless every seed has both."""
    theirs = scored.trials.get(control(scored) or "", {})
    return mean_ratio(
        (rate(mine, scored), rate(theirs[mine.seed], scored) if mine.seed in theirs else None) for mine in scored.own
    )


def _over_tighter(scored: Scored) -> float | None:
    """As `_over`, against the candidate's own trials with a tighter target: both have the same kernels."""
    theirs = scored.tighter
    return mean_ratio(
        (background_per_s(mine, 1.0), background_per_s(theirs[mine.seed], 1.0) if mine.seed in theirs else None)
        for mine in scored.own
    )


def _best(scored: Scored) -> str | None:
    return scored.best


def _unlimited(scored: Scored) -> str | None:
    return UNLIMITED


MEASURES: Mapping[str, Measure] = {
    "p99_over_solo": Measure(_p99_over_solo, "P99 of gaps over that of the foreground alone"),
    "ttft_over_solo_ms": Measure(_ttft_over_solo, "P90 of the time to the first token, less that alone, in ms"),
    "late_share": Measure(_late_share, "share of paced tokens shown 15 ms or more after their time"),
    "max_late_ms": Measure(_max_late, "how late the latest paced token was shown, in ms"),
    "p99_over_target": Measure(_p99_over_target, "P99 of gaps over the target in force"),
    "share_above_1.5T": Measure(partial(_share_above, 1.5), "share of gaps above 1.5 times the target in force"),
    "share_above_2T": Measure(partial(_share_above, 2.0), "share of gaps above twice the target in force"),
    "background_over_unlimited": Measure(
        partial(_over, _background, _unlimited), f"background tokens/s over those of {UNLIMITED}"
    ),
    "background_over_tighter": Measure(
        _over_tighter, "background tokens/s over those of the cell with a tighter target"
    ),
    "documents_over_unlimited": Measure(
        partial(_over, _documents, _unlimited), f"background requests finished over those of {UNLIMITED}"
    ),
    "background_over_best_fixed": Measure(
        partial(_over, _background, _best), "background tokens/s over those of the best fixed setting"
    ),
    "documents_over_best_fixed": Measure(
        partial(_over, _documents, _best), "background requests finished over those of the best fixed setting"
    ),
    "documents_over_servers": Measure(
        over_servers, "background requests finished over those of the best llama-server that is as smooth"
    ),
    "normalised_over_servers": Measure(
        partial(over_servers, normalised=True), "the same, of what each reads alone on its own kernels"
    ),
    "documents_over_pairs": Measure(
        over_pairs, "background requests finished over those of the best pair of servers whose P99 is not better"
    ),
    "worst_stream_ttft_over_solo": Measure(
        ttft_over_solo, "P90 of the time to the first token over that alone, of the stream where that is most"
    ),
    "starved": Measure(starved, "answers that failed, or waited ten times as long as any alone for a token"),
    "throttled_per_s_over_solo": Measure(
        _throttled_over_solo, "how often a second the quota stopped us, less that of the foreground alone"
    ),
    "disturbed_p99_over_bound": Measure(
        p99_over_bound,
        "from the tenth gap on beside another program: P99 over that alone there, or the target if longer",
    ),
    "disturbed_background_over_best": Measure(
        background_over, "background tokens/s beside another program over those of the best fixed setting"
    ),
}
