"""The documents of the default held against those of llama-server, where that is as smooth, and of pairs of servers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import seen_gaps
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.prove.scored import Scored
from dlfp_edge.task import Class

PAIR = "llama-server-pair"
AS_SMOOTH = 1.05
"""A server whose P99, of the gaps its reader sees, is at most so many times the default's is as smooth."""


def over_servers(scored: Scored, *, normalised: bool = False) -> float | None:
    """Documents over those of the best single server that is as smooth; infinite where none is.

    `normalised` divides each by what its kernels read alone. None where a server has no figures.
    """
    labels = [label for label in scored.peers if not label.startswith(PAIR)]
    return _least(scored, labels, most=AS_SMOOTH, normalised=normalised)


def over_pairs(scored: Scored) -> float | None:
    """Documents over those of the best pair whose P99 is not better; infinite where each one's is."""
    return _least(scored, [label for label in scored.peers if label.startswith(PAIR)], least=1.0)


def _least(
    scored: Scored, labels: Sequence[str], *, least: float = 0.0, most: float = math.inf, normalised: bool = False
) -> float | None:
    """The smallest ratio to arms whose P99 is from `least` to `most` times the default's."""
    mine_s, mine = _p99_s(scored.own), _documents_per_s(scored, scored.candidate, normalised=normalised)
    places = [(_p99_s(scored.of(each)), _documents_per_s(scored, each, normalised=normalised)) for each in labels]
    if not places or not mine_s or mine is None:
        return None
    ratios = [math.inf]
    for p99_s, documents in places:
        if p99_s is None or documents is None:
            return None
        if least * mine_s <= p99_s <= most * mine_s and documents:
            ratios.append(mine / documents)
    return min(ratios)


def _p99_s(records: Sequence[TrialRecord]) -> float | None:
    return distribution((gap for record in records for gap in seen_gaps(record)), scale=1.0).p99


def _documents_per_s(scored: Scored, arm: str, *, normalised: bool) -> float | None:
    """Over all its seeds together: in one of them a slow server may finish none."""
    records, ratio = scored.of(arm), scored.ratios.get(arm) if normalised else 1.0
    seconds = sum(record.duration_s for record in records)
    if not seconds or not ratio or len(records) < len(scored.own):
        return None
    return (
        sum(request.complete for record in records for request in record.of_class(Class.BACKGROUND)) / seconds / ratio
    )
