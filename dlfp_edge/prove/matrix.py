"""Runs a proof, cell by cell, each into its own folder, and keeps what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.artefacts import write_json, write_whole
from dlfp_edge.experiment.experiment import Experiment
from dlfp_edge.experiment.trial_files import read
from dlfp_edge.plugins import detect_device
from dlfp_edge.prove.budget import CellPlan
from dlfp_edge.prove.cell import CellRun, Watcher
from dlfp_edge.prove.document import CellResult, Proof
from dlfp_edge.prove.markdown import as_markdown
from dlfp_edge.prove.prepare import Prepared
from dlfp_edge.prove.questions import Means
from dlfp_edge.prove.spec import Cell

CELL, PROOF, PAGE, PREPARED = "cell.json", "proof.json", "proof.md", "prepared.json"
DONE = ("held", "lost", "undecided")
"""What a cell can be that was measured; it is not measured again."""


class _Nobody:
    """Watches nothing."""

    def before(self, planned: object) -> None: ...

    def after(self, planned: object, record: object) -> None: ...


def unwatched(plan: CellPlan, experiment: Experiment) -> AbstractContextManager[Watcher]:
    """Nobody looks."""
    return nullcontext(_Nobody())


class Prover:
    """The cells of a plan, in `folder`. `stop` ends it; what was done is kept, and the same again goes on there.

    `watch` looks at each comparison, `ended` is told of each cell's result. A cell that fails is a result like others.
    `clock` gives seconds.
    """

    def __init__(
        self,
        name: str,
        plans: Sequence[CellPlan],
        means: Means,
        folder: Path,
        *,
        hours: float | None = None,
        watch: Callable[[CellPlan, Experiment], AbstractContextManager[Watcher]] = unwatched,
        ended: Callable[[CellResult], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._plans, self._means, self._folder, self._hours = name, plans, means, folder, hours
        self._watch, self._ended, self._clock = watch, ended, clock
        self._prepared = Prepared(folder / PREPARED)
        self._machine: dict[str, Any] = detect_device().describe()
        self._running: CellRun | None = None
        self._stopped = False

    def stop(self) -> None:
        """End with what is done so far. For signal handlers and other threads."""
        self._stopped = True
        running = self._running
        if running is not None:
            running.stop()

    def run(self) -> Proof:
        """Run what is not done yet. Raises RuntimeFailure where the files cannot be written."""
        began = self._clock()
        results: list[CellResult] = []
        for plan in self._plans:
            result = self._one(plan, self._clock() - began)
            results.append(result)
            self._ended(result)
            proof = self._proof([*results, *map(_waiting, self._plans[len(results) :])], self._clock() - began)
            self._write(plan.cell, result, proof)
        return proof

    def _one(self, plan: CellPlan, spent_s: float) -> CellResult:
        kept = kept_result(self._folder, plan.cell)
        if kept is not None:
            return kept
        self._running = CellRun(
            plan.cell,
            self._means,
            plan.limits,
            self._folder / plan.cell.name,
            self._prepared,
            lambda experiment: self._watch(plan, experiment),
            [self._folder / other.cell.name for other in self._plans if other.cell.model == plan.cell.model],
        )
        try:
            # Asked only now that `stop` finds the cell: one that comes later reaches it.
            return _waiting(plan) if self._stopped else self._reached(plan, self._running, spent_s)
        finally:
            self._running = None

    def _reached(self, plan: CellPlan, running: CellRun, spent_s: float) -> CellResult:
        spent = self._hours is not None and spent_s >= 3600.0 * self._hours
        if spent or not plan.reached:
            return _without(plan, "left out", "the hours do not reach it")
        return running.run()

    def _proof(self, results: list[CellResult], took_s: float) -> Proof:
        return Proof(
            name=self._name,
            hours=self._hours,
            complete=all(result.status != "cut short" for result in results),
            took_s=took_s,
            machine=self._machine,
            cells=results,
        )

    def _write(self, cell: Cell, result: CellResult, proof: Proof) -> None:
        try:
            if result.status in DONE:
                write_json(self._folder / cell.name / CELL, result.model_dump(mode="json"))
            write_json(self._folder / PROOF, proof.model_dump(mode="json"))
            write_whole(self._folder / PAGE, as_markdown(proof).encode())
        except OSError as error:
            raise RuntimeFailure(f"--out {self._folder}: cannot write there: {error.strerror or error}") from None


def kept_result(folder: Path, cell: Cell) -> CellResult | None:
    """What came of a cell that was measured before; None where there is nothing, or the cell was another."""
    try:
        result = CellResult.model_validate(read(folder / cell.name / CELL))
    except ValidationError:
        return None
    return result if result.cell == cell.model_dump(mode="json") and result.status in DONE else None


def _waiting(plan: CellPlan) -> CellResult:
    if not plan.reached:
        return _without(plan, "left out", "the hours do not reach it")
    return _without(plan, "cut short", "not begun; the same command goes on")


def _without(plan: CellPlan, status: str, reason: str) -> CellResult:
    return CellResult.model_validate(
        {
            "cell": plan.cell.model_dump(mode="json"),
            "status": status,
            "reason": reason,
            "cap_s": plan.limits.cap_s,
            "expected_s": plan.expected_s,
        }
    )
