"""Service level objectives: which requests were answered well enough, and how many of those a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlfp_edge.measure.latency import e2el_s, tpot_s, ttft_s
from dlfp_edge.task import Finish, TaskRecord

RELATIVE = "relative to solo, ours"
"""The source of objectives that are multiples of what the device does alone."""

_TIMES = 2.0
_TTFT_SLACK_S = 0.25


@dataclass(frozen=True, slots=True)
class Slo:
    """The most that a request may take, in seconds; `source` says where the figures come from.

    `itl_s` bounds the mean inter-token latency of the request (what `latency.tpot_s` gives), as in the paper, so one
    long gap alone does not miss it. `ttft_s` and `e2el_s` count from the scheduled arrival.
    """

    ttft_s: float
    itl_s: float
    e2el_s: float
    source: str

    def met(self, record: TaskRecord) -> bool:
        """Whether the request got its whole answer within all three; an answer of one token has no ITL to miss."""
        first, mean, whole = ttft_s(record), tpot_s(record), e2el_s(record)
        if first is None or whole is None:  # `e2el_s` is that of a complete answer only
            return False
        return first <= self.ttft_s and (mean is None or mean <= self.itl_s) and whole <= self.e2el_s


PRESETS = {"agent": Slo(ttft_s=5.0, itl_s=0.035, e2el_s=14.0, source="the paper's Agent")}
"""Objectives by the name a workload file gives them."""


def relative_slo(*, solo_ttft_s: float, solo_gap_s: float, max_tokens: int) -> Slo:
    """Objectives for a device nobody has set any for, from its solo medians of TTFT and of gaps, in seconds.

    The E2EL bound is that of the longest answer, `max_tokens`: what keeps the other two keeps it as well.
    """
    first, gap = _TIMES * solo_ttft_s + _TTFT_SLACK_S, _TIMES * solo_gap_s
    return Slo(ttft_s=first, itl_s=gap, e2el_s=first + (max_tokens - 1) * gap, source=RELATIVE)


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many requests met an SLO. `share` is `met` of `requests`, 0 to 1; None without a request.

    A request that failed, or ended without its tokens, missed. One that was cancelled (as the end of a run does)
    neither met nor missed and is no part of `requests`; `cancelled` counts those.
    """

    met: int
    missed: int
    cancelled: int

    @property
    def requests(self) -> int:
        """Requests that met or missed."""
        return self.met + self.missed

    @property
    def share(self) -> float | None:
        """The share that met."""
        return self.met / self.requests if self.requests else None

    def goodput(self, measured_s: float) -> float | None:
        """Requests that met the SLO per second of measured time; None where no time was measured."""
        return self.met / measured_s if measured_s > 0 else None


def attainment(records: Iterable[TaskRecord], slo: Slo) -> Attainment:
    """How many of the ended requests met the SLO."""
    met = missed = cancelled = 0
    for record in records:
        if record.finish is Finish.CANCELLED:
            cancelled += 1
        elif slo.met(record):
            met += 1
        else:
            missed += 1
    return Attainment(met, missed, cancelled)
