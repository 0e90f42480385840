"""One cell of a proof, from its model to what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Protocol

from dlfp_edge.errors import DlfpError
from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.experiment import Experiment, Question
from dlfp_edge.experiment.plan import Planned
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.trial_files import TrialFiles
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.prove.choosing import Choice, choose
from dlfp_edge.prove.conditions import CONDITIONS
from dlfp_edge.prove.document import CellResult
from dlfp_edge.prove.prepare import Prepared
from dlfp_edge.prove.questions import Means, Questions
from dlfp_edge.prove.quota import NotHere, Trapped
from dlfp_edge.prove.scoring import scored_cell
from dlfp_edge.prove.spec import Cell
from dlfp_edge.report.comparison import write_report
from dlfp_edge.runtime import Runtime

CHOOSING = "choosing"
"""The folder, in a cell's, of the trials with the seeds to choose by."""

_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Told of each trial of a comparison."""

    def before(self, planned: Planned) -> None: ...

    def after(self, planned: Planned, record: TrialRecord) -> None: ...


Watch = Callable[[Experiment], AbstractContextManager[Watcher]]
"""Watches a comparison during a block, which ends with it."""


class Stopped(DlfpError):
    """The cell was stopped; what was done is kept."""


class CellRun:
    """Runs a cell in `folder`; `stop` ends it with the trials done so far, and it goes on there another time.

    `alike` are the folders of cells on the same model: the harness is checked in one of them.
    """

    def __init__(
        self,
        cell: Cell,
        means: Means,
        limits: Limits,
        folder: Path,
        prepared: Prepared,
        watch: Watch,
        alike: Sequence[Path] = (),
    ) -> None:
        self._cell, self._means, self._limits, self._folder = cell, means, limits, folder
        self._prepared, self._watch, self._alike = prepared, watch, alike
        self._experiment: Experiment | None = None
        self._stopped = False

    def stop(self) -> None:
        """For signal handlers and other threads."""
        self._stopped = True
        if self._experiment is not None:
            self._experiment.stop()

    def run(self) -> CellResult:
        """What came of it; whatever fails is a result with its reason."""
        began, cell = time.monotonic(), self._cell
        condition = CONDITIONS[cell.condition]
        if condition.real and cell.simulated:
            return self._without("skipped", "it means nothing on virtual time", began)
        try:
            with condition.around_cell(), closing(self._means.load(cell)) as runtime:
                found = self._measured(runtime)
        except NotHere as why:
            return self._without("skipped", str(why), began)
        except Stopped:
            return self._without("cut short", "stopped; the same command goes on", began)
        except Trapped:
            raise
        except Exception as error:
            _log.exception("cell %s failed", cell.name)
            said = str(error) if isinstance(error, DlfpError) else f"{type(error).__name__}: {error}"
            return self._without("failed", said, began)
        return found.model_copy(update={"took_s": time.monotonic() - began})

    def _without(self, status: str, reason: str, began: float) -> CellResult:
        document = {"cell": self._cell.model_dump(mode="json"), "status": status, "reason": reason}
        return CellResult.model_validate({**document, "cap_s": self._limits.cap_s, "took_s": time.monotonic() - began})

    def _measured(self, runtime: Runtime) -> CellResult:
        cell = self._cell
        fitted = self._prepared.settings(cell.controls, cell.model, runtime)
        questions = Questions(cell, self._means, self._limits, fitted)
        choosing = questions.choosing()
        chosen: Mapping[str, Choice] = {}
        if choosing is not None:
            experiment, _ = self._run(choosing, runtime, self._folder / CHOOSING)
            chosen = choose(experiment.arms, experiment.records, experiment.candidate)
        experiment, result = self._run(questions.scoring(chosen), runtime, self._folder)
        write_report(result, self._folder)
        notes = [note for note in (questions.others()[1],) if note]
        return scored_cell(cell, experiment, result, chosen, notes)

    def _run(self, question: Question, runtime: Runtime, folder: Path) -> tuple[Experiment, Result]:
        experiment = self._experiment = Experiment(question, runtime, self._means.runtime(self._cell), folder)
        if self._stopped:
            raise Stopped("stopped")
        self._share_check(folder)
        with self._watch(experiment) as watcher:
            result = experiment.run(watcher.before, watcher.after)
        if not result.complete:
            raise Stopped("stopped")
        return experiment, result

    def _share_check(self, folder: Path) -> None:
        """What the check of the harness saw on this model holds for all comparisons on it, unless it found a fault."""
        files = TrialFiles(folder)
        there = (TrialFiles(other).harness() for other in (self._folder / CHOOSING, *self._alike))
        sound = next((checked for checked in there if checked is not None and checked.fault is None), None)
        if sound is not None and files.harness() is None:
            files.write_harness(sound)
