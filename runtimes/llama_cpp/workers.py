"""The threads a lane computes with: their priority, their CPUs, and what they have used."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dlfp_edge.runtime import Priority

from .executor import DirectExecutor, Executor, IdleExecutor, idle_executor_supported
from .priority import ThreadPriority
from .threads import ThreadFinder, cpu_seconds, set_affinity, thread_state

Say = Callable[[str], None]


class Workers:
    """A lane's compute threads. `begin`, `run`, `settle` and `end` are called by its driver, the rest by the engine.

    In a lane of lowest priority every thread that computes is lowered, and the driver, which holds the GIL between
    steps, never is. Where `llama_decode` cannot be called from a thread apart, the driver computes at normal priority
    and only the other threads are lowered. `say` takes what a person should be told.
    """

    def __init__(
        self,
        rank: Priority,
        priority: ThreadPriority,
        finder: ThreadFinder,
        usable: Sequence[int],
        cores: Sequence[int] | None,
        say: Say,
    ) -> None:
        self._lowered = rank is Priority.LOWEST
        self._priority = priority
        self._finder = finder
        self._usable = tuple(usable)
        self._cores = self._usable if cores is None else tuple(cores)
        self._say = say
        self._driver = 0
        self._apart = self._lowered and idle_executor_supported()
        self._executor: Executor = DirectExecutor()
        self._known: frozenset[int] = frozenset()
        self._last_width = 0
        self._used_s: dict[int, float] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Make the calling thread the lane's driver. Its threads are lowered by the first `settle`."""
        self._driver = threading.get_native_id()
        self._finder.adopt_caller()
        if self._apart:
            self._executor = IdleExecutor()

    def run(self, context: Any, batch: Any, width: int) -> None:
        """Execute one step on `width` threads. A change of width ends threads and makes new ones."""
        if width == self._last_width:
            self._executor.run(context, batch)
            return
        self._finder.before_step()
        self._executor.run(context, batch)
        self._last_width = width
        self.settle()

    def settle(self) -> None:
        """Give every thread, those made since too, the lane's CPUs and priority. Not while a step runs."""
        self._discover()
        if self._lowered:
            refused = [thread for thread in self._computing() if not self._priority.lower(thread)]
            if refused:
                self._say("the system refuses to lower the priority of background threads; they run at normal priority")

    def end(self) -> None:
        """Release the executor's thread; called by the driver before it ends."""
        self._executor.close()

    def hurry(self) -> None:
        """Let a step that is to stop run at normal priority, so that it gets to look at its flag."""
        if self._lowered:
            self._discover()
            for thread in self._computing():
                self._priority.restore(thread)

    def pin(self, cores: Sequence[int] | None) -> None:
        """Restrict the lane's threads to these CPUs; None lifts the restriction."""
        self._cores = self._usable if cores is None else tuple(cores)
        self._discover()

    def cpu_s(self) -> float | None:
        """CPU-seconds used so far, by threads that have ended too; None where the system does not say."""
        with self._lock:
            self._note_cpu()
            return sum(self._used_s.values()) if self._used_s else None

    def states(self) -> Counter[str] | None:
        """How many threads do what, see `thread_state`; None where the system does not say."""
        with self._lock:
            known = list(self._known)
        return Counter(state for state in map(thread_state, known) if state is not None) or None

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
        """The threads that may be lowered."""
        return self._known - {self._driver}

    def _discover(self) -> None:
        """Find threads made since and give all of them the lane's CPUs."""
        with self._lock:
            self._note_cpu()
            self._known = self._finder.find()
            set_affinity(self._known, self._cores)

    def _note_cpu(self) -> None:
        for thread in self._known:
            used_s = cpu_seconds(thread)
            if used_s is not None:
                self._used_s[thread] = used_s
