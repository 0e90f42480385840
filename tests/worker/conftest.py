"""Workers with an unruly runtime, and the certainty that no test leaves a process behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from dlfp_edge import Edge, Sampling, open_engine

OpenWorker = Callable[..., Edge]

PLUGIN = Path(__file__).parent / "plugin"
ENDLESS = Sampling(ignore_eos=True)


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the unruly runtime as they would any other package's."""
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), *([before] if before else [])]))


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    """Every worker has gone when its test ends, but for those that a whole file shares."""
    shared = workers()
    yield
    assert workers() <= shared


@pytest.fixture
def worker() -> Iterator[OpenWorker]:
    """Opens engines in workers and closes them."""
    with ExitStack() as stack:
        yield lambda runtime="unruly", **more: stack.enter_context(open_engine(runtime=runtime, isolated=True, **more))


def workers() -> set[psutil.Process]:
    return {child for child in psutil.Process().children(recursive=True) if is_worker(child)}


def is_worker(process: psutil.Process) -> bool:
    try:
        return "worker" in process.cmdline()
    except psutil.Error:
        return False


def pid_of(edge: Edge) -> int:
    """The worker's process, once there is one."""
    until(lambda: edge.engine.worker_pid)  # type: ignore[attr-defined]
    return int(edge.engine.worker_pid)  # type: ignore[attr-defined]


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait for something another thread or process does."""
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)
