"""What decodes take with nothing beside them, by threads and by how many decode, and the thread counts to use.

Two questions are answered from one table: the gap a stream sees alone, which targets are relative to, and how many
threads to decode on. Beside background work the fewest that keep the target will do: each one saved goes to the
background, so the choice matters much more to it than to the reader. On two CPUs a lone decode takes 1.3 to 1.5 times
as long on one thread as on two, and with two the background falls from half of its unprotected rate to a tenth; eight
decodes are work enough for both, and take 2.1 times as long on one.

The probe at load gives the first figures, for one sequence and for a few, and through them the shape of what it did not
see: how counts of threads and numbers of decoders compare. What that is to be multiplied with, since a machine's speed
varies within minutes, is measured again while the background is held, on the count that is fastest. Counts compared
anew there, by four decodes each, were off by a fifth, and put a lone reader on both CPUs for a minute. Between two
measurements times go along with the KV cells that decodes read, of which each costs what the probe found: eight
conversations double them within a minute or two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import median

import numpy as np

from dlfp_edge.control.estimate import SHIFT, is_shift
from dlfp_edge.runtime import Capabilities

SAMPLES = 16
"""Decodes of one kind that their time is the median of."""

MAX_AGE_S = 10.0
"""How long a figure is good, unless the context doubles before."""

SHIFTED = 4
"""So many decodes whose median is of another speed make forget what was seen before. As many as a hold brings."""

LEAST_BESIDE, MOST_BESIDE = 8, 64
"""Gaps beside background work before they count, and how many are kept. What the probe saw is the first of them."""

USUAL, SLOW = 0.5, 0.95
"""Quantiles of these gaps. A target relative to the median alone is kept by the median beside the background: a slower
quantile says as much about the machine as about the background, and on noisy days it had a lone reader decode on both
CPUs, for no shorter P99 and a third of the background's throughput. An absolute one, and pauses, by the second."""

UNSEEN_USUAL, UNSEEN_SLOW = 1.1, 1.25
"""The same of steps that have not been seen there yet, at least; a probe is short."""

CLOSE = 1.9
"""Times the fastest count's time alone, up to which a count is nearly as fast: two CPUs decode 1.3 to 1.45 times as
fast as one. Where memory was so slow that it was 1.75, one of them left the background 39 to 57% of its unprotected
rate at 1.2 to 1.6 times the P99 alone, both with pauses between 6 to 28%."""

BESIDE_AGE_S = 60.0
"""How long it holds what gaps beside the background were. A count that was given up is then tried for a few gaps."""


@dataclass(slots=True)
class _Seen:
    """The newest gaps of one kind, in seconds at an empty cache, and their median.

    The last was seen `at` a time, with so many `cells` read, at such a `level`.
    """

    at: float
    cells: int
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    typical_s: float = 0.0
    level: float = 1.0


@dataclass(slots=True)
class _Beside:
    """The newest gaps beside background work as multiples of those alone, what they usually are and what slow ones are,
    and when one was seen.
    """

    stretches: deque[float]
    usual: float = 1.0
    slow: float = 1.0
    at: float = -inf


class DecodeTimes:
    """Decode-only gaps by thread count and number of decoders, learned from steps with nothing beside them.

    A runtime that gives no times, or whose words depend on the count, keeps the count it names.
    """

    def __init__(
        self, capabilities: Capabilities, *, absolute: bool = False, leeway: float = 1.0, spare: int = 0
    ) -> None:
        """`absolute`: targets are no multiples of the time alone, so that slow gaps are to keep them. A count nearly as
        fast as any is given up at `leeway` times the target. `spare` CPUs are left to the background by decodes beside
        it.
        """
        probed = capabilities.decode_s_by_threads
        self._absolute, self._leeway = absolute, leeway
        self._counts = sorted(probed) if capabilities.threads_invariant and probed else [capabilities.decode_threads]
        self._default = capabilities.decode_threads
        most_beside = max(capabilities.prefill_threads - spare, self._counts[0])
        self._counts_beside = [threads for threads in self._counts if threads <= most_beside]
        self._shape = _Shape(capabilities)
        self._growth = _Growth(capabilities, self._shape)
        self._cells = 0
        self._levels: deque[float] = deque(maxlen=SAMPLES)
        self._ratios_of = 0, 0
        self._ratios: deque[float] = deque(maxlen=SHIFTED)  # of what decodes alone took to what was expected
        self._level = 1.0
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._probed_beside = {
            threads: {number: max(stretch, UNSEEN_USUAL) for number, stretch in stretches.items()}
            for threads, stretches in capabilities.stretch_beside.items()
        }
        self._beside: dict[tuple[int, int], _Beside] = {}
        self._newest_beside: dict[tuple[int, int], deque[float]] = {}  # in seconds
        self._newest_at: dict[tuple[int, int], float] = {}
        self._told: dict[tuple[int, int], float | None] = {}  # planning a step asks ten times

    def reading(self, cells: int) -> None:
        """What is asked from now on is asked of decodes that read so many KV cells."""
        self._cells = cells

    def observe(self, threads: int, decoders: int, cells: int, gap_s: float, now: float) -> None:
        """Learn from a step of decodes alone that read so many KV cells."""
        seen = self._seen.setdefault((threads, decoders), _Seen(now, cells))
        if cells > 2 * seen.cells:
            seen.gaps.clear()
        short_s = gap_s / self._growth.factor(decoders, cells)
        expected_s = self._estimate(threads, decoders)
        seen.gaps.append(short_s)
        if self._shape.covers(threads, decoders) and (shape_s := self._shape.seconds(threads, decoders)) > 0:
            self._levels.append(short_s / shape_s)
        if self._ratios_of != (threads, decoders):
            self._ratios.clear()
        self._ratios_of = threads, decoders
        if expected_s:
            self._ratios.append(short_s / expected_s)
        if len(self._ratios) == SHIFTED and is_shift(median(self._ratios)):
            self._forget(seen)
        if self._levels:
            self._level = median(self._levels)
        seen.at, seen.cells, seen.typical_s, seen.level = now, cells, median(seen.gaps), self._level
        self._told.clear()

    def observe_beside(self, threads: int, decoders: int, cells: int, gap_s: float, now: float) -> None:
        """Learn from a step of decodes alone beside a step of background work in another lane."""
        self.reading(cells)
        alone_s = self.alone_s(decoders, threads)
        if not alone_s or self._is_faster(threads, decoders, cells, gap_s, now):
            return
        if not self._seen:
            return  # against a probe's figure, from minutes ago, this would say nothing
        seen = self._beside.get((threads, decoders))
        if seen is None or now - seen.at > BESIDE_AGE_S:
            probed = self._probed_beside.get(threads, {}).get(decoders)
            first = [] if probed is None else [probed] * LEAST_BESIDE
            seen = self._beside[threads, decoders] = _Beside(deque(first, MOST_BESIDE))
        seen.stretches.append(gap_s / alone_s)
        in_order = sorted(seen.stretches)
        seen.usual, seen.slow = (in_order[int(share * len(in_order))] for share in (USUAL, SLOW))
        seen.at = now

    def alone_s(self, decoders: int, threads: int | None = None) -> float | None:
        """The gap that this many decoders see alone, on the count that is fastest or on `threads`; None if unknown.

        What was not measured lately follows from what was: a machine that slows down changes all of them by about as
        much, from what the probe found.
        """
        key = self.fastest(decoders) if threads is None else threads, decoders
        time_s = self._told.get(key)
        if time_s is None:
            time_s = self._told[key] = self._estimate(*key)
        return None if time_s is None else time_s * self._growth.factor(decoders, self._cells)

    @property
    def most(self) -> int:
        """The largest count."""
        return self._counts[-1]

    @property
    def fewest(self) -> int:
        """The count that leaves most of the device to others."""
        return self._counts[0]

    def fastest(self, decoders: int) -> int:
        """The count for decodes with nothing beside them."""
        return self._fastest_of(self._counts, decoders)

    def _fastest_of(self, counts: list[int], decoders: int) -> int:
        times = {threads: self.alone_s(decoders, threads) for threads in counts}
        known = {threads: time_s for threads, time_s in times.items() if time_s is not None}
        return min(known, key=known.__getitem__) if known else self._default

    def beside(self, decoders: int, target_s: float | None, now: float, *, exact: bool = False) -> int:
        """The count beside background work: the fewest that keep the target there, without leeway where that is to be
        `exact`, else the fastest.

        How much longer decodes take there depends on the machine and their number: on two threads of one core a lone
        decode takes 1.1 times as long, since it waits for memory, and two or three that compute twice.
        """
        if target_s is None:
            return min(self._default, self._counts_beside[-1])
        best_s = self.alone_s(decoders) or 0.0
        for threads in self._counts_beside:
            time_s = self.beside_s(decoders, threads, now, slow=self._absolute)
            close = not exact and (self.alone_s(decoders, threads) or inf) <= CLOSE * best_s
            if time_s and time_s <= target_s * (self._leeway if close else 1.0):
                return threads
        return self._fastest_of(self._counts_beside, decoders)

    def least_slowdown(self, decoders: int, now: float) -> float | None:
        """The least usual gap beside background work as a multiple of that alone; None before enough were seen."""
        threads = self._fastest_of(self._counts_beside, decoders)
        seen, alone_s = self._beside.get((threads, decoders)), self.alone_s(decoders)
        beside_s = self.beside_s(decoders, threads, now)
        if seen is None or len(seen.stretches) < MOST_BESIDE or not alone_s or beside_s is None:
            return None
        return beside_s / alone_s

    def beside_s(self, decoders: int, threads: int, now: float, *, slow: bool = False) -> float | None:
        """A usual or a slow gap of this many decoders on `threads` beside background work; None if unknown."""
        alone_s = self.alone_s(decoders, threads)
        return None if alone_s is None else alone_s * self._stretch(threads, decoders, now, slow=slow)

    def stale(self, decoders: int, cells: int, now: float) -> bool:
        """Whether what this many decoders take alone should be measured again."""
        seen = self._seen.get((self.fastest(decoders), decoders))
        return seen is None or now - seen.at > MAX_AGE_S or cells > 2 * max(seen.cells, 1)

    def _forget(self, seen: _Seen) -> None:
        """The machine's speed has changed: only the newest decodes say what it is now."""
        self._ratios.clear()
        for values in (seen.gaps, self._levels):
            newest = list(values)[-SHIFTED:]
            values.clear()
            values.extend(newest)
        self._beside.clear()  # what came since the change was divided by times from before it
        self._newest_beside.clear()

    def _is_faster(self, threads: int, decoders: int, cells: int, gap_s: float, now: float) -> bool:
        """Whether decodes beside the background take less than is known of them alone. Then that was of another speed,
        and what they take now is at least as near to it. Of readers at a pace nothing else is ever seen.
        """
        newest = self._newest(threads, decoders, now)
        newest.append(gap_s)
        self._newest_at[threads, decoders] = now
        usual_s, alone_s = median(newest), self.alone_s(decoders, threads)
        if alone_s is None or len(newest) < LEAST_BESIDE or usual_s * SHIFT > alone_s:
            return False
        newest.clear()
        for _ in range(SHIFTED):
            self.observe(threads, decoders, cells, usual_s, now)
        return True

    def _newest(self, threads: int, decoders: int, now: float) -> deque[float]:
        """The newest gaps beside the background in a row; none where the last of them was long ago."""
        key = threads, decoders
        newest = self._newest_beside.setdefault(key, deque(maxlen=LEAST_BESIDE))
        if now - self._newest_at.get(key, now) > MAX_AGE_S:
            newest.clear()
        return newest

    def shifted(self, threads: int, decoders: int, now: float) -> bool:
        """Whether the newest gaps beside the background are unlike those before: the machine may have changed."""
        seen, newest = self._beside.get((threads, decoders)), self._newest(threads, decoders, now)
        alone_s = self.alone_s(decoders, threads)
        if seen is None or not alone_s or len(seen.stretches) < 2 * LEAST_BESIDE or len(newest) < LEAST_BESIDE:
            return False
        return is_shift(median(newest) / (alone_s * seen.usual))

    def _estimate(self, threads: int, decoders: int) -> float | None:
        """The time at a short context."""
        seen = self._seen.get((threads, decoders))
        if seen is not None:
            return self._now_s(seen)
        if self._shape.covers(threads, decoders):
            return self._shape.seconds(threads, decoders) * self._level
        numbers = [number for at, number in list(self._seen) if at == threads]
        if not numbers:
            return self._shape.seconds(threads, decoders) * self._level if self._shape.known else None
        nearest = min(numbers, key=lambda number: abs(number - decoders))
        there_s, here_s = (self._shape.seconds(threads, number) for number in (nearest, decoders))
        return self._now_s(self._seen[threads, nearest]) * (here_s / there_s if there_s else 1.0)

    def _now_s(self, seen: _Seen) -> float:
        return seen.typical_s * self._level / seen.level

    def _stretch(self, threads: int, decoders: int, now: float, *, slow: bool) -> float:
        """How many times as long decodes take beside the background; between the numbers seen there in proportion."""
        known = {} if slow else dict(self._probed_beside.get(threads, {}))
        for (at, number), seen in self._beside.items():
            if at == threads and len(seen.stretches) >= LEAST_BESIDE and now - seen.at <= BESIDE_AGE_S:
                known[number] = seen.slow if slow else seen.usual
        if not known:
            return max(UNSEEN_SLOW, self._stretch(threads, decoders, now, slow=False)) if slow else 1.0
        numbers = sorted(known)
        return float(np.interp(decoders, numbers, [known[number] for number in numbers]))


class _Growth:
    """How many times as long decodes take for the KV cells they read; on every count of threads as on the fastest."""

    def __init__(self, capabilities: Capabilities, shape: _Shape) -> None:
        times = capabilities.decode_s_by_threads
        slopes = capabilities.decode_s_per_cell if times else {}
        self._shape = shape
        self._fastest = min(times, key=times.__getitem__, default=1)
        self._numbers, self._slopes_s = sorted(slopes), [slopes[number] for number in sorted(slopes)]
        self._shares: dict[int, float] = {}

    def factor(self, decoders: int, cells: int) -> float:
        """In proportion to the cells; between the numbers of sequences that were probed in proportion to these."""
        share = self._shares.get(decoders)
        if share is None:
            share = self._shares[decoders] = self._share(decoders)
        return 1.0 + share * cells

    def _share(self, decoders: int) -> float:
        """What a cell adds, as a share of the time at an empty cache."""
        short_s = self._shape.seconds(self._fastest, decoders)
        if not self._numbers or not short_s:
            return 0.0
        return float(np.interp(decoders, self._numbers, self._slopes_s)) / short_s


class _Shape:
    """What decodes take by threads and number as the probe found it, in proportion only where it found nothing."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.known = bool(capabilities.decode_s_by_threads)
        self._batched = capabilities.batched
        self._points = {threads: {1: time_s} for threads, time_s in capabilities.decode_s_by_threads.items()}
        for threads, points in self._points.items():
            points.update(capabilities.decodes_s.get(threads, {}))
        self._points = {threads: dict(sorted(points.items())) for threads, points in self._points.items()}
        self._fullest = max(self._points.values(), key=len, default={1: 1.0})

    def covers(self, threads: int, decoders: int) -> bool:
        """Whether that many decodes lie within what was probed."""
        return threads in self._points and decoders <= max(self._fullest)

    def seconds(self, threads: int, decoders: int) -> float:
        """Between the numbers probed on a thread count it follows the count that was probed at most of them."""
        points = self._points.get(threads, self._fullest)
        shared = {number: time_s for number, time_s in points.items() if self._fullest.get(number)}
        if not shared:
            return self._along_fullest(decoders)
        ratios = [time_s / self._fullest[number] for number, time_s in shared.items()]
        return self._along_fullest(decoders) * float(np.interp(decoders, list(shared), ratios))

    def _along_fullest(self, decoders: int) -> float:
        numbers = list(self._fullest)
        last = numbers[-1]
        if decoders > last and (last > 1 or not self._batched):  # more than a few are work in proportion
            return self._fullest[last] * decoders / last
        return float(np.interp(decoders, numbers, list(self._fullest.values())))
