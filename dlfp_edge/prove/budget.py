"""Which cells a proof's hours reach, and how long their trials may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dlfp_edge.errors import DlfpError
from dlfp_edge.experiment.experiment import Experiment, begun_limits
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.prove.prepare import FITS
from dlfp_edge.prove.questions import Means, Questions
from dlfp_edge.prove.spec import Cell
from dlfp_edge.runtime import Runtime

LEVELS = (1.0, 0.75, 0.5, 1 / 3)
"""A trial's longest time where hours are short, as a part of the cell's `cap_s`; never below its `least_s`."""


@dataclass(frozen=True, slots=True)
class CellPlan:
    """A cell with the limits of its trials. `expected_s` is None where its model cannot be loaded (`reason`)."""

    cell: Cell
    limits: Limits
    expected_s: float | None
    reached: bool = True
    reason: str | None = None


def expectations(
    cells: Sequence[Cell], means: Means, folder: Path, told: Callable[[str], None] = lambda model: None
) -> dict[str, dict[float, float] | str]:
    """For each cell how long it takes at each of `LEVELS`, or why its model cannot be loaded; each is loaded once.

    A cell that was begun in `folder` has the limits it began with, at every level.
    """
    found: dict[str, dict[float, float] | str] = {}
    for model in dict.fromkeys(cell.model for cell in cells):
        own = [cell for cell in cells if cell.model == model]
        told(model)
        try:
            with closing(means.load(own[0])) as runtime:
                for cell in own:
                    levels = [(level, limits_at(cell, level, folder / cell.name)) for level in LEVELS]
                    found[cell.name] = {level: _expected_s(cell, means, limits, runtime) for level, limits in levels}
        except DlfpError as error:
            found.update({cell.name: str(error) for cell in own})
    return found


def plan(
    cells: Sequence[Cell], expected: Mapping[str, dict[float, float] | str], folder: Path, budget_s: float | None
) -> list[CellPlan]:
    """The cells in their order, as many as fit into the time; trials are as long as they can be for all to fit.

    Where all do not fit at their shortest, the first cells that do are reached. A cell of which nothing is expected is
    done and takes no time.
    """
    level = next((level for level in LEVELS if budget_s is None or _total_s(expected, level) <= budget_s), LEVELS[-1])
    plans, left_s = [], budget_s
    for cell in cells:
        told = expected.get(cell.name, dict.fromkeys(LEVELS, 0.0))
        seconds = None if isinstance(told, str) else told[level]
        reached = left_s is None or seconds is None or seconds <= left_s
        if left_s is not None and seconds is not None and reached:
            left_s -= seconds
        reason = told if isinstance(told, str) else None
        plans.append(CellPlan(cell, limits_at(cell, level, folder / cell.name), seconds, reached, reason))
    return plans


def limits_at(cell: Cell, level: float, folder: Path) -> Limits:
    """The limits of a cell's trials, those it began with where it was."""
    begun = begun_limits(folder) or begun_limits(folder / "choosing")
    return begun or Limits(cell.gaps, max(cell.least_s, level * cell.cap_s))


def _expected_s(cell: Cell, means: Means, limits: Limits, runtime: Runtime) -> float:
    ready = cell.model_copy(update={"controls": [name for name in cell.controls if name not in FITS]})
    questions = Questions(ready, means, limits, fitted={})
    asked = [question for question in (questions.choosing(), questions.scoring(None)) if question is not None]
    name = means.runtime(cell)
    return sum(Experiment(question, runtime, name, Path(cell.name)).expected_s() for question in asked)


def _total_s(expected: Mapping[str, dict[float, float] | str], level: float) -> float:
    return sum(told[level] for told in expected.values() if not isinstance(told, str))
