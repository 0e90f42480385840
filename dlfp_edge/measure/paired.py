"""What a candidate changed, from trials paired with a baseline's: the mean of the pairs and its Student t interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of `values`, one a pair, and the 95% interval of that mean, in the unit of the values.

    `mean` is None without a pair; `low` and `high` are None below two, where nothing is known of how pairs vary.
    """

    mean: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @property
    def claims(self) -> bool:
        """Whether a change can be claimed: there are two pairs or more, and the interval does not contain zero."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high

    def text(self) -> str:
        """The interval of changes in percent, for people: "27.7% (21.0 to 34.3)", or "no claim (...)"."""
        if self.mean is None:
            return "no claim (no pair)"
        if self.low is None or self.high is None:
            return f"no claim ({_tenths(self.mean)}%, one pair)"
        if self.claims:
            return f"{_tenths(self.mean)}% ({_tenths(self.low)} to {_tenths(self.high)})"
        return f"no claim ({_tenths(self.mean)}%, {_tenths(self.low)} to {_tenths(self.high)})"


def paired(changes: Sequence[float]) -> Interval:
    """The interval of the changes, one a pair of trials. Raises ValueError for one that is not a finite number."""
    values = tuple(float(change) for change in changes)
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a change is not a finite number: {values}")
    if not values:
        return Interval(None, None, None, values)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, None, None, values)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)) * error
    return Interval(mean, mean - reach, mean + reach, values)


def reductions(baseline: Sequence[float | None], candidate: Sequence[float | None]) -> list[float]:
    """By how many percent of the baseline's the candidate's value is lower, a pair each, in the order given.

    A pair in which one was not measured (None), or the baseline's is 0, has no reduction and is left out: compare the
    number of values with that of the trials. Raises ValueError unless both are of one length.
    """
    pairs = zip(baseline, candidate, strict=True)
    return [(before - after) / before * 100.0 for before, after in pairs if before and after is not None]


def _tenths(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # adding 0.0 makes -0.0 read 0.0
