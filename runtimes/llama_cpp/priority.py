"""Lowering and raising the priority of single threads, and reading back what the system made of it.

Each system has its own way, behind one small interface. The system calls are handed in, so that the sequence of calls
per thread can be tested anywhere. The Linux way is measured; those for macOS and Windows follow the vendors'
documentation and have not run on such a machine.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from typing import Any, Protocol

from .library import libc


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
    system = platform.system()
    if system == "Linux":
        return LinuxPriority(os)
    if system == "Windows":
        return WindowsPriority(ctypes.WinDLL("kernel32"))  # type: ignore[attr-defined,unused-ignore]
    if system == "Darwin":
        return DarwinPriority(libc())
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


class WindowsPriority:
    """THREAD_PRIORITY_LOWEST. `calls` has the functions of kernel32."""

    name = "thread: THREAD_PRIORITY_LOWEST"
    _LOWEST, _NORMAL = -2, 0
    _SET_AND_QUERY = 0x0020 | 0x0040

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def lower(self, thread: int) -> bool:
        return self._set(thread, self._LOWEST)

    def restore(self, thread: int) -> bool:
        return self._set(thread, self._NORMAL)

    def read(self, thread: int) -> str:
        handle = self._calls.OpenThread(self._SET_AND_QUERY, False, thread)
        if not handle:
            return "ended"
        level = self._calls.GetThreadPriority(handle)
        self._calls.CloseHandle(handle)
        return {self._LOWEST: "THREAD_PRIORITY_LOWEST", self._NORMAL: "THREAD_PRIORITY_NORMAL"}.get(level, str(level))

    def _set(self, thread: int, level: int) -> bool:
        handle = self._calls.OpenThread(self._SET_AND_QUERY, False, thread)
        if not handle:
            return True  # it ended meanwhile
        done = bool(self._calls.SetThreadPriority(handle, level))
        self._calls.CloseHandle(handle)
        return done


class DarwinPriority:
    """A low thread precedence. `calls` has Mach's functions; a thread is its Mach port.

    A QoS class would say more, but a thread can set one only for itself, and workers run nothing of ours.
    """

    name = "thread: lowest precedence"
    _PRECEDENCE_POLICY = 3
    _LOWEST, _NORMAL = -31, 0

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self._asked: dict[int, str] = {}

    def lower(self, thread: int) -> bool:
        return self._set(thread, self._LOWEST, "lowest precedence")

    def restore(self, thread: int) -> bool:
        return self._set(thread, self._NORMAL, "normal precedence")

    def read(self, thread: int) -> str:
        return self._asked.get(thread, "unknown")

    def _set(self, thread: int, importance: int, label: str) -> bool:
        value = ctypes.c_int(importance)
        failed = self._calls.thread_policy_set(thread, self._PRECEDENCE_POLICY, ctypes.byref(value), 1)
        if not failed:
            self._asked[thread] = label
        return not failed


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
