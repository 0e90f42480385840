"""Lowering and raising the priority of single threads, and reading back what the system made of it.

Each system has its own way, behind one small interface; the calls themselves are given in, so that every sequence of
calls can be tested anywhere.
"""

from __future__ import annotations

import os
import platform
import threading
from typing import Any, Protocol


class ThreadPriority(Protocol):
    """How a system ranks one thread. `name` says it for people."""

    name: str

    def lower(self, thread: int) -> bool:
        """Give a thread the lowest priority; False where the system refuses."""
        ...

    def restore(self, thread: int) -> bool:
        """Give a thread normal priority again; False where the system refuses."""
        ...

    def read(self, thread: int) -> str:
        """What the system says the priority is."""
        ...


def system_priority() -> ThreadPriority:
    """The way of the system this runs on."""
    if platform.system() == "Linux":
        return LinuxPriority(os)
    return NoPriority()


class LinuxPriority:
    """SCHED_IDLE: runs only when nothing else in its scheduling group wants the CPU."""

    name = "thread: SCHED_IDLE"

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def lower(self, thread: int) -> bool:
        return self._set(thread, self._calls.SCHED_IDLE)

    def restore(self, thread: int) -> bool:
        return self._set(thread, self._calls.SCHED_OTHER)

    def read(self, thread: int) -> str:
        try:
            policy = self._calls.sched_getscheduler(thread)
        except OSError:
            return "ended"
        names = {self._calls.SCHED_IDLE: "SCHED_IDLE", self._calls.SCHED_OTHER: "SCHED_OTHER"}
        return names.get(policy, str(policy))

    def _set(self, thread: int, policy: int) -> bool:
        try:
            self._calls.sched_setscheduler(thread, policy, self._calls.sched_param(0))
        except ProcessLookupError:
            return True  # it ended meanwhile
        except PermissionError:
            return False
        return True


class NoPriority:
    """A system where threads cannot be ranked."""

    name = "none"

    def lower(self, thread: int) -> bool:
        return False

    def restore(self, thread: int) -> bool:
        return False

    def read(self, thread: int) -> str:
        return "unknown"


def can_restore(priority: ThreadPriority) -> bool:
    """Whether a lowered thread can be raised again, tried out on a thread made for it.

    Linux permits it to root, with CAP_SYS_NICE, or with an RLIMIT_NICE of 20 and more.
    """
    outcome: list[bool] = []

    def attempt() -> None:
        me = threading.get_native_id()
        outcome.append(priority.lower(me) and priority.restore(me))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return outcome[0]
