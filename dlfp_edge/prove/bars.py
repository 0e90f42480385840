"""A bar: what the default must reach in a cell, as people write it and as it is judged.

    p99_over_solo <= 1.7                 a measure of `dlfp_edge.prove.measures` and a bound
    itl_p99 within 5% of best-fixed      a metric of verdicts, not worse than a control's by more than that

"Within" looks at the interval over the paired seeds, not at the mean: what is worse for the candidate by more than so
many percent must lie outside of it. The control is a label, `best-fixed`, or `peers` for each of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.experiment.verdict import METRICS, Verdict
from dlfp_edge.prove.measures import MEASURES
from dlfp_edge.prove.scored import Scored

BEST = "best-fixed"
State = Literal["held", "missed", "no data"]

_BOUND = re.compile(r"(\S+)\s*(<=|>=)\s*(\S+)")
_WITHIN = re.compile(r"(\S+) within (\S+)% of (.+)")


@dataclass(frozen=True, slots=True)
class Bar:
    """`measure` at most (`most`) or at least `bound`; with a `control` the percent by which it may be worse."""

    text: str
    measure: str
    bound: float
    most: bool = True
    control: str | None = None


class BarResult(BaseModel):
    """One bar of a cell. `value` is the measure, for "within" the percent by which it may be worse at the worst."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bar: str
    value: float | None
    state: State


def parse_bar(text: str) -> Bar:
    """Read a bar. Raises UsageError with one line that says what is wrong."""
    if (match := _WITHIN.fullmatch(text.strip())) is not None:
        metric, percent, control = match.groups()
        if metric not in METRICS:
            raise UsageError(f"bar '{text}': unknown metric '{metric}': {hint(metric, METRICS, 'metrics are')}")
        return Bar(text, metric, _number(percent, text), control=control)
    if (match := _BOUND.fullmatch(text.strip())) is None:
        raise UsageError(
            f"bar '{text}' is none: write 'MEASURE <= NUMBER', 'MEASURE >= NUMBER' or 'METRIC within N% of CONTROL'"
        )
    measure, sign, bound = match.groups()
    if measure not in MEASURES:
        raise UsageError(f"bar '{text}': unknown measure '{measure}': {hint(measure, MEASURES, 'measures are')}")
    return Bar(text, measure, _number(bound, text), most=sign == "<=")


def judge(bar: Bar, scored: Scored, verdicts: Sequence[Verdict]) -> BarResult:
    """Whether the bar was held by the trials scored. Where any of it is missing it has no data, unless it is missed.

    What is held against the best fixed setting is held where none of them kept the target, and what is held against
    servers as smooth as the candidate where none of them is.
    """
    if scored.unmatched and (bar.control == BEST or bar.measure.endswith(("_over_best_fixed", "_over_best"))):
        return BarResult(bar=bar.text, value=None, state="held")
    if bar.control is None:
        values = [MEASURES[bar.measure].of(scored)]
    else:
        values = [_worst(bar.measure, verdict) for verdict in _held_against(bar.control, scored, verdicts)]
    if values == [math.inf]:  # nothing that the measure is held against is there
        return BarResult(bar=bar.text, value=None, state="held")
    known = [value for value in values if value is not None]
    worst = None if not known else max(known) if bar.most else min(known)
    missed = worst is not None and not (worst <= bar.bound if bar.most else worst >= bar.bound)
    whole = bool(values) and len(known) == len(values)
    return BarResult(bar=bar.text, value=worst, state="missed" if missed else "held" if whole else "no data")


def _held_against(control: str, scored: Scored, verdicts: Sequence[Verdict]) -> list[Verdict | None]:
    """The verdicts against what the control stands for; None for one that there is not."""
    labels = scored.peers if control == "peers" else (scored.best,) if control == BEST else (control,)
    found = {verdict.control: verdict for verdict in verdicts}
    return [found.get(label or "") for label in labels]


def _worst(metric: str, verdict: Verdict | None) -> float | None:
    """The most percent by which the candidate may be worse: the upper end of the 95% interval over the seeds."""
    if verdict is None or verdict.outcome == "void":
        return None
    change = next((change for change in verdict.changes if change.metric == metric), None)
    if change is None or change.low is None or len(change.values) < len(verdict.seeds):
        return None
    return -change.low


def _number(text: str, bar: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"bar '{bar}': '{text}' is no number")
    return value
