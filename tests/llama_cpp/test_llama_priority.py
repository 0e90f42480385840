"""Priority per thread: the calls each system gets, what it says when asked, and who holds what."""

from __future__ import annotations

import os
import platform
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from llama_harness import OpenLane, run_step, segment

from dlfp_edge.runtime import Priority, ReportsThreads, Runtime, Sampling
from dlfp_edge.runtimes.llama_cpp.priority import (
    DarwinPriority,
    LinuxPriority,
    NoPriority,
    ThreadPriority,
    WindowsPriority,
    can_restore,
)
from dlfp_edge.runtimes.llama_cpp.threads import NewThreads, thread_state
from dlfp_edge.runtimes.llama_cpp.workers import Workers

linux_only = pytest.mark.skipif(platform.system() != "Linux", reason="SCHED_IDLE is Linux's")


class FakeLinux:
    """The scheduling calls of `os`, with threads that remember their policy."""

    SCHED_OTHER, SCHED_IDLE = 0, 5
    sched_param = staticmethod(lambda priority: priority)

    def __init__(self, may_raise: bool = True) -> None:
        self.policies: dict[int, int] = {}
        self._may_raise = may_raise

    def sched_setscheduler(self, thread: int, policy: int, _parameter: Any) -> None:
        if thread == 404:
            raise ProcessLookupError
        if policy == self.SCHED_OTHER and not self._may_raise:
            raise PermissionError
        self.policies[thread] = policy

    def sched_getscheduler(self, thread: int) -> int:
        return self.policies.get(thread, self.SCHED_OTHER)


class FakeFinder:
    """Two workers and a driver."""

    def __init__(self, *threads: int) -> None:
        self.threads = threads

    def adopt_caller(self) -> None: ...

    def before_step(self) -> None: ...

    def find(self) -> frozenset[int]:
        return frozenset({*self.threads, threading.get_native_id()})


@pytest.fixture
def no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlfp_edge.runtimes.llama_cpp.workers.set_affinity", lambda threads, cores: None)


def begun(priority: ThreadPriority, finder: FakeFinder, rank: Priority, messages: list[str]) -> Workers:
    workers = Workers(rank, priority, finder, (0,), None, messages.append)
    workers._apart = False
    workers.begin()
    workers.settle()
    return workers


@pytest.mark.usefixtures("no_affinity")
def test_every_worker_is_lowered_raised_and_lowered_and_the_driver_never() -> None:
    system, messages = FakeLinux(), list[str]()
    workers = begun(LinuxPriority(system), FakeFinder(11, 12), Priority.LOWEST, messages)
    assert system.policies == {11: 5, 12: 5}
    workers.hurry()
    assert system.policies == {11: 0, 12: 0}
    workers.settle()
    assert system.policies == {11: 5, 12: 5}
    assert workers.describe()["workers"] == {"11": "SCHED_IDLE", "12": "SCHED_IDLE"}
    assert not messages


@pytest.mark.usefixtures("no_affinity")
def test_workers_found_later_are_lowered_too() -> None:
    system, finder = FakeLinux(), FakeFinder(11)
    workers = begun(LinuxPriority(system), finder, Priority.LOWEST, [])
    finder.threads = (11, 12, 404)
    workers.settle()
    assert system.policies == {11: 5, 12: 5}


@pytest.mark.usefixtures("no_affinity")
def test_a_normal_lane_is_left_alone() -> None:
    system = FakeLinux()
    begun(LinuxPriority(system), FakeFinder(11), Priority.NORMAL, []).hurry()
    assert system.policies == {}


@pytest.mark.usefixtures("no_affinity")
def test_refusal_is_said() -> None:
    messages: list[str] = []
    begun(NoPriority(), FakeFinder(11), Priority.LOWEST, messages)
    assert len(messages) == 1
    assert "refuses to lower" in messages[0]


@pytest.mark.parametrize("may_raise", [True, False])
def test_whether_priority_can_be_raised_again_is_tried_out(may_raise: bool) -> None:
    assert can_restore(LinuxPriority(FakeLinux(may_raise))) is may_raise


def test_a_runtime_says_once_that_priority_cannot_be_raised(
    tiny_runtime: Any, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlfp_edge.runtimes.llama_cpp.runtime.can_restore", lambda priority: False)
    monkeypatch.setattr(tiny_runtime, "messages", [])
    for name in ("a", "b"):
        open_lane(tiny_runtime, context=256, priority=Priority.LOWEST, name=name)
    assert len(tiny_runtime.messages) == 1
    assert "raised again" in tiny_runtime.describe()["messages"][0]


def test_windows_calls_per_worker() -> None:
    calls: list[tuple[Any, ...]] = []
    kernel = SimpleNamespace(
        OpenThread=lambda access, inherit, thread: calls.append(("open", access, thread)) or thread + 1000,
        SetThreadPriority=lambda handle, level: calls.append(("set", handle, level)) or 1,
        GetThreadPriority=lambda handle: -2,
        CloseHandle=lambda handle: calls.append(("close", handle)),
    )
    priority = WindowsPriority(kernel)
    assert priority.lower(7)
    assert priority.restore(7)
    assert calls == [
        ("open", 0x60, 7), ("set", 1007, -2), ("close", 1007),
        ("open", 0x60, 7), ("set", 1007, 0), ("close", 1007),
    ]  # fmt: skip
    assert priority.read(7) == "THREAD_PRIORITY_LOWEST"


def test_macos_calls_per_worker() -> None:
    calls: list[tuple[int, int, int]] = []

    def thread_policy_set(thread: int, flavour: int, value: Any, count: int) -> int:
        calls.append((thread, flavour, value._obj.value))
        return 0 if thread != 9 else 4

    priority = DarwinPriority(SimpleNamespace(thread_policy_set=thread_policy_set))
    assert priority.lower(7)
    assert priority.restore(8)
    assert not priority.lower(9)
    assert calls == [(7, 3, -31), (8, 3, 0), (9, 3, -31)]
    assert [priority.read(thread) for thread in (7, 8, 9)] == ["lowest precedence", "normal precedence", "unknown"]


def test_new_threads_are_those_that_appear_during_a_step() -> None:
    alive = [1, 2]
    finder = NewThreads(lambda: alive)
    finder.before_step()
    alive += [3, 4]
    assert finder.find() == {3, 4}
    alive.append(5)
    finder.before_step()
    alive.remove(3)
    assert finder.find() == {4}


@linux_only
def test_what_a_thread_does() -> None:
    assert thread_state(threading.get_native_id()) == "ready"
    asleep, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (asleep.set(), stop.wait(60)))
    thread.start()
    asleep.wait(60)
    deadline = time.monotonic() + 30
    while thread_state(thread.native_id or 0) != "asleep":
        assert time.monotonic() < deadline
    stop.set()
    thread.join()
    assert thread_state(2**22 + 1) is None


@linux_only
def test_a_lane_says_what_its_threads_do(tiny_runtime: Runtime, open_lane: OpenLane) -> None:
    lane = open_lane(tiny_runtime)
    assert isinstance(lane, ReportsThreads)
    assert set(lane.thread_states() or {}) <= {"ready", "disk", "asleep"}
    assert sum((lane.thread_states() or {}).values()) >= 2


@linux_only
def test_background_workers_are_idle_and_the_driver_is_not(tiny_runtime: Runtime, open_lane: OpenLane) -> None:
    lane: Any = open_lane(tiny_runtime, context=512, priority=Priority.LOWEST)
    description = lane.workers.describe()
    assert description["driver"] == "SCHED_OTHER"
    # A thread of something else in this process that was there for a moment while the lane opened is told as ended.
    workers = {thread: policy for thread, policy in description["workers"].items() if policy != "ended"}
    assert len(workers) == 2
    assert set(workers.values()) == {"SCHED_IDLE"}
    for thread in workers:
        assert os.sched_getscheduler(int(thread)) == os.SCHED_IDLE
    assert lane.cpu_s() > 0


@linux_only
def test_pinning_reaches_every_thread_and_those_to_come(tiny_runtime: Runtime, open_lane: OpenLane) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    lane: Any = open_lane(tiny_runtime, context=512)
    lane.open(0, Sampling())
    lane.pin(cpus[:1])
    run_step(tiny_runtime, lane, segment(0, 0, [5] * 8), threads=1)
    run_step(tiny_runtime, lane, segment(0, 8, [5] * 8), threads=2)
    threads = [int(thread) for thread in lane.workers.describe()["workers"]]
    assert threads
    assert all(os.sched_getaffinity(thread) == set(cpus[:1]) for thread in threads)
    lane.pin(None)
    assert all(os.sched_getaffinity(thread) == set(cpus) for thread in threads)
