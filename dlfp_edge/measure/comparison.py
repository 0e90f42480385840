"""Settings side by side: one row each, with its figures and its distance from solo and from a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dlfp_edge.measure.percentiles import Distribution, distribution
from dlfp_edge.measure.tally import RunTally, Tally


@dataclass(slots=True)
class Pool:
    """The totals of one setting over its windows. `target_s` is the target in force when each window ended."""

    foreground: Tally = field(default_factory=Tally)
    background: Tally = field(default_factory=Tally)
    target_s: list[float] = field(default_factory=list)

    def add(self, tally: RunTally, target_s: float | None) -> None:
        """Pool another window."""
        self.foreground.merge(tally.foreground)
        self.background.merge(tally.background)
        if target_s is not None:
            self.target_s.append(target_s)


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. ITL, shown gaps and TTFT in ms; a figure that was not measured is None.

    `solo` names the arm it is compared with: P99 with its P99 and maximum with its maximum, of the gaps a reader sees
    (shown gaps where paced), and median TTFT with its median. `p99_over_target` and `max_over_target` are of contended
    gaps, each over the target in force for it. `background_share` is of the baseline's background prompt tokens per
    second.
    """

    setting: str
    solo: str
    itl_p50: float | None
    itl_p99: float | None
    itl_max: float | None
    shown_p99: float | None
    shown_max: float | None
    late_share: float | None
    ttft_max: float | None
    foreground_tokens_per_s: float | None
    background_tokens_per_s: float | None
    background_share: float | None
    documents_per_min: float | None
    p99_over_solo: float | None
    max_over_solo: float | None
    ttft_over_solo: float | None
    target: float | None
    p99_over_target: float | None
    max_over_target: float | None
    gaps: int
    requests: int
    failed: int


def rows(pools: Mapping[str, Pool], solo_of: Mapping[str, str], baseline: str) -> list[Row]:
    """A row for each setting in `pools`. `solo_of` maps a setting to its solo arm, a solo arm to itself."""
    base = pools.get(baseline)
    base_rate = None if base is None else _rate(base.background.prompt_tokens, base.background)
    return [_row(name, pool, solo_of[name], pools[solo_of[name]], base_rate) for name, pool in pools.items()]


def _row(name: str, pool: Pool, solo_name: str, solo: Pool, base_rate: float | None) -> Row:
    fore, back = pool.foreground, pool.background
    itl, shown = distribution(fore.gaps), distribution(fore.shown)
    seen, solo_seen = _seen(fore), _seen(solo.foreground)
    ttft, solo_ttft = distribution(fore.ttft), distribution(solo.foreground.ttft)
    over_target = distribution(fore.over_target, scale=1.0)
    # A solo arm has no background: its rate is not 0, there is none.
    rate = None if name == solo_name else _rate(back.prompt_tokens, back)
    return Row(
        setting=name,
        solo=solo_name,
        itl_p50=itl.p50,
        itl_p99=itl.p99,
        itl_max=itl.max,
        shown_p99=shown.p99,
        shown_max=shown.max,
        late_share=_over(fore.late, shown.count),
        ttft_max=ttft.max,
        foreground_tokens_per_s=_rate(fore.output_tokens, fore),
        background_tokens_per_s=rate,
        background_share=_over(rate, base_rate),
        documents_per_min=None if rate is None else _rate(60.0 * back.complete, back),
        p99_over_solo=_over(seen.p99, solo_seen.p99),
        max_over_solo=_over(seen.max, solo_seen.max),
        ttft_over_solo=None if ttft.p50 is None or solo_ttft.p50 is None else ttft.p50 - solo_ttft.p50,
        target=1e3 * sum(pool.target_s) / len(pool.target_s) if pool.target_s else None,
        p99_over_target=over_target.p99,
        max_over_target=over_target.max,
        gaps=itl.count,
        requests=fore.requests,
        failed=fore.failed + back.failed,
    )


def _seen(tally: Tally) -> Distribution:
    return distribution(tally.shown or tally.gaps)


def _rate(amount: float, tally: Tally) -> float | None:
    return _over(amount, tally.counted_s)


def _over(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None
