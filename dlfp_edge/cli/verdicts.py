"""A comparison's plan and result on the terminal, as Markdown tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlfp_edge.cli.output import print_json, print_table
from dlfp_edge.cli.trials import minutes
from dlfp_edge.experiment.document import COLUMNS, Result, table

if TYPE_CHECKING:
    from dlfp_edge.experiment.experiment import Experiment
    from dlfp_edge.experiment.results import Row


_FIGURES = (
    "Gaps and TTFT in ms; contended gaps, of solo arms all. Alone: prompt tokens/s and gaps of the target by itself, "
    "of the candidate's"
)


def print_plan(experiment: Experiment, as_json: bool) -> None:
    """What would run and how long it would take."""
    seeds = experiment.question.seeds
    plans = [
        {
            "setting": arm.label,
            "sweep": arm.sweep,
            "seeds": 1 if arm.sweep else len(seeds),
            "seconds": experiment.expected_s(arm),
        }
        for arm in experiment.arms
    ]
    total_s = experiment.expected_s()
    if as_json:
        print_json({"plan": plans, "seeds": seeds, "expected_s": total_s, "simulated": experiment.simulated})
        return
    rows = [(p["setting"], p["sweep"], p["seeds"], p["seconds"]) for p in plans]
    print_table("Trials", ("setting", "sweep", "seeds", "seconds each"), rows, markdown=True)
    print(f"about {minutes(total_s)} with seeds {', '.join(map(str, seeds))}; two points of each sweep get all seeds")


def print_result(result: Result, folder: Path) -> None:
    """Verdicts first, then the figures."""
    if not result.complete:
        done = sum(result.trials.values())
        print(f"cut short after {done} trials; the same command with --out {folder} goes on")
    if not result.rows:
        return
    source = "simulated" if result.simulated else "measured"
    counts = ", ".join(f"{count} {status}" for status, count in sorted(result.trials.items()))
    print_table(
        f"{result.workload['name']} ({source}): {result.candidate} against each; {counts}",
        ("against", "outcome", "P99 gap shorter by", "background more by", "why"),
        [_verdict_row(verdict) for verdict in result.verdicts],
        markdown=True,
    )
    flat = table(result.rows)
    rows = [
        (*(_plain(flat.get(name, {}).get(index)) for name in COLUMNS), _failures(row))
        for index, row in zip(flat.index, result.rows, strict=True)
    ]
    print_table(_FIGURES, (*COLUMNS.values(), "failed"), rows, markdown=True)
    if result.equal_p99:
        found = [(each.sweep, each.background, each.ratio, each.reason) for each in result.equal_p99]
        print_table(
            f"Background at {result.candidate}'s P99, interpolated",
            ("sweep", "bg tok/s", f"{result.candidate} over it", "why not"),
            found,
            markdown=True,
        )
    if result.harness_fault:
        print(f"VOID: {result.harness_fault}")
    print(f"files  {folder}/  (report.html, summary.json, summary.csv, frontier.png, trials/)")
    sys.stdout.flush()


def _failures(row: Row) -> str | None:
    parts = [
        f"{count} {what}"
        for count, what in (
            (row.http_failures, "HTTP"),
            (row.engine_failures, "engine"),
            (row.missed_deadlines, "late"),
            (row.void, "void trials"),
        )
        if count
    ]
    return ", ".join(parts) or None


def _verdict_row(verdict: Any) -> Sequence[Any]:
    texts = {change.metric: change.text for change in verdict.changes}
    gates = [f"gate {gate.gate}: {_GATE[gate.passed]}" for gate in verdict.gates]
    return (
        verdict.control,
        verdict.outcome,
        texts.get("itl_p99"),
        texts.get("background"),
        "; ".join([*verdict.why, *gates]) or None,
    )


_GATE = {True: "passed", False: "failed", None: "not judged"}


def _plain(value: Any) -> Any:
    """A cell of a frame; what was not measured is nothing."""
    return None if value is None or value != value else value
