"""What the candidate changed against each control, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.results import Row
from dlfp_edge.experiment.verdict import Change, GateResult, Outcome, Verdict
from dlfp_edge.report.families import Family, family
from dlfp_edge.report.words import NONE

_HEADS = {
    "itl_p99": "P99 gap shorter by",
    "background": "background more by",
    "ttft_p99": "TTFT P99 shorter by",
    "ttft_p90": "TTFT P90 shorter by",
    "e2el_p50": "E2EL P50 shorter by",
    "goodput": "goodput more by",
    "itl_max": "longest gap shorter by",
    "ttft_max": "longest TTFT shorter by",
    "e2el_p99": "E2EL P99 shorter by",
}
"""What an outcome rests on comes first."""

_GATE = {True: "passed", False: "failed", None: "not judged"}
_OUTCOMES: tuple[Outcome, ...] = ("better", "trade-off", "no claim", "worse", "reconnaissance", "void")


@dataclass(frozen=True, slots=True)
class Cell:
    """A change: what is claimed, its interval (whose middle is the mean), and whether that is better (1), worse (-1) or
    no claim (0).
    """

    text: str
    interval: str
    claim: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict as a row: `cells` are in the order of `heads`, `notes` say what it rests on and what it lacks."""

    control: str
    family: Family
    outcome: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]


def heads(result: Result) -> list[str]:
    """The heads of the changes that any verdict has."""
    return [_HEADS.get(metric, f"{metric} better by") for metric in _metrics(result)]


def judged(result: Result) -> list[Judged]:
    """The verdicts in the order of the comparison."""
    rows = {row.setting: row for row in result.rows}
    metrics = _metrics(result)
    return [_judged(verdict, rows.get(verdict.control), metrics) for verdict in result.verdicts]


def outcomes(result: Result) -> str:
    """How many outcomes of each kind there are."""
    counts = Counter(verdict.outcome for verdict in result.verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])


def not_counted(row: Row | None) -> str:
    """How many of an arm's trials do not count."""
    if row is None:
        return "no trial was run"
    parts = [f"{row.void} void" if row.void else "", f"{row.failed_trials} failed" if row.failed_trials else ""]
    return ", ".join(part for part in parts if part) or "no trial void or failed"


def _metrics(result: Result) -> list[str]:
    there = dict.fromkeys(change.metric for verdict in result.verdicts for change in verdict.changes)
    return [*(metric for metric in _HEADS if metric in there), *(metric for metric in there if metric not in _HEADS)]


def _judged(verdict: Verdict, row: Row | None, metrics: Sequence[str]) -> Judged:
    changes = {change.metric: change for change in verdict.changes}
    pairs = len(verdict.seeds)
    return Judged(
        control=verdict.control,
        family=Family.CONTROLS if row is None else family(row),
        outcome=verdict.outcome,
        cells=tuple(_cell(changes.get(metric)) for metric in metrics),
        notes=(
            f"{pairs} pair{'' if pairs == 1 else 's'} of trials; {not_counted(row)}",
            *map(_gate, verdict.gates),
            *verdict.why,
        ),
    )


def _cell(change: Change | None) -> Cell:
    if change is None or change.mean is None:
        return Cell(NONE, "", 0)
    mean = f"{_signed(change.mean)}%"
    if change.low is None or change.high is None:
        return Cell("no claim", f"{mean}, one pair", 0)
    return Cell(mean if change.claim else "no claim", f"{_signed(change.low)} to {_signed(change.high)}", change.claim)


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")  # adding 0.0 makes -0.0 read 0.0


def _gate(gate: GateResult) -> str:
    return f"gate {_GATE[gate.passed]}: {gate.gate}"
