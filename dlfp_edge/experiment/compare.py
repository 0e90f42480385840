"""Compares settings on one loaded model, in windows that alternate so that the machine's moods fall on all alike.

Each round runs every setting once for `window_s`, in an order drawn from the seed, with the same prompts, each on a
fresh engine. The same workload without its background runs among them as solo, once for each placement and pace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dlfp_edge.device import CpuTopology
from dlfp_edge.engine import Engine
from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.artefacts import write_json
from dlfp_edge.experiment.frontier import plot_frontier
from dlfp_edge.experiment.session import VIRTUAL, Outcome, Session, running
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.measure.comparison import Pool, Row, rows
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class

SCHEMA_VERSION = 1
BASELINE = "shared/unlimited"
"""What background throughput is a share of: no protection at all."""

_HEADINGS = {
    "itl_p50": "P50",
    "itl_p99": "P99",
    "itl_max": "max",
    "shown_p99": "shown P99",
    "shown_max": "shown max",
    "late_share": "late",
    "ttft_max": "max TTFT",
    "foreground_tokens_per_s": "fg tok/s",
    "background_tokens_per_s": "bg tok/s",
    "background_share": "bg share",
    "documents_per_min": "docs/min",
    "p99_over_solo": "P99/solo",
    "max_over_solo": "max/solo",
    "ttft_over_solo": "TTFT-solo",
    "target": "target",
    "p99_over_target": "P99/target",
    "max_over_target": "max/target",
}


@dataclass(frozen=True, slots=True)
class Arm:
    """A setting to compare. `pace` (tokens/s) replaces the foreground streams' own; None leaves them as they are."""

    label: str
    settings: Settings
    pace: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The pooled result of the rounds that ran to their end; `order` is the order of the windows in each."""

    workload: str
    seed: int
    scale: float
    rounds: int
    window_s: float
    baseline: str
    simulated: bool
    order: list[list[str]]
    rows: list[Row]

    def table(self) -> str:
        """The rows as aligned text, times in ms."""
        frame = pd.DataFrame([asdict(row) for row in self.rows]).set_index("setting")[list(_HEADINGS)]
        return frame.rename(columns=_HEADINGS).astype(object).to_string(float_format="{:.2f}".format, na_rep="-")

    def as_json(self) -> dict[str, Any]:
        """The content of `compare.json`."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def save(self, folder: Path) -> None:
        """Write `compare.json` and `frontier.png`. Raises RuntimeFailure where that is not possible."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "compare.json", self.as_json())
            title = f"{self.workload}, {self.rounds} x {self.window_s:g} s"
            plot_frontier(self.rows, folder / "frontier.png", f"{title} (simulated)" if self.simulated else title)
        except OSError as error:
            raise RuntimeFailure(f"--out {folder}: cannot write there: {error.strerror or error}") from None


class Comparer:
    """Runs a comparison; `stop` ends it with the rounds done so far.

    `progress` gets a line before each window. Raises UsageError for arms that share a label or do not suit the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        workload: Workload,
        arms: Sequence[Arm],
        *,
        rounds: int,
        window_s: float,
        seed: int = 0,
        scale: float = 1.0,
        topology: CpuTopology | None = None,
        baseline: str = BASELINE,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._runtime, self._topology = runtime, topology
        self._workload = workload
        self._rounds, self._window_s = rounds, window_s
        self._seed, self._scale = seed, scale
        self._baseline = baseline
        self._progress = progress
        self._arms, self._solo_of = _with_solo(arms)
        self._pools = {arm.label: Pool() for arm in self._arms}
        self._order: list[list[str]] = []
        self._session: Session | None = None
        self._stopped = False
        self._told: set[str] = set()

    @property
    def windows(self) -> int:
        """How many windows there will be, solo ones among them."""
        return self._rounds * len(self._arms)

    def run(self, after_round: Callable[[Comparison], None] = lambda result: None) -> Comparison:
        """Run the rounds; `after_round` gets the result so far after each."""
        shuffle = random.Random(self._seed)
        for number in range(self._rounds):
            order = shuffle.sample(self._arms, len(self._arms))
            outcomes = [(arm, self._window(arm, number)) for arm in order if not self._stopped]
            if self._stopped:
                break
            for arm, outcome in outcomes:
                self._pools[arm.label].add(outcome.tally, outcome.facts.target_s)
            self._order.append([arm.label for arm in order])
            after_round(self._result())
        return self._result()

    def stop(self) -> None:
        """Give up the round under way. For signal handlers and other threads."""
        self._stopped = True
        if self._session is not None:
            self._session.stop()

    def _window(self, arm: Arm, number: int) -> Outcome:
        if self._progress is not None:
            self._progress(f"round {number + 1} of {self._rounds}: {arm.label}")
        workload = self._workload if arm.pace is None else self._workload.paced(arm.pace)
        if self._solo_of[arm.label] == arm.label:
            workload = workload.with_streams(workload.of_class(Class.FOREGROUND))
        engine = Engine(self._runtime, sized(arm.settings, self._workload.scaled(self._scale)), self._topology)
        with running(engine):
            self._session = Session(
                engine,
                workload,
                seed=self._seed + number,
                scale=self._scale,
                duration_s=self._window_s,
                windows=None,
                cut=True,
            )
            if self._stopped:
                self._session.stop()
            outcome = self._session.run()
        self._tell(outcome.facts.messages)
        return outcome

    def _tell(self, messages: Iterable[str]) -> None:
        """Pass on what an engine had to say, once."""
        for message in messages:
            if self._progress is not None and message not in self._told:
                self._progress(f"note: {message}")
            self._told.add(message)

    def _result(self) -> Comparison:
        return Comparison(
            workload=self._workload.name,
            seed=self._seed,
            scale=self._scale,
            rounds=len(self._order),
            window_s=self._window_s,
            baseline=self._baseline,
            simulated=self._runtime.clock.name == VIRTUAL,
            order=self._order,
            rows=rows(self._pools, self._solo_of, self._baseline),
        )


def _with_solo(arms: Sequence[Arm]) -> tuple[list[Arm], dict[str, str]]:
    """The arms with a solo arm for each placement and pace among them, and which solo belongs to which arm."""
    solo: dict[tuple[str, float | None], Arm] = {}
    solo_of: dict[str, str] = {}
    for arm in arms:
        if arm.label in solo_of:
            raise UsageError(f"two settings are called '{arm.label}': give each its own label")
        key = (arm.settings.placement.value, arm.pace)
        if key not in solo:
            label = f"{key[0]}/solo" + ("" if arm.pace is None else f" at {arm.pace:g}/s")
            solo[key] = Arm(label, replace(arm.settings, controller="auto", parameters={}), arm.pace)
        solo_of[arm.label] = solo[key].label
    solo_of.update({arm.label: arm.label for arm in solo.values()})
    return [*solo.values(), *arms], solo_of
