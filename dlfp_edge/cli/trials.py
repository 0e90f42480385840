"""How far a comparison has come: a bar with the time left on a terminal, else a line a trial."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from dlfp_edge.cli.output import note, notes_in_picture

if TYPE_CHECKING:
    from dlfp_edge.experiment.experiment import Experiment
    from dlfp_edge.experiment.plan import Planned
    from dlfp_edge.experiment.record import TrialRecord

DRAW_S = 0.5


class Progress:
    """Shows an experiment's progress during a block; `before` and `after` are its callbacks.

    The time left is the plan's for the trials to come, stretched as those done were.
    """

    def __init__(self, experiment: Experiment, *, picture: bool) -> None:
        self._experiment = experiment
        self._left_s = experiment.expected_s()
        self._expected_s = self._took_s = 0.0
        self._running: Planned | None = None
        self._done, self._count = 0, experiment.plan.trials
        self._picture = picture
        self._around = ExitStack()
        self._ended = threading.Event()
        self._said: set[str] = set()

    def __enter__(self) -> Progress:
        note(f"about {minutes(self._left_s)} in all; trials that are done are kept, also when this is cut short")
        if self._picture:
            self._draw_meanwhile()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._around.close()

    def before(self, planned: Planned) -> None:
        """A trial begins."""
        self._running = planned
        if not self._picture:
            note(f"{self._title()}; {self._time_left()} left")

    def after(self, planned: Planned, record: TrialRecord) -> None:
        """A trial has ended, or was there."""
        expected_s = self._experiment.expected_s(planned.arm)
        if self._running is planned:
            self._expected_s += expected_s
            self._took_s += record.took_s
        self._left_s = max(0.0, self._left_s - expected_s)
        self._done, self._running = self._done + 1, None
        if not record.counts:
            note(f"{planned.arm.label}, seed {planned.seed}: {record.status}: {record.reason}")
        for message in record.messages:
            if message not in self._said:
                self._said.add(message)
                note(f"note: {message}")

    def _title(self) -> str:
        running = self._running
        if running is None:
            return "checking the harness" if not self._done else ""
        return f"trial {self._done + 1} of {self._count}: {running.arm.label}, seed {running.seed}"

    def _ran_s(self) -> float:
        """What the trial under way has behind it, by the plan."""
        running = self._running
        return 0.0 if running is None else self._experiment.expected_s(running.arm) * self._experiment.part

    def _time_left(self) -> str:
        stretch = self._took_s / self._expected_s if self._expected_s else 1.0
        return f"about {minutes(max(0.0, self._left_s - self._ran_s()) * stretch)}"

    def _draw_meanwhile(self) -> None:
        """Draw a bar from a thread of its own until the block ends."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]} left"))
        bar = Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        whole_s = max(self._left_s, 1e-9)
        task = bar.add_task("", total=whole_s, left="")

        def draw() -> None:
            while not self._ended.wait(DRAW_S):
                done_s = whole_s - self._left_s + self._ran_s()
                bar.update(task, description=self._title(), completed=done_s, left=self._time_left(), refresh=True)

        thread = threading.Thread(target=draw, name="progress", daemon=True)
        self._around.enter_context(bar)
        self._around.enter_context(notes_in_picture(lambda line: bar.console.print(line, markup=False)))
        self._around.callback(thread.join)
        thread.start()


def minutes(seconds: float) -> str:
    """A time for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
