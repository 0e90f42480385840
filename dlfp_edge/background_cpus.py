"""Which CPUs the background's own lane may use, and how many threads that makes, while somebody is watching.

Threads meet at every node of the graph, so one that waits for a decode to leave its CPU holds up all others, which spin
meanwhile. On two CPUs two threads of lowest priority beside a decode on one had from 20 to 290 tokens/s over eight
seconds; one with a CPU to itself 240 to 295, beside the same gaps. So the background keeps off the CPUs of a reader who
decodes all the time. A paced one is away most of the time: there priority is enough, and what lies between is worth
more.

Where priority is refused or does nothing, it keeps off any reader's CPUs, and stands still while a foreground step
needs more of them.
"""

from __future__ import annotations

from dlfp_edge.device import CpuTopology
from dlfp_edge.placement import background_cores
from dlfp_edge.state import State


class BackgroundCpus:
    """Pins the background's lane. `spaced` says that decodes pause between, so that it may have every CPU then."""

    def __init__(self, state: State, topology: CpuTopology | None) -> None:
        self._state, self._topology = state, topology
        self._most = state.caps.prefill_threads
        self._steered = state.lanes.background.controller.steered
        self._decode_threads = state.caps.decode_threads
        self._kept_off: tuple[int, bool] | None = None
        self._cores: tuple[int, ...] | None = None
        self.threads = self._most
        self.spaced = False

    def decoded_on(self, threads: int) -> None:
        """A foreground decode beside the background has so many threads."""
        self._decode_threads = threads

    def excludes(self, threads: int) -> bool:
        """Whether a foreground step on so many threads needs CPUs that only standing still leaves to it."""
        return not self._state.ranked and self._steered and threads > self._decode_threads

    def pin(self) -> None:
        """Restrict the lane to what the readers of this moment leave, or lift that."""
        if self._state.shared:
            return
        watching = [running for running in self._state.lanes.foreground.running if not running.ended]
        self.spaced = self.spaced and bool(watching)
        steady = not self.spaced and any(running.task.spec.pace is None for running in watching)
        apart = bool(watching) and self._steered and (steady or not self._state.ranked)
        kept_off = (self._decode_threads, apart) if watching else None
        if kept_off == self._kept_off:
            return
        self._kept_off, before = kept_off, self._cores
        left = self._most - self._decode_threads if apart else self._most
        self._cores, self.threads = None, left or self._most
        if watching and self._topology is not None:
            self._cores = background_cores(self._topology, self._decode_threads, apart=apart)
        if self._cores is not None:
            self.threads = min(self.threads, len(self._cores))  # a quota can allow fewer than there are
        if self._cores != before:
            self._state.lanes.background.lane.pin(self._cores)
