"""The picture on a terminal: drawn in place, after a resize too, and nothing else where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from dlfp_edge.cli.interrupt import _RESTORE
from dlfp_edge.cli.live import PictureView, Scene
from dlfp_edge.cli.output import note
from dlfp_edge.cli.painter import Painter
from dlfp_edge.cli.transcript import Transcript
from dlfp_edge.trace import Snapshot

from .terminal import Terminal
from .test_cli_live import SNAPSHOT

COLOURS = {str(number) for number in (*range(30, 38), *range(90, 98))}


class Screen:
    """stderr, as a terminal of a given size."""

    encoding = "utf-8"

    def __init__(self, columns: int, rows: int) -> None:
        self.terminal = Terminal(columns, rows)
        self.writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        self.terminal.feed(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def stderr_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Called in the test itself: between fixtures and test pytest sets stderr anew."""
    screen = Screen(80, 24)
    monkeypatch.setattr(sys, "stderr", screen)
    size = lambda fd: os.terminal_size((screen.terminal.columns, screen.terminal.rows))  # noqa: E731
    monkeypatch.setattr(os, "get_terminal_size", size)
    return screen


def test_pictures_replace_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    screen.write("$ before\n")
    drawn = Painter()
    for words in (["one", "two", "three"], ["four"], ["five", "six"]):
        drawn.draw([Text(word) for word in words], 80)
        assert screen.terminal.lines == ["$ before", *words, ""]
    drawn.leave()
    assert screen.terminal.modes == {"25": True, "7": True, "2026": False}


def test_a_picture_that_is_the_same_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    drawn = Painter()
    for _ in range(3):
        drawn.draw([Text("one")], 80)
    assert screen.writes == 1


@pytest.mark.parametrize("columns", [7, 30, 40, 200])
def test_after_a_resize_nothing_is_left_of_the_old_picture(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    screen.write("$ b\n")
    drawn = Painter()
    drawn.draw([Text("x" * 80), Text(""), Text("y" * 41), Text("z")], 80)
    screen.terminal.narrow(columns)
    drawn.draw([Text("new"), Text("picture")], columns)
    assert screen.terminal.lines == ["$ b", "new", "picture", ""]


def test_lines_too_long_are_cut_and_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    Painter().draw([Text("x" * 90), Text("y")], 80)
    assert screen.terminal.lines == ["x" * 80, "y", ""]


def test_a_terminal_that_has_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    monkeypatch.setattr(screen, "write", _gone)
    monkeypatch.setattr("dlfp_edge.cli.painter.discard", lambda stream: None)
    drawn = Painter()
    drawn.draw([Text("one")], 80)
    drawn.leave()


def _gone(text: str) -> int:
    raise OSError(5, "Input/output error")


class _Engine:
    def snapshot(self) -> Snapshot:
        return SNAPSHOT


def test_the_view_follows_the_size_and_says_notes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = stderr_on_a_screen(monkeypatch)
    view = PictureView(_Engine(), Transcript(), Scene(20, simulated=False))
    with view:
        note("note: the disk is full")
        view.show()
        assert max(map(len, screen.terminal.lines)) == 80
        assert "note: the disk is full" in "\n".join(screen.terminal.lines[-5:])
        screen.terminal.narrow(40)
        screen.terminal.rows = 10
        view.show()
        visible = screen.terminal.lines[-10:]
        assert visible[0].startswith("── waiting for the foreground")
        assert max(map(len, visible)) == 40
    assert screen.terminal.lines[-2:] == ["note: the disk is full", ""]
    assert sum("the disk is full" in line for line in screen.terminal.lines) == 1
    assert screen.terminal.modes["25"] is True


def test_what_a_second_interrupt_sends_undoes_what_a_picture_sets() -> None:
    terminal = Terminal(80, 24)
    terminal.feed(_RESTORE)
    assert terminal.modes == {"2026": False, "7": True, "25": True}


Run = Callable[..., tuple[str, int]]


@pytest.fixture
def on_a_terminal(tmp_path: Path) -> Run:
    """Runs the command with stderr on a pseudo-terminal; what it wrote there, and its exit code."""

    def run(*arguments: str, **environment: str) -> tuple[str, int]:
        ours, theirs = pty.openpty()
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
        process = subprocess.Popen(
            [sys.executable, "-m", "dlfp_edge.cli.entry", *arguments],
            cwd=tmp_path,
            env={**kept, "TERM": "xterm-256color", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        written = b""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody has it open any more
                break
            if not got:
                break
            written += got
        os.close(ours)
        return written.decode(), process.wait(60)

    return run


RUN = ("run", "chat-ingest", "--runtime", "simulated", "--duration", "5", "--out", "files")


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_the_picture_with_and_without_colour(on_a_terminal: Run, environment: dict[str, str], coloured: bool) -> None:
    written, code = on_a_terminal(*RUN, **environment)
    assert code == 0, written
    after = written[written.index("\x1b[?2026h") :]
    terminal = Terminal(80, 24)
    terminal.feed(after.replace("\r\n", "\n"))
    assert any("lanes/dlfp" in line for line in terminal.lines)
    assert bool(terminal.colours & COLOURS) is coloured


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_terminals_that_cannot_draw_get_lines(on_a_terminal: Run, environment: dict[str, str]) -> None:
    written, code = on_a_terminal(*RUN, **environment)
    assert code == 0, written
    assert "\x1b" not in written
    assert "simulated, foreground: " in written


def test_forced_colour_draws_no_picture_into_a_pipe(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlfp_edge.cli.entry", *RUN],
        cwd=tmp_path,
        env={**os.environ, "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert "\x1b[" in done.stdout
