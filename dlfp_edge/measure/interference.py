"""What the background did to a reader: the gaps of a stream held against the same stream's alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Interference:
    """Gaps between tokens, each against its stream's solo median. None where there is no gap or no solo median.

    `over_2x`, `over_5x` and `over_10x` are the shares (0 to 1) of gaps more than so many times the solo median.
    `excess_s` is the sum of what each gap is longer than it, in seconds, and `excess_per_1000_s` that sum per 1,000
    gaps. `gaps` counts the gaps that were held against a solo median.
    """

    gaps: int = 0
    over_2x: float | None = None
    over_5x: float | None = None
    over_10x: float | None = None
    excess_s: float | None = None
    excess_per_1000_s: float | None = None


@dataclass(frozen=True, slots=True)
class OverSolo:
    """The interference each stream met, by name, and that of all gaps of the streams with a solo median."""

    streams: dict[str, Interference]
    pooled: Interference


def over_solo(gaps_s: Mapping[str, Sequence[float]], solo_p50_s: Mapping[str, float | None]) -> OverSolo:
    """Hold each stream's gaps against its solo median; both in seconds, by the stream's name.

    A median that is missing, None or 0 (gaps too short for the clock) was not measured: its stream has no figures and
    no part in the pooled ones.
    """
    known = {name: median for name in gaps_s if (median := solo_p50_s.get(name) or 0.0) > 0.0}
    pairs = {name: _against(gaps_s[name], median) for name, median in known.items()}
    gaps = np.concatenate([gap for gap, _ in pairs.values()]) if pairs else np.empty(0)
    medians = np.concatenate([median for _, median in pairs.values()]) if pairs else np.empty(0)
    return OverSolo(
        streams={name: _interference(*pairs[name]) if name in pairs else Interference() for name in gaps_s},
        pooled=_interference(gaps, medians),
    )


def _against(gaps_s: Sequence[float], median_s: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    gaps = np.asarray(gaps_s, dtype=np.float64)
    return gaps, np.full_like(gaps, median_s)


def _interference(gaps: npt.NDArray[np.float64], medians: npt.NDArray[np.float64]) -> Interference:
    if gaps.size == 0:
        return Interference()
    over_2x, over_5x, over_10x = (float((gaps > times * medians).mean()) for times in (2.0, 5.0, 10.0))
    excess = float(np.maximum(0.0, gaps - medians).sum())
    return Interference(
        gaps=int(gaps.size),
        over_2x=over_2x,
        over_5x=over_5x,
        over_10x=over_10x,
        excess_s=excess,
        excess_per_1000_s=excess / gaps.size * 1e3,
    )
