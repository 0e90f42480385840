"""Which threads of this process compute for a lane.

On Linux a new thread inherits the name of the one that made it, so a lane's driver takes a name of its own and its
workers are the threads that bear it, whenever they were made.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")
_numbers = itertools.count()


class LaneThreads:
    """The threads of one lane, found by name. Elsewhere than on Linux none is found."""

    def __init__(self) -> None:
        self._name = f"dlfp-lane-{next(_numbers)}"[:15]

    def adopt_caller(self) -> None:
        """Name the calling thread; threads made by it from now on bear the name too."""
        if sys.platform == "linux":
            (_TASKS / str(threading.get_native_id()) / "comm").write_text(self._name)

    def find(self) -> set[int]:
        """Ids of all threads that bear the name, the driver's among them."""
        if sys.platform != "linux":
            return set()
        return {int(task) for task in os.listdir(_TASKS) if _read(_TASKS / task / "comm") == self._name}


def set_affinity(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Restrict threads to these CPUs; a thread that has ended is passed over."""
    if sys.platform != "linux":
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


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
