"""The log: what is in it at which level, where it goes, and that nobody waits for it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dlfp_edge.cli import logs
from dlfp_edge.cli.logs import Logs
from dlfp_edge.errors import UsageError

from .conftest import Cli

RUN = ("run", "chat-ingest", "--runtime", "simulated", "--duration", "3", "--out", "files", "--quiet")
INFEASIBLE = ("--setting", "shared/dlfp", "--target-itl", "1ms")
OURS = logging.getLogger("dlfp_edge.test")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No level of the environment's, and logging as it was afterwards."""
    monkeypatch.delenv("DLFP_EDGE_LOG", raising=False)
    root, level = list(logging.getLogger().handlers), logging.getLogger("dlfp_edge").level
    yield
    assert logging.getLogger().handlers == root
    assert logging.getLogger("dlfp_edge").level == level


def test_a_run_leaves_its_log(cli: Cli, tmp_path: Path) -> None:
    said = cli(*RUN)
    lines = read(tmp_path / "files" / "log.jsonl")
    assert said.code == 0
    assert said.err == ""
    assert "log.jsonl" in said.out
    assert lines[0]["message"] == "model loaded"
    assert {line["level"] for line in lines} == {"info"}
    assert lines[0]["fields"]["runtime"] == "simulated"
    assert datetime.fromisoformat(lines[0]["time"]).utcoffset() is not None
    assert sum("opened" in line["message"] for line in lines) == 2


@pytest.mark.parametrize(
    ("level", "there", "missing"),
    [
        ("debug", ["admitted", "ended, length", "infeasible", "model loaded"], []),
        ("info", ["infeasible", "model loaded"], ["admitted"]),
        ("WARNING", ["infeasible"], ["model loaded"]),
        ("error", [], ["infeasible"]),
    ],
)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_levels(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, level: str, there: list[str], missing: list[str]
) -> None:
    if by == "environment":
        monkeypatch.setenv("DLFP_EDGE_LOG", level)
    said = cli(*(() if by == "environment" else ("--log-level", level)), *RUN, *INFEASIBLE)
    assert said.code == 0
    text = (tmp_path / "files" / "log.jsonl").read_text()
    for words in there:
        assert words in text
        assert words in said.err
    for words in missing:
        assert words not in text
        assert words not in said.err


@pytest.mark.parametrize("by", ["option", "environment"])
def test_an_unknown_level_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "environment":
        monkeypatch.setenv("DLFP_EDGE_LOG", "inof")
    said = cli(*(() if by == "environment" else ("--log-level", "inof")), *RUN)
    assert (said.code, said.out) == (2, "")
    assert said.err == "dlfp-edge: error: unknown log level 'inof': did you mean 'info'?\n"


def test_the_place_of_the_option_is_told(cli: Cli) -> None:
    said = cli("run", "--log-level", "debug")
    assert said.code == 2
    assert "before the command" in said.err


def test_a_file_of_ones_own_is_appended_to(cli: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli("--log-file", "logs/mine.jsonl", *RUN).code == 0
    lines = read(tmp_path / "logs" / "mine.jsonl")
    assert [line["message"] for line in lines].count("model loaded") == 2
    assert not (tmp_path / "files" / "log.jsonl").exists()


def test_an_earlier_log_in_the_folder_is_replaced(cli: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli(*RUN).code == 0
    lines = read(tmp_path / "files" / "log.jsonl")
    assert [line["message"] for line in lines].count("model loaded") == 1


@pytest.mark.parametrize("path", ["/dev/null/x", "folder", ""])
def test_a_log_that_cannot_be_written_is_refused_at_the_start(cli: Cli, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    said = cli("--log-file", path, *RUN)
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert "log-file" in said.err
    assert not (tmp_path / "files").exists()


def test_a_full_disk_is_said_once_and_the_run_goes_on(cli: Cli) -> None:
    said = cli("--log-level", "debug", "--log-file", "/dev/full", *RUN)
    assert said.code == 0
    assert said.err.count("No space left on device") == 1
    assert "the command goes on without its log" in said.err
    assert "chat-ingest" in said.out


def test_a_failure_has_its_traceback_in_the_file_only(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("dlfp_edge.starter.Starter.start_steps", fail)
    said = cli(*RUN)
    assert said.code == 1
    assert said.err.splitlines()[-1] == "dlfp-edge: error: RuntimeError: no such luck"
    assert "Traceback" not in said.err
    [failure] = [line for line in read(tmp_path / "files" / "log.jsonl") if line["level"] == "error"]
    assert failure["traceback"].startswith("Traceback")
    assert "no such luck" in failure["traceback"]


def test_what_ends_a_thread_is_one_line_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Logs(None, tmp_path / "log.jsonl")
    thread = threading.Thread(target=lambda: 1 / 0, name="a thread")
    thread.start()
    thread.join()
    log.close()
    assert capsys.readouterr().err == "error: a thread failed: ZeroDivisionError: division by zero\n"
    [line] = read(tmp_path / "log.jsonl")
    assert "ZeroDivisionError" in line["traceback"]


def test_a_warning_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    log = Logs(None, None)
    warnings.warn("something is old", UserWarning, stacklevel=1)
    log.close()
    said = capsys.readouterr().err
    assert said.startswith("note: ")
    assert "something is old" in said


class Stalled(logging.Handler):
    """A disk that writes nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.go.wait(60)
        self.seen.append(record.getMessage())


def test_nobody_waits_for_a_stalled_disk_and_what_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_LIMIT", 50)
    stalled, log = Stalled(), Logs("debug", None)
    log._file.begin(stalled)
    log._stderr.setLevel(logging.CRITICAL)
    for number in range(200):
        OURS.debug("record %d", number)
    stalled.go.set()
    log.close()
    assert stalled.seen[0] == "record 0"
    kept = len(stalled.seen) - 1
    assert kept in (50, 51)
    assert stalled.seen[-1].startswith(f"{200 - kept} log records were dropped")


def test_a_stalled_terminal_does_not_hold_up_the_file(tmp_path: Path) -> None:
    stalled, log = Stalled(), Logs("debug", tmp_path / "log.jsonl")
    stalled.addFilter(lambda record: record.name == OURS.name)
    terminal = logs._Apart(stalled)
    logging.getLogger().addHandler(terminal)
    OURS.info("one")
    deadline = time.monotonic() + 30
    while not read(tmp_path / "log.jsonl"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert stalled.seen == []
    stalled.go.set()
    logging.getLogger().removeHandler(terminal)
    terminal.close()
    log.close()


def test_what_a_record_refers_to_may_change(tmp_path: Path) -> None:
    log, values = Logs("info", tmp_path / "log.jsonl"), [1]
    for number in range(3):
        values[0] = number
        OURS.info("values %s", values)
    log.close()
    assert [line["message"] for line in read(tmp_path / "log.jsonl")] == ["values [0]", "values [1]", "values [2]"]


def test_other_packages_only_from_a_warning_on(tmp_path: Path) -> None:
    log = Logs("debug", tmp_path / "log.jsonl")
    logging.getLogger("other").info("chatter")
    logging.getLogger("other").warning("grave")
    log.close()
    assert [line["message"] for line in read(tmp_path / "log.jsonl")] == ["grave"]


def test_a_log_in_a_folder_needs_that_it_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    log = Logs(None, None)
    with pytest.raises(UsageError, match=r"log\.jsonl"):
        log.keep_in(tmp_path)
    log.close()


def test_embedded_the_engine_prints_nothing() -> None:
    code = (
        "from dlfp_edge import open_engine\n"
        "with open_engine(runtime='simulated', setting='shared/dlfp', target_itl_s=1e-3) as edge:\n"
        "    edge.submit([1, 2], max_tokens=20).wait(30)\n"
        "    assert edge.engine.messages\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("package", ["typer", "pydantic"])
@pytest.mark.parametrize(("sent", "code", "says"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_while_everything_is_imported(tmp_path: Path, package: str, sent: str, code: int, says: str) -> None:
    """A stand-in for a package sends the signal, so that it surely comes during imports."""
    (tmp_path / f"{package}.py").write_text(
        f"import os, signal, time\nos.kill(os.getpid(), signal.{sent})\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from dlfp_edge.cli.entry import main; raise SystemExit(main())", "run", "chat"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"dlfp-edge: {says}\n"


def test_starting_the_command_imports_little() -> None:
    code = (
        "import sys, dlfp_edge.cli.entry; print([name for name in ('numpy', 'typer', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
