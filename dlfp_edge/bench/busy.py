"""Other programs that want the machine: one endless loop per core, in processes of their own, always ended again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_LOOP = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"


@contextmanager
def busy_cores(cores: Iterable[int], at_most_s: float) -> Iterator[int]:
    """Keep each core busy at normal priority during the block; gives how many processes do so.

    A process ends by itself after `at_most_s`, should this one be killed before it can end them.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores:
            process = subprocess.Popen([sys.executable, "-c", _LOOP, str(at_most_s)], stdin=subprocess.DEVNULL)
            processes.append(process)
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {core})
        yield len(processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
