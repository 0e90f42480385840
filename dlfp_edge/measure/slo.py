"""Service level objectives: which requests were answered well enough, and how many of those a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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

    def met(self, ttft_s: float | None, itl_s: float | None, e2el_s: float | None) -> bool:
        """Whether a whole answer kept all three; without `itl_s` it has one token, and no ITL to miss."""
        if ttft_s is None or e2el_s is None:
            return False
        return ttft_s <= self.ttft_s and (itl_s is None or itl_s <= self.itl_s) and e2el_s <= self.e2el_s


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
    """How many requests met an SLO. `share` is `met` of `requests`, 0 to 1; None without a request."""

    met: int
    requests: int

    @property
    def share(self) -> float | None:
        """The share that met."""
        return self.met / self.requests if self.requests else None

    def goodput(self, measured_s: float) -> float | None:
        """Requests that met the SLO per second of measured time; None where nothing, or no time, was measured."""
        return self.met / measured_s if measured_s > 0 and self.requests else None


def attainment(outcomes: Iterable[bool | None]) -> Attainment:
    """Of the outcomes of requests; None stands for one of which it is not known, as where the end of a run cut it."""
    known = [outcome for outcome in outcomes if outcome is not None]
    return Attainment(sum(known), len(known))
