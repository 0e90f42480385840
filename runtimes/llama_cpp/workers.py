"""The threads a lane computes with: their priority, their CPUs, and what they have used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from dlfp_edge.runtime import Priority

from .executor import DirectExecutor, Executor, IdleExecutor, idle_executor_supported
from .priority import ThreadPriority
from .threads import LaneThreads, cpu_seconds, set_affinity


class Workers:
    """A lane's compute threads. `begin`, `run`, `calm` and `end` are called by its driver, the rest by the engine.

    In a lane of lowest priority every thread that computes is lowered, and the driver, which holds the GIL between
    steps, never is. Where `llama_decode` cannot be called from a thread apart, the driver computes at normal priority
    and only the other threads are lowered.
    """

    def __init__(self, rank: Priority, priority: ThreadPriority, usable: Sequence[int], cores: Sequence[int] | None):
        self._lowered = rank is Priority.LOWEST
        self._priority = priority
        self._usable = tuple(usable)
        self._cores = tuple(cores) if cores is not None else self._usable
        self._threads = LaneThreads()
        self._driver = 0
        self._apart = self._lowered and idle_executor_supported()
        self._executor: Executor = DirectExecutor()
        self._known: frozenset[int] = frozenset()
        self._last_width = 0
        self._used_s: dict[int, float] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Make the calling thread the lane's driver."""
        self._driver = threading.get_native_id()
        self._threads.adopt_caller()
        if self._apart:
            self._executor = IdleExecutor()
        self._discover()

    def run(self, context: Any, batch: Any, width: int) -> None:
        """Execute one step on `width` threads."""
        self._executor.run(context, batch)
        if width != self._last_width:
            self._last_width = width
            self._discover()

    def end(self) -> None:
        """Release the executor's thread; called by the driver before it ends."""
        self._executor.close()

    def hurry(self) -> None:
        """Let a step that is to stop run at normal priority, so that it gets to look at its flag."""
        if self._lowered:
            for thread in self._computing():
                self._priority.restore(thread)

    def calm(self) -> None:
        """Lower again what `hurry` has raised, and threads made meanwhile."""
        self._discover()

    def pin(self, cores: Sequence[int] | None) -> None:
        """Restrict the lane's threads to these CPUs; None lifts the restriction."""
        with self._lock:
            self._cores = tuple(cores) if cores is not None else self._usable
            set_affinity(self._known, self._cores)

    def cpu_s(self) -> float | None:
        """CPU-seconds used so far, by threads that have ended too."""
        with self._lock:
            for thread in self._known:
                used = cpu_seconds(thread)
                if used is not None:
                    self._used_s[thread] = used
            return sum(self._used_s.values()) if self._used_s else None

    def describe(self) -> dict[str, Any]:
        """What was asked of the system and what it says it did, per thread."""
        return {
            "lowered": self._lowered,
            "decode_in_thread_apart": self._apart,
            "cores": list(self._cores),
            "driver": self._priority.read(self._driver),
            "workers": {str(thread): self._priority.read(thread) for thread in sorted(self._computing())},
        }

    def _computing(self) -> frozenset[int]:
        """The threads that run graph nodes and may be lowered."""
        return self._known - {self._driver}

    def _discover(self) -> None:
        """Find threads made since, and give all of them the lane's CPUs and priority."""
        with self._lock:
            self._known = frozenset(self._threads.find())
            set_affinity(self._known, self._cores)
        if self._lowered:
            for thread in self._computing():
                self._priority.lower(thread)
