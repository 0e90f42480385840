"""Actions that wait for a time of their own."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

Action = Callable[[], None]
_FEW = 64


class Timers:
    """Set and cancelled from any thread. Cancelled ones take little more memory than those that still wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._heap: list[tuple[float, int]] = []
        self._actions: dict[int, Action] = {}

    def set(self, when: float, action: Action) -> int:
        """Let `action` be due at `when`; returns what cancels it."""
        with self._lock:
            key = next(self._order)
            self._actions[key] = action
            heapq.heappush(self._heap, (when, key))
            return key

    def cancel(self, key: int) -> None:
        """Forget an action; one that has been taken already stays so."""
        with self._lock:
            self._actions.pop(key, None)
            if len(self._heap) > 2 * len(self._actions) + _FEW:
                self._heap = [entry for entry in self._heap if entry[1] in self._actions]
                heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._actions.clear()
            self._heap.clear()

    def next_due(self) -> float | None:
        """When the next action is due; None where there is none."""
        with self._lock:
            return self._first()

    def take(self, now: float) -> Action | None:
        """Remove and return an action that is due by `now`, the earliest first."""
        with self._lock:
            first = self._first()
            if first is None or first > now:
                return None
            return self._actions.pop(heapq.heappop(self._heap)[1])

    def _first(self) -> float | None:
        while self._heap and self._heap[0][1] not in self._actions:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
