"""What steps cost on this device, learned from completed ones: for predictions, targets and step sizes.

A step of k decodes and p prefill tokens takes

    decode(k) + p * rate(p)

where the rate is learned by size, for each power of two, and goes in proportion to the logarithm of p between them: a
token beside a decode can cost twice what it does in a large step, and kernels that work in tiles make single sizes
cheaper. Means forget, and one sample changes them by a bounded part, so that a stall of the machine is not learned as
its speed while a lasting change is within ten steps.

The margin is what a slow step takes compared with its prediction: the quantile `QUANTILE` of that ratio over the newest
steps of its kind. It begins at the worst 1% measured on two shared CPUs, and again whenever the machine's speed has
changed, since old ratios were to other predictions.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from statistics import median

import numpy as np
import numpy.typing as npt

FORGETTING = 0.2
"""Weight of the newest sample in a running mean."""

MOST_CHANGE = 2.0
"""One sample counts as at most this many times the mean, and as no less than one part in so many of it."""

EFFICIENT_TOKENS = 16
"""Steps with fewer prefill tokens say more about their fixed cost than about the rate of large ones."""

QUANTILE, RATIOS = 0.985, 200
"""How slow a step the margin covers, and how many ratios it is taken from."""

FIRST_MARGIN, FIRST_RATIOS = 1.3, 3
"""The worst 1% of steps took 1.2 to 1.45 times their prediction; so many ratios of this size stand for it at first."""

SHIFT, SHIFTED = 1.25, 6
"""The median of so many ratios beyond the first, either way, is a change of speed."""


class Cost:
    """Step time of one lane, from whatever ran.

    `decode_s` and `prefill_s` (seconds for one decode, per prefill token) are first guesses; `batched` says whether k
    decodes cost about one pass or k passes.
    """

    def __init__(self, decode_s: float | None, prefill_s: float | None, *, batched: bool) -> None:
        self._decode: dict[int, float] = {} if decode_s is None else {1: decode_s}
        self._prefill_s = prefill_s
        self._rates: dict[int, float] = {}
        self._curve: tuple[list[float], list[float]] = [], []  # a plan asks a dozen times
        self._batched = batched
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._margin = FIRST_MARGIN
        self._forget_ratios()

    @property
    def prefill_s(self) -> float | None:
        """Seconds per prefill token of a step that is large enough; None before anything was measured."""
        return self._prefill_s

    @property
    def margin(self) -> float:
        """How many times its prediction a slow step of decodes and prefill takes."""
        return self._margin

    def decode_s(self, decodes: int) -> float:
        """Seconds for a step of `decodes` decodes; 0 before anything was measured."""
        if decodes == 0 or not self._decode:
            return 0.0
        nearest = min(self._decode, key=lambda known: abs(known - decodes))
        return self._decode[nearest] if self._batched else self._decode[nearest] * decodes / nearest

    def predict(self, decodes: int, prefills: int) -> float:
        """Expected service time in seconds of a step of `decodes` decodes and `prefills` prefill tokens."""
        return self.decode_s(decodes) + prefills * self.rate(prefills)

    def fits(self, decode_s: float, within_s: float, most: int) -> int | None:
        """The most prefill tokens beside decodes of `decode_s` seconds with which a slow step ends `within_s` seconds.

        0 where not one does, None before anything was measured.
        """
        if self._prefill_s is None:
            return None
        least, beyond = 0, most + 1
        while beyond - least > 1:
            tokens = (least + beyond) // 2
            if self._margin * (decode_s + tokens * self.rate(tokens)) <= within_s:
                least = tokens
            else:
                beyond = tokens
        return least

    def observe(self, decodes: int, prefills: int, service_s: float, decode_s: float | None = None) -> None:
        """Learn from a completed step.

        `decode_s` is what decodes somebody waits for were predicted to take alone; only of such steps is it noted how
        far off the prediction was.
        """
        if prefills == 0:
            if decodes:
                self._decode[decodes] = _learned(self._decode.get(decodes), self.decode_s(decodes), service_s)
            return
        base_s = self.decode_s(decodes) if decode_s is None else decode_s
        if decode_s is not None and self._prefill_s is not None:
            self._note_ratio(service_s, base_s + prefills * self.rate(prefills))
        rate_s = max(service_s - base_s, 0.1 * service_s) / prefills
        size = _size(prefills)
        self._rates[size] = _learned(self._rates.get(size), self.rate(prefills), rate_s)
        sizes = sorted(self._rates)
        self._curve = [each + 0.5 for each in sizes], [self._rates[each] for each in sizes]
        if prefills >= EFFICIENT_TOKENS or self._prefill_s is None:
            self._prefill_s = _learned(self._prefill_s, 0.0, rate_s)

    def rate(self, prefills: int) -> float:
        """Seconds per prefill token of a step with so many; 0 before anything was measured."""
        if not self._rates or prefills <= 0:
            return self._prefill_s or 0.0
        return float(np.interp(math.log2(prefills), *self._curve))

    def rates(self, most: int) -> npt.NDArray[np.float64]:
        """The rate of every size from 0 to `most`."""
        if not self._rates:
            return np.full(most + 1, self._prefill_s or 0.0)
        return np.interp(np.log2(np.maximum(np.arange(most + 1), 1)), *self._curve)

    def _note_ratio(self, took_s: float, predicted_s: float) -> None:
        if predicted_s <= 0:
            return  # a clock too coarse
        self._ratios.append(min(took_s / predicted_s, MOST_CHANGE))  # among few ratios one stall is the slowest 1.5%
        newest = median(islice(reversed(self._ratios), SHIFTED))
        if is_shift(newest) and len(self._ratios) >= FIRST_RATIOS + SHIFTED:
            self._forget_ratios()
            return
        in_order = sorted(self._ratios)
        self._margin = max(1.0, in_order[min(len(in_order) - 1, int(QUANTILE * len(in_order)))])

    def _forget_ratios(self) -> None:
        self._ratios.clear()
        self._ratios.extend([FIRST_MARGIN] * FIRST_RATIOS)
        self._margin = FIRST_MARGIN


def is_shift(ratio: float) -> bool:
    """Whether such a ratio of new to old times is a change of the machine's speed, and no noise."""
    return not 1 / SHIFT <= ratio <= SHIFT


def _size(tokens: int) -> int:
    """The power of two that a number of tokens reaches."""
    return tokens.bit_length() - 1


def _learned(mean: float | None, expected: float, new: float) -> float:
    """The mean after a sample. The first of its kind is taken as it is, but for a stall against what was `expected`."""
    if not mean:
        return min(new, expected * MOST_CHANGE) if expected > 0 else new
    new = max(mean / MOST_CHANGE, min(new, mean * MOST_CHANGE))
    return (1 - FORGETTING) * mean + FORGETTING * new
