"""One llama.cpp server as a child process: started, waited for until it answers, and ended by its id."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import httpx
import psutil

from dlfp_edge.errors import RuntimeFailure

START_S = 120.0
"""How long a server may take to load its model and answer."""

_ENDING_S = 5.0
_POLL_S = 0.05
_TAIL_BYTES = 64 << 10


class ServerProcess:
    """A server that answers at `url`. Raises RuntimeFailure, with the last line it said, where it does not start.

    It dies with the thread that started it, on Linux. `url` None takes the one that the server prints first.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path | None, *, url: str | None = None, idle: bool = False
    ) -> None:
        self.name = name
        self._log = _open_log(log)
        try:
            self._process = subprocess.Popen(
                [*_launcher(idle), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if url is None else self._log,
                stderr=self._log,
                creationflags=_windows_flags(idle),
            )
        except OSError as error:
            self._log.close()
            raise RuntimeFailure(f"{name} cannot be started: {error.strerror or error}") from None
        self.pid = self._process.pid
        try:
            deadline = time.monotonic() + START_S
            self.url = self._printed_url(deadline) if url is None else url
            self._wait_until_healthy(deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process: asked first, then killed; safe to repeat."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def priorities(self) -> dict[str, int]:
        """How many threads have which priority, by what the system says; not every system tells."""
        found: Counter[str] = Counter()
        if sys.platform == "linux":
            with contextlib.suppress(psutil.Error):
                for thread in psutil.Process(self.pid).threads():
                    with contextlib.suppress(ProcessLookupError):
                        policy = _POLICIES.get(os.sched_getscheduler(thread.id), "another policy")
                        found[f"{policy}, nice {os.getpriority(os.PRIO_PROCESS, thread.id)}"] += 1
        return dict(found)

    def _printed_url(self, deadline: float) -> str:
        """The URL that the server prints; a thread reads on, since a pipe cannot be waited for on every system."""
        found: queue.Queue[str] = queue.Queue()
        output = self._process.stdout
        assert output is not None

        def read() -> None:
            for line in output:
                if line.startswith(b"http"):
                    found.put(line.decode(errors="replace").strip())
            found.put("")

        threading.Thread(target=read, name="peer output", daemon=True).start()
        try:
            url = found.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise RuntimeFailure(self._words(f"did not load its model in {START_S:g} s")) from None
        if not url:
            raise RuntimeFailure(self._words("ended while it loaded"))
        return url

    def _wait_until_healthy(self, deadline: float) -> None:
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise RuntimeFailure(self._words("ended while it loaded"))
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                time.sleep(_POLL_S)
        raise RuntimeFailure(self._words(f"did not answer in {START_S:g} s"))

    def _words(self, what: str) -> str:
        """What went wrong, with the first line in which the server complains, or the last of all."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.wait(1.0 if "ended" in what else 0.0)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        telling = next((line for line in lines if _COMPLAINT.search(line)), lines[-1] if lines else "nothing")
        return f"{self.name} {what}; it said: {telling[:300]}"


_COMPLAINT = re.compile(r" E |error", re.IGNORECASE)

if sys.platform == "linux":
    _POLICIES = {
        getattr(os, name): name for name in ("SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE", "SCHED_FIFO", "SCHED_RR")
    }


def _launcher(idle: bool) -> list[str]:
    """What a command is given to where a program can become another one; Windows has flags instead."""
    if sys.platform == "win32":
        return []
    module = "dlfp_edge.experiment.peers.launch"
    return [sys.executable, "-m", module, str(os.getpid()), "idle" if idle else "normal"]


def _windows_flags(idle: bool) -> int:
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | (subprocess.IDLE_PRIORITY_CLASS if idle else 0)
    return 0


def _open_log(path: Path | None) -> IO[bytes]:
    """The server's log, or a file without a name that goes with it."""
    if path is None:
        return tempfile.TemporaryFile()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w+b")
    except OSError as error:
        raise RuntimeFailure(f"{path}: cannot be written: {error.strerror or error}") from None


def free_port() -> int:
    """A port of this machine that nobody listens at, as far as can be known."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
