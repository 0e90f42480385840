"""`dlfp-edge prove`: whether the default wins everywhere, cell by cell of a matrix, or where it does not."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.interrupt import stops_on_interrupt
from dlfp_edge.cli.live import picture_possible, spinner
from dlfp_edge.cli.output import note, print_json, print_table
from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dlfp_edge.experiment.experiment import Experiment
    from dlfp_edge.prove.budget import CellPlan
    from dlfp_edge.prove.cell import Watcher
    from dlfp_edge.prove.document import CellResult, Proof
    from dlfp_edge.prove.questions import Means
    from dlfp_edge.prove.spec import Spec

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def prove(
    context: typer.Context,
    spec: Annotated[
        Path | None,
        typer.Option(parser=options.path_argument, metavar="PATH", help="A proof's .toml. Default: the one bundled."),
    ] = None,
    cells: Annotated[str | None, typer.Option(help="Only these cells, with commas.")] = None,
    hours: Annotated[
        float | None, typer.Option(help="Measure no longer: shorter trials first, then fewer cells.")
    ] = None,
    slice_only: Annotated[
        bool, typer.Option("--slice", help="A small proof on the simulated runtime, in less than a minute.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would run and how long, and stop.")] = False,
    busy_ok: Annotated[bool, typer.Option("--busy-ok", help="Measure although other programs want the CPUs.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=options.path_argument,
            metavar="PATH",
            help="Folder of the proof; one that was cut short goes on there. Default: out/prove-<time>.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Prove that the default wins everywhere, or say where it does not, by how much, and why.

    Each cell is a comparison of its own: a model, a workload, a placement and what else goes on, with bars that the
    default must hold. Fixed settings are chosen with other seeds than they are scored with.

    Example: [cyan]dlfp-edge prove --hours 3 --out out/proof[/cyan]

    Ctrl-C keeps the trials that are done; the same command with the same --out goes on. Exit code: 0 where every cell
    that was measured held, 1 where one was lost or failed.
    """
    if context.invoked_subcommand is not None:
        return
    from dlfp_edge.prove.spec import load_spec

    if hours is not None:
        options.parse_positive(str(hours), "--hours")
    if slice_only and spec is not None:
        raise UsageError("--slice is a proof of its own: leave --spec out")
    asked = load_spec(spec, "slice" if slice_only else "default")
    if cells is not None:
        asked = asked.only([name.strip() for name in cells.split(",") if name.strip()])
    folder = out or options.fresh_directory(Path("out") / time.strftime("prove-%Y%m%d-%H%M%S"))
    with ExitStack() as stack:
        if not plan:
            stack.enter_context(options.output_directory(folder))
        code = _prove(asked, folder, hours, plan_only=plan, busy_ok=busy_ok, as_json=as_json)
    raise typer.Exit(code)


def _prove(spec: Spec, folder: Path, hours: float | None, *, plan_only: bool, busy_ok: bool, as_json: bool) -> int:
    from dlfp_edge.cli.logs import keep_log_in
    from dlfp_edge.cli.proving import means
    from dlfp_edge.experiment.machine import refuse_busy

    if not (plan_only or busy_ok or all(cell.simulated for cell in spec.cells)):
        refuse_busy()
    made = means()
    plans = _plans(spec, made, folder, hours, as_json)
    if plan_only and as_json:
        print_json({"cells": [_planned(plan) for plan in plans]})
    elif not as_json:
        _print_plan(plans)
    if plan_only:
        return 0
    keep_log_in(folder)
    return _run(spec, plans, made, folder, hours, as_json)


def _plans(spec: Spec, made: Means, folder: Path, hours: float | None, as_json: bool) -> list[CellPlan]:
    """The plan of what is not done yet; what is done takes no time."""
    from dlfp_edge.prove.budget import expectations, plan
    from dlfp_edge.prove.matrix import kept_result

    to_do = [cell for cell in spec.cells if kept_result(folder, cell) is None]
    with spinner("planning: each model is loaded once…", picture=not as_json):
        expected = expectations(to_do, made, folder)
    return plan(spec.cells, expected, folder, None if hours is None else 3600.0 * hours)


def _run(spec: Spec, plans: list[CellPlan], made: Means, folder: Path, hours: float | None, as_json: bool) -> int:
    from dlfp_edge.prove.matrix import Prover

    looks = _Looks(plans, picture=not as_json and picture_possible())
    prover = Prover(spec.name, plans, made, folder, hours=hours, watch=looks.watch, ended=looks.ended)
    with stops_on_interrupt(prover.stop) as interruption:
        proof = prover.run()
    if as_json:
        print_json({**proof.model_dump(mode="json"), "out": str(folder)})
    else:
        _print_proof(proof, folder)
    if not proof.complete:
        return interruption.code
    return 1 if proof.of("lost", "failed") else 0


class _Looks:
    """Says which cell runs and how much time is left: the plan's, stretched as the cells so far were."""

    def __init__(self, plans: list[CellPlan], *, picture: bool) -> None:
        self._plans, self._picture = plans, picture
        self._names = [plan.cell.name for plan in plans]
        self._expected_s = {plan.cell.name: plan.expected_s or 0.0 for plan in plans if plan.reached}
        self._planned_s = self._took_s = 0.0

    def watch(self, plan: CellPlan, experiment: Experiment) -> AbstractContextManager[Watcher]:
        """A comparison of a cell begins."""
        from dlfp_edge.cli.trials import Progress, minutes

        stretch = self._took_s / self._planned_s if self._planned_s else 1.0
        left = minutes(stretch * sum(self._expected_s.values()))
        stage = "choosing" if experiment.folder.name != plan.cell.name else "scoring"
        number = self._names.index(plan.cell.name) + 1
        note(f"cell {number} of {len(self._names)}, {plan.cell.name}, {stage}; about {left} left in all")
        return Progress(experiment, picture=self._picture)

    def ended(self, result: CellResult) -> None:
        """A cell has ended."""
        expected_s = self._expected_s.pop(result.name, 0.0)
        if result.bars:
            self._planned_s += expected_s
            self._took_s += result.took_s
        said = f": {result.reason}" if result.reason else ""
        note(f"{result.name}: {result.status}{said}")


def _planned(plan: CellPlan) -> dict[str, object]:
    return {
        "cell": plan.cell.name,
        "reached": plan.reached,
        "expected_s": plan.expected_s,
        "cap_s": plan.limits.cap_s,
        "reason": plan.reason,
    }


def _print_plan(plans: list[CellPlan]) -> None:
    from dlfp_edge.cli.trials import minutes

    rows = [
        (
            plan.cell.name,
            plan.cell.model,
            plan.cell.workload,
            plan.cell.condition,
            plan.limits.cap_s,
            None if plan.expected_s is None else minutes(plan.expected_s),
            plan.reason or (None if plan.reached else "left out: the hours do not reach it"),
        )
        for plan in plans
    ]
    print_table("Cells", ("cell", "model", "workload", "condition", "trial s", "time", "note"), rows, markdown=True)
    total_s = sum(plan.expected_s or 0.0 for plan in plans if plan.reached)
    virtual = " of virtual time" if all(plan.cell.simulated for plan in plans) else ""
    print(f"about {minutes(total_s)}{virtual} in all, loading aside")


def _print_proof(proof: Proof, folder: Path) -> None:
    from dlfp_edge.prove.markdown import headline, loss_lines

    rows: list[tuple[str | float | None, ...]] = [
        (result.name, result.status, bar.bar, bar.value, bar.state) for result in proof.cells for bar in result.bars
    ]
    rows += [(result.name, result.status, result.reason, None, None) for result in proof.cells if not result.bars]
    print_table("Bars", ("cell", "outcome", "bar", "value", "bar is"), rows, markdown=True)
    for result in proof.of("lost"):
        for line in loss_lines(result):
            print(line)
    print(headline(proof))
    print(f"files  {folder}/  (proof.md, proof.json, one folder a cell)")
