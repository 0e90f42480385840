"""Which threads of this process compute for a lane, and what can be said to and about them.

On Linux a new thread inherits the name of the one that made it, so a lane's driver takes a name of its own and its
workers are the threads that bear it, whenever they were made. Elsewhere workers are the threads that appear while a
step of the lane runs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import psutil

from .library import libc

_TASKS = Path("/proc/self/task")
_numbers = itertools.count()


class ThreadFinder(Protocol):
    """Finds the threads of one lane."""

    def adopt_caller(self) -> None:
        """The calling thread is the lane's driver from now on."""
        ...

    def before_step(self) -> None:
        """A step that may make threads is about to run."""
        ...

    def find(self) -> frozenset[int]:
        """Ids of the lane's threads so far."""
        ...


def thread_finder() -> ThreadFinder:
    """The finder for the system this runs on."""
    system = platform.system()
    if system == "Linux":
        return NamedThreads()
    return NewThreads(_darwin_threads if system == "Darwin" else _process_threads)


class NamedThreads:
    """Linux: the driver and every thread that inherited its name."""

    def __init__(self) -> None:
        self._name = f"dlfp-lane-{next(_numbers)}"[:15]

    def adopt_caller(self) -> None:
        (_TASKS / str(threading.get_native_id()) / "comm").write_text(self._name)

    def before_step(self) -> None:
        """Names need no snapshot."""

    def find(self) -> frozenset[int]:
        return frozenset(int(task) for task in os.listdir(_TASKS) if _read(_TASKS / task / "comm") == self._name)


class NewThreads:
    """Other systems: threads that appeared while steps of the lane ran.

    A thread that somebody else makes just then is taken for one of them.
    """

    def __init__(self, all_threads: Callable[[], Iterable[int]]) -> None:
        self._all_threads = all_threads
        self._before: frozenset[int] = frozenset()
        self._found: frozenset[int] = frozenset()

    def adopt_caller(self) -> None:
        """The driver is not among the threads found: it keeps its priority."""

    def before_step(self) -> None:
        self._before = frozenset(self._all_threads())

    def find(self) -> frozenset[int]:
        now = frozenset(self._all_threads())
        self._found = (self._found & now) | (now - self._before)
        self._before = now
        return self._found


def set_affinity(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Restrict threads to these CPUs; a thread that has ended is passed over. Linux only, elsewhere nothing happens."""
    if platform.system() != "Linux":
        return
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cores)
        except ProcessLookupError:
            continue


def cpu_seconds(thread: int) -> float | None:
    """CPU time a thread has used; None where the system does not say or the thread has ended."""
    fields = _read(_TASKS / str(thread) / "schedstat").split()
    return int(fields[0]) * 1e-9 if fields else None


_STATES = {"R": "ready", "D": "disk"}


def thread_state(thread: int) -> str | None:
    """What a thread does: "ready" (on a CPU or waiting for one), "disk" or "asleep"; None where that is not known."""
    fields = _read(_TASKS / str(thread) / "stat").rpartition(")")[2].split()
    return _STATES.get(fields[0], "asleep") if fields else None


def _process_threads() -> list[int]:
    return [thread.id for thread in psutil.Process().threads()]


def _darwin_threads() -> list[int]:
    """Mach ports of all threads. The list is left to the system to free with the process: it is asked for rarely."""
    mach: Any = libc()
    ports, count = ctypes.POINTER(ctypes.c_uint)(), ctypes.c_uint()
    mach.task_threads(ctypes.c_uint.in_dll(mach, "mach_task_self_"), ctypes.byref(ports), ctypes.byref(count))
    return ports[: count.value]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
