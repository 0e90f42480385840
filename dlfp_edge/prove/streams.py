"""What each stream of readers got, where pooled figures could hide one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlfp_edge.experiment.record import Request, TrialRecord
from dlfp_edge.experiment.results import first_tokens_s
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.prove.scored import Scored
from dlfp_edge.task import Class

STARVED = 10.0
"""Times the longest wait for a token alone, by stream: no answer is to wait so long for any."""


def ttft_over_solo(scored: Scored) -> float | None:
    """P90 of the time to the first token over that alone, the most of any stream."""
    mine, alone = _by_stream(scored.own), _by_stream(scored.of(scored.solo))
    ratios = []
    for stream, requests in mine.items():
        own_s, solo_s = _first_p90(requests), _first_p90(alone.get(stream, ()))
        if own_s is None or not solo_s:
            return None
        ratios.append(own_s / solo_s)
    return max(ratios, default=None)


def starved(scored: Scored) -> float | None:
    """How many answers failed, or waited `STARVED` times as long for a token as any of their stream did alone."""
    alone = {
        stream: max(map(_longest_wait_s, requests)) for stream, requests in _by_stream(scored.of(scored.solo)).items()
    }
    mine = _by_stream(scored.own)
    if not mine or not mine.keys() <= alone.keys():
        return None
    return float(
        sum(
            request.failed or _longest_wait_s(request) > STARVED * alone[stream]
            for stream, requests in mine.items()
            for request in requests
        )
    )


def _by_stream(records: Sequence[TrialRecord]) -> Mapping[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for record in records:
        for request in record.of_class(Class.FOREGROUND):
            found.setdefault(request.stream, []).append(request)
    return found


def _first_p90(requests: Sequence[Request]) -> float | None:
    return distribution(first_tokens_s(requests)).p90


def _longest_wait_s(request: Request) -> float:
    """For its first token, so far where there was none, or for a later one."""
    return max([request.age_s if request.ttft_s is None else request.ttft_s, *request.gaps_s])
