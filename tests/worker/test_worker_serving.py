"""The worker's own side: what it does with fronts that are not what they should be, and when they go."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlfp_edge import DlfpError, Finish, UsageError, open_engine
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.runtime import LoadOptions
from dlfp_edge.settings import Settings
from dlfp_edge.task import TaskSpec
from dlfp_edge.worker import supervisor
from dlfp_edge.worker.address import SECRET, parse_address
from dlfp_edge.worker.messages import OPTIONS, SETTINGS, SPEC
from dlfp_edge.worker.protocol import Wire, encode_frame, hello

from .conftest import ENDLESS, until

COMMAND = [sys.executable, "-m", "dlfp_edge.cli.main", "worker"]
OPEN = {"runtime": "unruly", "load": OPTIONS.encode(LoadOptions(None, (), 0)), "settings": SETTINGS.encode(Settings())}


class Talk:
    """A conversation with a worker at its stdin and stdout."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self.wire = Wire(self.process.stdout, self.process.stdin)  # type: ignore[arg-type]

    def until(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        while (message := self.wire.receive()) is not None:
            if message["kind"] == kind:
                return message
        raise AssertionError(f"no {kind} came")

    def open(self) -> None:
        """Greet and load."""
        self.wire.send("hello", **hello())
        self.wire.send("open", **OPEN)
        self.until("ready")

    def end(self) -> tuple[int, str]:
        """The exit code and what was said on stderr, once the worker has ended by itself."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said.decode()


@pytest.fixture
def talk() -> Iterator[Talk]:
    conversation = Talk()
    yield conversation
    conversation.process.kill()
    conversation.process.communicate()


def test_a_worker_answers_and_ends_when_asked(talk: Talk) -> None:
    talk.open()
    talk.wire.send("submit", task="t1", spec=SPEC.encode(TaskSpec((1, 2), max_tokens=5, sampling=ENDLESS)), arrived=1.0)
    assert talk.until("accepted")["task"] == "t1"
    finished = talk.until("finished")
    assert finished["part"]["finish"] == "length"
    talk.wire.send("close")
    talk.until("closed")
    assert talk.end() == (0, "")


@pytest.mark.parametrize(
    ("bytes_", "says"),
    [
        (struct.pack(">I", 1 << 30), "at most 16777216"),
        (b"GET / HTTP/1.1\r\n\r\n", "no peer"),
        (struct.pack(">I", 4) + b"junk", "no JSON"),
        (encode_frame("sing"), "unknown kind 'sing'"),
        (encode_frame("submit", task="a"), "cannot be read"),
        (encode_frame("ask", ask=1, what="weather"), "unknown kind 'weather'"),
        (encode_frame("open", **OPEN), "a second 'open'"),
        (encode_frame("ping")[:-3], "broke off in the middle"),
    ],
)
def test_what_is_no_message_ends_the_worker_in_one_line(talk: Talk, bytes_: bytes, says: str) -> None:
    talk.open()
    talk.stdin.write(bytes_)
    talk.stdin.close()
    failed = talk.until("failed")
    assert failed["blame"] == "protocol"
    assert says in failed["error"]
    talk.process.stdin = None
    code, said = talk.end()
    assert code == 1
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("first", [encode_frame("open", **OPEN), encode_frame("hello", **{**hello(), "protocol": 99})])
def test_a_front_that_is_no_peer_is_told_so(talk: Talk, first: bytes) -> None:
    talk.stdin.write(first)
    talk.stdin.flush()
    assert talk.until("hello")["protocol"] == hello()["protocol"], "so that it can name both versions"
    assert talk.until("failed")["blame"] == "protocol"
    code, said = talk.end()
    assert code == 1
    assert "hello" in said or "speaks protocol 99" in said


def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "hello", lambda: {**hello(), "protocol": 7})
    with pytest.raises(
        RuntimeFailure, match=r"front speaks protocol 7 .* this side protocol .*: install the same dlfp-edge"
    ):
        open_engine(runtime="unruly", isolated=True)


def test_a_request_before_the_engine_is_open_is_refused(talk: Talk) -> None:
    talk.wire.send("hello", **hello())
    talk.wire.send("hold", held=True)
    assert "before the engine was open" in talk.until("failed")["error"]
    assert talk.end()[0] == 1


def test_a_worker_whose_front_goes_away_busy_cancels_and_ends(talk: Talk) -> None:
    talk.open()
    talk.wire.send("submit", task="t1", spec=SPEC.encode(TaskSpec((1,), max_tokens=5000, sampling=ENDLESS)), arrived=1)
    talk.until("progress")
    talk.stdin.close()
    assert talk.until("finished")["part"]["finish"] == "cancelled"
    talk.process.stdin = None
    assert talk.end()[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the end of stdin tells")
def test_a_worker_dies_with_its_parent_though_its_stdin_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdin")
    starts = (
        "import os, subprocess, sys, time\n"
        f"command = {COMMAND!r} + ['--parent', str(os.getpid())]\n"
        f"worker = subprocess.Popen(command, stdin=os.open({str(tmp_path / 'stdin')!r}, os.O_RDWR), stdout=-1)\n"
        "print(worker.pid, flush=True)\n"
        "worker.stdout.read(1)\n"
        "time.sleep(600)\n"
    )
    kept_open = os.open(tmp_path / "stdin", os.O_RDWR)
    try:
        with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            worker = psutil.Process(int(parent.stdout.readline()))
            until(lambda: worker.num_threads() and b"libc" in Path(f"/proc/{worker.pid}/maps").read_bytes())
            until(lambda: _dies_with_parent(worker))
            parent.kill()
            parent.wait()
            until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    finally:
        os.close(kept_open)


def _dies_with_parent(worker: psutil.Process) -> bool:
    """Ctrl-C is ignored right after the worker has asked to die with its parent."""
    status = Path(f"/proc/{worker.pid}/status").read_text()
    [ignored] = re.findall(r"^SigIgn:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(ignored, 16) & 1 << signal.SIGINT - 1)


# --- workers that listen


@contextmanager
def listening(address: str, **environment: str) -> Iterator[str]:
    """A worker that listens; gives its address as it says it."""
    process = subprocess.Popen(
        [*COMMAND, "--listen", address], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stderr is not None
        yield process.stderr.readline().removeprefix("listening on ").strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130


def test_fronts_use_a_listening_worker_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(f"unix:{path}") as address:
        assert path.stat().st_mode & 0o077 == 0, "for this user alone"
        with open_engine(runtime="unruly", isolated=address) as first:
            assert first.submit("one", max_tokens=3).wait(60).finish is Finish.LENGTH
            with pytest.raises(RuntimeFailure, match=r"^busy: another program uses this worker"):
                open_engine(runtime="unruly", isolated=address)
            assert first.submit("two", max_tokens=3).wait(60).finish is Finish.LENGTH
        with open_engine(runtime="unruly", isolated=address) as second:
            assert second.submit("three", max_tokens=3).wait(60).finish is Finish.LENGTH
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                with contextlib.suppress(OSError):  # it may have hung up already
                    stranger.sendall(b"hello?")
            assert second.submit("four", max_tokens=3).wait(60).finish is Finish.LENGTH
    assert not path.exists()


def test_the_next_front_waits_for_one_that_was_killed_to_be_cleared_away(tmp_path: Path) -> None:
    ask = (
        "import sys; from dlfp_edge import open_engine, Sampling\n"
        "edge = open_engine(runtime='unruly', isolated=sys.argv[1])\n"
        "next(iter(edge.submit([1, 2], max_tokens=5000, sampling=Sampling(ignore_eos=True))))\n"
        "print('there', flush=True); sys.stdin.read()\n"
    )
    with listening(f"unix:{tmp_path / 'socket'}") as address:
        first = subprocess.Popen(
            [sys.executable, "-c", ask, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert first.stdout is not None
        assert first.stdout.readline() == "there\n"
        first.kill()
        first.communicate()
        with open_engine(runtime="unruly", isolated=address) as second:
            assert second.submit("two", max_tokens=3).wait(60).finish is Finish.LENGTH


def test_a_worker_that_is_terminated_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    process = subprocess.Popen([*COMMAND, "--listen", f"unix:{path}"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("listening on ")
        with open_engine(runtime="unruly", isolated=f"unix:{path}") as edge:
            next(iter(edge.submit([1, 2], max_tokens=5000, sampling=ENDLESS)))
            process.terminate()
            assert process.wait(60) == 143
        assert process.stderr.read() == "dlfp-edge: terminated\n"
        assert not path.exists()
    finally:
        process.kill()
        process.communicate()


def test_a_front_goes_on_with_a_listening_worker_that_was_started_again(tmp_path: Path) -> None:
    where = f"unix:{tmp_path / 'socket'}"
    with listening(where):
        edge = open_engine(runtime="unruly", isolated=where)
        document = edge.submit([1, 2], task_class="background", max_tokens=2000, sampling=ENDLESS)
    with listening(where), edge:
        assert edge.submit("one", max_tokens=3).wait(60).finish is Finish.LENGTH
        document.cancel()
        assert document.wait(60).finish is Finish.CANCELLED


def test_tcp_wants_a_secret_that_both_know(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.run([*COMMAND, "--listen", "127.0.0.1:0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert SECRET in refused.stderr
    with listening("127.0.0.1:0", **{SECRET: "sesame"}) as address:
        with pytest.raises(RuntimeFailure, match="does not know this worker's secret"):
            open_engine(runtime="unruly", isolated=address)
        monkeypatch.setenv(SECRET, "sesame")
        with open_engine(runtime="unruly", isolated=address) as edge:
            assert edge.submit("one", max_tokens=3).wait(60).finish is Finish.LENGTH


def test_only_this_machine_is_listened_to_unless_told() -> None:
    refused = subprocess.run([*COMMAND, "--listen", "0.0.0.0:0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--allow-remote" in refused.stderr


def test_a_socket_left_by_a_killed_worker_is_taken_over_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with subprocess.Popen([*COMMAND, "--listen", f"unix:{path}"], stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        assert killed.stderr.readline()
        killed.kill()
    assert path.is_socket()
    with listening(f"unix:{path}") as address, open_engine(runtime="unruly", isolated=address) as edge:
        taken = subprocess.run([*COMMAND, "--listen", address], capture_output=True, text=True, check=False)
        assert taken.returncode == 2
        assert taken.stderr.endswith("(a worker listens there already): choose another address\n")
        assert edge.submit("one", max_tokens=3).wait(60).finish is Finish.LENGTH


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    refused = subprocess.run([*COMMAND, "--listen", f"unix:{path}"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "choose another address" in refused.stderr
    assert path.read_text() == "mine"


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    began = time.monotonic()
    with pytest.raises(DlfpError, match="no worker listens on unix:"):
        open_engine(runtime="unruly", isolated=f"unix:{tmp_path / 'nothing'}")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "text", ["", "unix:", "somewhere", "host:port", ":80", "host:70000", "host:²", "host:" + "9" * 5000]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)
