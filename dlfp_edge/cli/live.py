"""What a person sees while a run goes on: a picture on a terminal, plain lines elsewhere, or nothing.

Rendering holds the interpreter's lock, which the engine needs for every step, so a picture is drawn less than seven
times a second, its parts one after another with the lock offered in between.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dlfp_edge.cli.output import note, notes_in_picture
from dlfp_edge.cli.transcript import Transcript
from dlfp_edge.trace import Snapshot

if TYPE_CHECKING:
    from dlfp_edge.cli.painter import Painter
    from dlfp_edge.cli.panels import Frame

_PICTURE_INTERVAL_S = 0.15
_LINE_INTERVAL_S = 5.0
_RATE_WINDOW = 40
_KEPT_NOTICES = 500


class Watched(Protocol):
    """What a view needs of an engine."""

    def snapshot(self) -> Snapshot: ...


@contextmanager
def spinner(message: str, picture: bool) -> Iterator[None]:
    """Show that something takes a while: a spinner on a terminal where pictures are wanted, else one line."""
    if not (picture and picture_possible()):
        note(message)
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message, refresh_per_second=8):
        yield


@contextmanager
def progress_bar() -> Iterator[Callable[[float, str], None]]:
    """Show how far a measurement has come (0 to 1) and what comes next.

    Drawn when told only: drawing on its own would disturb what is measured.
    """
    if not picture_possible():
        yield lambda done, what: note(f"{done:4.0%}  {what}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(done: float, what: str) -> None:
            bar.update(task, completed=done, description=what, refresh=True)

        yield tell


def picture_possible() -> bool:
    """Whether pictures can be drawn: stderr is a terminal, not only called one, and it has the characters."""
    from rich.console import Console

    if sys.stderr is None or not sys.stderr.isatty():
        return False
    console = Console(stderr=True)
    able = console.is_terminal and not console.is_dumb_terminal and not console.legacy_windows
    return able and console.encoding.startswith("utf")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a view knows beforehand: how many background tasks there will be (None: open), whether time is virtual."""

    documents: int | None
    simulated: bool

    @property
    def prefix(self) -> str:
        """What figures of no device begin with."""
        return "simulated, " if self.simulated else ""


class View:
    """Looks at the engine every `interval_s` from a thread of its own until the block ends, and once more then."""

    interval_s: float

    def __init__(self, engine: Watched, transcript: Transcript, scene: Scene) -> None:
        self._engine = engine
        self._transcript = transcript
        self._scene = scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dlfp-view", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2)
        self.show()

    def show(self) -> None:
        """Show the present state once."""
        raise NotImplementedError

    def _loop(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.show()


class LineView(View):
    """One line every few seconds, for logs and pipes."""

    interval_s = _LINE_INTERVAL_S

    def show(self) -> None:
        snapshot = self._engine.snapshot()
        gap = f"{1000 * self._transcript.gaps_s[-1]:.0f} ms" if self._transcript.gaps_s else "-"
        target = "-" if snapshot.target_s is None else f"{1000 * snapshot.target_s:.0f} ms"
        note(
            f"{self._scene.prefix}foreground: {self._transcript.tokens} tokens, last gap {gap}, target {target}; "
            f"background: {snapshot.background_finished} done, {snapshot.background_running} running, "
            f"{snapshot.background_queued} waiting, {snapshot.background_prompt_tokens:,} prompt tokens"
        )


class PictureView(View):
    """A picture that is redrawn in place. What is noted meanwhile is shown in it, and said below it at the end."""

    interval_s = _PICTURE_INTERVAL_S

    def __init__(self, engine: Watched, transcript: Transcript, scene: Scene) -> None:
        super().__init__(engine, transcript, scene)
        self._started_s: float | None = None
        self._foreground = Rate()
        self._background = Rate()
        self._notices: deque[str] = deque(maxlen=_KEPT_NOTICES)
        self._over = ExitStack()
        self._painter: Painter | None = None

    def __enter__(self) -> None:
        from dlfp_edge.cli.painter import Painter

        self._painter = Painter()
        self._over.enter_context(notes_in_picture(self._notices.append))
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._painter is not None:
            self._painter.leave()
        self._over.close()
        for message in self._notices:
            note(message)

    def show(self) -> None:
        from dlfp_edge.cli.panels import render

        if self._painter is None:
            return
        columns, rows = self._painter.size()
        frame = self.frame(columns * rows)
        time.sleep(0)  # offers the interpreter's lock to the engine
        lines = render(frame, columns, rows - 1)
        time.sleep(0)
        self._painter.draw(lines, columns)

    def frame(self, characters: int) -> Frame:
        """What the next picture shows."""
        from dlfp_edge.cli.panels import Frame

        snapshot = self._engine.snapshot()
        if self._started_s is None:
            self._started_s = snapshot.now
        return Frame(
            snapshot=snapshot,
            documents=self._scene.documents,
            text=self._transcript.tail(characters),
            title=self._scene.prefix + (self._transcript.label or "waiting for the foreground"),
            gaps_s=list(self._transcript.gaps_s),
            pace=self._transcript.pace,
            elapsed_s=snapshot.now - self._started_s,
            foreground_rate=self._foreground.per_second(snapshot.now, self._transcript.tokens),
            background_rate=self._background.per_second(snapshot.now, snapshot.background_prompt_tokens),
            notices=() if self._stop.is_set() else list(self._notices),
        )


class Rate:
    """How fast a total has grown lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_RATE_WINDOW)

    def per_second(self, now: float, total: float) -> float:
        """Take the total at this moment and return its growth per second over the last few seconds."""
        self._seen.append((now, total))
        first_time, first_total = self._seen[0]
        return (total - first_total) / (now - first_time) if now > first_time else 0.0


ViewFactory = Callable[[Watched, Transcript, Scene], View]


def choose_view(quiet: bool, as_json: bool) -> ViewFactory | None:
    """The view that fits where stderr goes; None shows nothing."""
    if quiet:
        return None
    return PictureView if not as_json and picture_possible() else LineView
