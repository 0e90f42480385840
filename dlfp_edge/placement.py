"""Which lanes an engine opens: two at different priority where the runtime can, one for both classes otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlfp_edge.control import controller_names, make_chunk_controller, make_controller
from dlfp_edge.device import CpuTopology
from dlfp_edge.errors import UsageError
from dlfp_edge.lane_state import RESTING_SEQUENCES, LaneState, lane_state
from dlfp_edge.runtime import Lane, LaneSpec, Priority, Runtime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class

DEFAULT_CONTEXT = 16384
FOREGROUND_SHARE = 1 / 3
"""Of the KV cells, where nothing says what either class needs."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of an engine: the same object twice where both classes share one."""

    placement: Placement
    foreground: LaneState
    background: LaneState

    @property
    def all(self) -> list[LaneState]:
        """Each lane once."""
        return [self.foreground] if self.foreground is self.background else [self.foreground, self.background]


def open_lanes(runtime: Runtime, settings: Settings, say: Callable[[str], None]) -> Lanes:
    """Open what `settings` ask for. Raises UsageError where the runtime cannot give it."""
    lanes = runtime.capabilities.lanes
    if settings.placement is Placement.LANES and lanes < 2:
        raise UsageError("this runtime runs one step at a time: use --placement shared")
    if settings.single_class and settings.placement is Placement.LANES:
        raise UsageError("single-class mode has nothing to separate: use it with --placement shared")
    if settings.placement is not Placement.SHARED and lanes >= 2 and not settings.single_class:
        elsewhere = ("auto", *controller_names(Placement.SHARED))
        try:
            return _two(runtime, settings)
        except UsageError as refused:
            if settings.placement is Placement.LANES or settings.controller not in elsewhere:
                raise
            say(f"sharing steps instead of lanes: {refused}")
    return _one(runtime, settings)


def lane_cells(settings: Settings) -> tuple[int, int]:
    """The KV cells of the foreground's lane and of the background's, where each has its own."""
    total = settings.context or DEFAULT_CONTEXT
    cells = max(1, round(total * (settings.foreground_share or FOREGROUND_SHARE)))
    return cells, total - cells


def _two(runtime: Runtime, settings: Settings) -> Lanes:
    # Both controllers are made first: a wrong name must not leave a lane open.
    share = make_controller(Placement.LANES, settings.controller, settings.preset, settings.parameters)
    chunk = make_chunk_controller("auto")
    cells, rest = lane_cells(settings)
    first = _open(runtime, "foreground", Priority.NORMAL, settings.foreground_sequences, cells, threads_invariant=True)
    try:
        priority = Priority.LOWEST if settings.priority else Priority.NORMAL
        second = _open(runtime, "background", priority, settings.background_sequences, rest)
    except BaseException:
        first.shut()
        raise
    caps, caches = runtime.capabilities, settings.prefix_cache
    counts = (settings.foreground_sequences, settings.background_sequences)
    return Lanes(
        Placement.LANES,
        lane_state(
            first, caps, chunk, {Class.FOREGROUND: counts[0], Class.BACKGROUND: 0}, counts[0], prefix_cache=caches
        ),
        lane_state(
            second, caps, share, {Class.FOREGROUND: 0, Class.BACKGROUND: counts[1]}, counts[1], prefix_cache=caches
        ),
    )


def _one(runtime: Runtime, settings: Settings) -> Lanes:
    controller = make_controller(Placement.SHARED, settings.controller, settings.preset, settings.parameters)
    sequences = settings.foreground_sequences + settings.background_sequences
    total = settings.context or DEFAULT_CONTEXT
    lane = _open(runtime, "shared", Priority.NORMAL, sequences, total)
    limits = {Class.FOREGROUND: settings.foreground_sequences, Class.BACKGROUND: settings.background_sequences}
    if settings.single_class:
        limits = dict.fromkeys(Class, sequences)
    state = lane_state(lane, runtime.capabilities, controller, limits, sequences, prefix_cache=settings.prefix_cache)
    return Lanes(Placement.SHARED, state, state)


def _open(
    runtime: Runtime,
    name: str,
    priority: Priority,
    tasks: int,
    cells: int,
    *,
    threads_invariant: bool = False,
) -> Lane:
    caps = runtime.capabilities
    if tasks > caps.sequences:
        raise UsageError(f"{tasks} sequences in one lane, the runtime holds {caps.sequences}: lower the task counts")
    resting = min(RESTING_SEQUENCES, caps.sequences - tasks) if caps.fork else 0
    if cells > caps.context:
        raise UsageError(f"a context of {cells} cells, the runtime holds {caps.context}: lower --ctx")
    return runtime.open_lane(LaneSpec(name, priority, tasks + resting, cells, threads_invariant=threads_invariant))


def background_cores(topology: CpuTopology, decode_threads: int, *, apart: bool) -> tuple[int, ...] | None:
    """CPUs the background keeps to while the foreground decodes; None where it may have all.

    It leaves `decode_threads` whole physical cores, the fast ones first: an idle-priority thread on the sibling of a
    decoding core, or a fast core taken on a hybrid part, slows a decode that no priority protects. `apart` says that it
    leaves them on any machine.
    """
    shared = any(len(group) > 1 for group in topology.siblings)
    hybrid = set(topology.performance) != set(topology.usable)
    if not (apart or shared or hybrid):
        return None
    fast = set(topology.performance)
    paired = {cpu for group in topology.siblings for cpu in group}
    cores = [*topology.siblings, *((cpu,) for cpu in topology.usable if cpu not in paired)]
    groups = sorted(cores, key=lambda group: (not fast & set(group), group))
    kept = {cpu for group in groups[:decode_threads] for cpu in group} | (fast if hybrid else set())
    rest = tuple(cpu for cpu in topology.usable if cpu not in kept)
    return rest or None
