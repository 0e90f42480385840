"""A cell as comparisons: one that chooses, with seeds to choose by, and one that scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlfp_edge.errors import MissingExtra
from dlfp_edge.experiment.arms import Named, Others
from dlfp_edge.experiment.experiment import Question
from dlfp_edge.experiment.plan import FINALISTS
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.prove.choosing import FIXED, Choice
from dlfp_edge.prove.conditions import CONDITIONS
from dlfp_edge.prove.spec import Cell
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings

Setting = tuple[str, Settings, str | None]


@dataclass(frozen=True, slots=True)
class Means:
    """How words become what a comparison takes. `settings` are a cell's by name, `others` its peers, both as in
    `compare`; `load` opens a cell's model and `runtime` is the name of what runs it. All raise UsageError.
    """

    settings: Callable[[Cell, Sequence[str]], tuple[Setting, ...]]
    others: Callable[[Cell], tuple[Others, ...]]
    load: Callable[[Cell], Runtime]
    runtime: Callable[[Cell], str]


@dataclass(frozen=True, slots=True)
class Questions:
    """Makes the questions of a cell. `fitted` are whole settings by the names that stand for them."""

    cell: Cell
    means: Means
    limits: Limits
    fitted: Mapping[str, str]

    @property
    def candidate(self) -> str:
        """The candidate's label: the cell's, where the cell says the placement together with that."""
        cell = self.cell
        return f"{cell.placement}/auto" if cell.candidate == "auto" and cell.placement != "auto" else cell.candidate

    def choosing(self) -> Question | None:
        """What the best fixed setting and the best of each peer come from; None where there is no choice."""
        mine, *fixed = self._settings(self.cell.best_of)
        others, _ = self.others()
        if len(fixed) < 2 and not others:
            return None
        return self._question((mine, *fixed), others, self.cell.seeds.choose)

    def scoring(self, chosen: Mapping[str, Choice] | None) -> Question:
        """The candidate against its controls and what was chosen; None tells how long it takes with as much."""
        _, *fixed = self._settings(self.cell.best_of)
        best = [label for label, _, _ in fixed[:FINALISTS]]
        others, _ = self.others()
        if chosen is not None:
            best = list(chosen[FIXED].labels) if FIXED in chosen else best
            labels = {label for choice in chosen.values() for label in choice.labels}
            others = tuple(_only(make, labels) for make in others)
        return self._question(self._settings([*self.cell.controls, *best]), others, self.cell.seeds.score)

    def others(self) -> tuple[tuple[Others, ...], str | None]:
        """The peers, or why there are none."""
        try:
            return self.means.others(self.cell), None
        except MissingExtra as missing:
            return (), f"without peers: {missing}"

    def workload(self) -> Workload:
        """What is asked."""
        asked = load_workload(self.cell.workload).scaled(self.cell.scale)
        return asked if self.cell.pace is None else asked.paced(self.cell.pace)

    def _settings(self, names: Sequence[str]) -> tuple[Setting, ...]:
        """The candidate and the settings named, each once, of no sweep."""
        condition = CONDITIONS[self.cell.condition]
        whole = {self.fitted.get(name, name): name for name in (self.candidate, *names)}
        made = self.means.settings(self.cell, list(whole))
        return tuple((whole.get(label, label), condition.changed(built), None) for label, built, _ in made)

    def _question(self, settings: tuple[Setting, ...], others: tuple[Others, ...], seeds: Sequence[int]) -> Question:
        condition = CONDITIONS[self.cell.condition]
        return Question(
            workload=self.workload(),
            scale=self.cell.scale,
            settings=settings,
            others=others,
            seeds=tuple(seeds),
            gaps=self.limits.gaps,
            cap_s=self.limits.cap_s,
            condition=self.cell.condition,
            around=condition.around_trial,
        )


def _only(make: Others, labels: set[str]) -> Others:
    """The arms that have these labels, no longer points of a sweep."""

    def chosen(runtime: Runtime, workload: Workload, context: int | None) -> list[Named]:
        made = make(runtime, workload, context)
        return [(label, opener, None) for label, opener, _ in made if label in labels]

    return chosen
