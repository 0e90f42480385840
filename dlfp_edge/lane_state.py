"""One lane as the engine keeps it: its tasks, sequences, KV budget, steps in flight and cost estimate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dlfp_edge.control import Controller
from dlfp_edge.control.estimate import Cost
from dlfp_edge.handle import Task
from dlfp_edge.prefixes import Prefixes
from dlfp_edge.running import Running
from dlfp_edge.runtime import Capabilities, Lane, Segment
from dlfp_edge.task import Class, TaskSpec

PREFIX_SEQUENCES = 2
"""Shared prefixes a lane can keep at once."""


@dataclass(slots=True)
class Flight:
    """A step in flight. `alone`: no other lane has had a step in flight beside it so far.

    `total_tokens` are those of the step, `background_tokens` those of background tasks, `prefill_tokens` those that are
    not decodes; `decodes` counts the decodes of either class.
    """

    handle: int
    parts: list[tuple[Running, Segment, bool]]
    threads: int
    decoders: int
    protected: bool
    budget: int | None
    target_s: float | None
    predicted_s: float
    planned_at: float
    plan_s: float
    submitted: float
    bound_s: float | None = None
    alone: bool = True
    note: str = ""
    next_call: float | None = None
    interrupted_at: float | None = None
    preempted: bool = False
    backstopped: bool = False

    background_tokens: int = field(init=False)
    total_tokens: int = field(init=False)
    prefill_tokens: int = field(init=False)
    decodes: int = field(init=False)

    def __post_init__(self) -> None:
        counts = [(len(segment.tokens), running.foreground, decode) for running, segment, decode in self.parts]
        self.total_tokens = sum(count for count, _, _ in counts)
        self.background_tokens = sum(count for count, foreground, _ in counts if not foreground)
        self.prefill_tokens = sum(count for count, _, decode in counts if not decode)
        self.decodes = sum(1 for _, _, decode in counts if decode)


@dataclass(slots=True)
class LaneState:
    """A lane and all the engine knows of it. `limits` is how many tasks of each class it may run at once."""

    lane: Lane
    controller: Controller
    limits: dict[Class, int]
    cost: Cost
    prefixes: Prefixes
    free: list[int]
    cells: int
    running: list[Running] = field(default_factory=list)
    in_flight: deque[Flight] = field(default_factory=deque)
    last_completed: float = 0.0
    last_flight: Flight | None = None
    decode_only: bool = False
    suspects: list[Running] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The lane's name in records."""
        return self.lane.spec.name

    def count(self, task_class: Class) -> int:
        """Tasks of a class that run here."""
        return sum(1 for running in self.running if running.task.task_class is task_class)

    def reserved(self) -> int:
        """KV cells promised to running tasks and kept prefixes."""
        return self.prefixes.cells + sum(self._need(r.task.spec, r.shared) for r in self.running)

    def fits(self, task: Task) -> bool:
        """Whether the task could start here now; makes room by dropping kept prefixes where that is enough."""
        if not self.free or self.count(task.task_class) >= self.limits[task.task_class]:
            return False
        if self.prefixes.waits(task.spec):
            return False
        lacking = self.reserved() + self._need(task.spec, self.prefixes.shared(task.spec)) - self.cells
        return lacking <= 0 or self.prefixes.make_room(lacking, keep=task.spec)

    def admit(self, task: Task, now: float) -> Running:
        """Give the task a sequence. An error leaves the lane as it was."""
        self.lane.open(self.free[-1], task.spec.sampling)
        running = Running(task, self.free.pop())
        self.prefixes.attach(running, now)
        self.running.append(running)
        task.record.started = now
        return running

    def release(self, running: Running) -> None:
        """Take back the sequence of a task that has ended and has nothing in flight."""
        self.prefixes.abandon(running)
        self.lane.close(running.sequence)
        self.free.append(running.sequence)
        self.running.remove(running)

    def has_background(self) -> bool:
        """Whether a background task runs here."""
        return self.count(Class.BACKGROUND) > 0

    @staticmethod
    def _need(spec: TaskSpec, cached: int) -> int:
        return len(spec.prompt) + spec.max_tokens - cached


def lane_state(
    lane: Lane, capabilities: Capabilities, controller: Controller, limits: dict[Class, int], sequences: int
) -> LaneState:
    """Wrap a lane just opened; the sequences beyond the first `sequences` are for shared prefixes."""
    prefill_s = 1 / capabilities.prefill_tokens_per_s if capabilities.prefill_tokens_per_s else None
    return LaneState(
        lane=lane,
        controller=controller,
        limits=limits,
        cost=Cost(capabilities.decode_s, prefill_s, batched=capabilities.batched),
        prefixes=Prefixes(lane, list(range(sequences, lane.spec.sequences)), capabilities.min_chunk),
        free=list(range(sequences - 1, -1, -1)),
        cells=lane.spec.context,
    )
