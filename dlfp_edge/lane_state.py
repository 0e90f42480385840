"""One lane as the engine keeps it: its tasks, sequences, KV budget, steps in flight and cost estimate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dlfp_edge.control import Controller
from dlfp_edge.control.estimate import Cost
from dlfp_edge.handle import Task
from dlfp_edge.pauses import Activity, CopySpeed
from dlfp_edge.queues import Refusal
from dlfp_edge.running import Running, most_cells, wanted_cells
from dlfp_edge.runtime import Capabilities, Lane, Segment, Transfer
from dlfp_edge.sequences import NOTHING, Match, Sequences
from dlfp_edge.task import Class, Finish

RESTING_SEQUENCES = 8
"""Sequences of a lane, beyond those of running tasks, that can keep what ended tasks have left."""


@dataclass(slots=True)
class Flight:
    """A step in flight. `alone`: no other lane has had a step in flight beside it so far.

    `total_tokens` are those of the step, `background_tokens` those of background tasks, `prefill_tokens` those that are
    not decodes; `decodes` counts the decodes of either class, and `cells_read` the KV cells that the foreground's read.
    `decode_s` is what the decodes alone were expected to take, None for a step that nobody waits for.
    For `waited_s` it was put off for the background's sake. While it is `exclusive` the background's lane stands still.
    `copy` is the task whose KV cells are copied, and which.
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
    waited_s: float = 0.0
    bound_s: float | None = None
    decode_s: float | None = None
    alone: bool = True
    cells_read: int = 0
    exclusive: bool = False
    note: str = ""
    next_call: float | None = None
    copy: tuple[Running, Transfer] | None = None
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
    """A lane and all the engine knows of it. `limits` is how many tasks of each class it may run at once.

    `most_tasks` is how many of both, `awaited` the classes of which a task waits for a prompt that another computes.
    The next step is put off until `not_before`; the one that starts now was for `waited_s`.
    """

    lane: Lane
    controller: Controller
    limits: dict[Class, int]
    cost: Cost
    sequences: Sequences
    cells: int
    most_tasks: int
    running: list[Running] = field(default_factory=list)
    in_flight: deque[Flight] = field(default_factory=deque)
    copy_speed: CopySpeed = field(default_factory=CopySpeed)
    last_completed: float = 0.0
    last_flight: Flight | None = None
    decode_only: bool = False
    not_before: float | None = None
    waited_s: float = 0.0
    suspects: list[Running] = field(default_factory=list)
    awaited: set[Class] = field(default_factory=set)

    def put_off(self, when: float | None, now: float) -> bool:
        """Whether the next step must wait for `when`, and since the end of the last one was waiting for it."""
        waits = when is not None and now < when
        self.waited_s = now - self.last_completed if self.not_before is not None and not waits else 0.0
        self.not_before = when if waits else None
        return waits

    @property
    def name(self) -> str:
        """The lane's name in records."""
        return self.lane.spec.name

    def count(self, task_class: Class) -> int:
        """Tasks of a class that run here, paused ones too."""
        return sum(1 for running in self.running if running.task.task_class is task_class)

    def has_place(self, task_class: Class) -> bool:
        """Whether a task of the class could have a sequence."""
        return (
            self.count(task_class) < self.limits[task_class]
            and len(self.running) < self.most_tasks
            and self.sequences.available
        )

    def place(self, task: Task) -> Match | Refusal:
        """What a task that can start now would start from, or why it must wait.

        It waits for a sequence, for KV cells, or for one that runs and is about to have computed more of its prompt.
        """
        if not self.has_place(task.task_class):
            return Refusal.NO_ROOM
        match = self.sequences.match(task, self.running)
        if match.coming:
            self.awaited.add(task.task_class)
            return Refusal.LATER
        owed = self.owed()
        # One document after another gets by without what a conversation needs for its next turn.
        spare = task.task_class is Class.BACKGROUND and self.has_background()
        if self.make_room(self.need(task, match) + owed, match, spare_foreground=spare):
            return match
        again = match.rest and self.make_room(self.need(task) + owed, spare_foreground=spare)
        return NOTHING if again else Refusal.NO_ROOM

    def outlook(self, task_class: Class) -> tuple[object, ...]:
        """What decides, beside a waiting task itself, whether it has a place: it need not be asked until this changes.

        Decoding changes nothing: its cells are promised, and nobody shares what comes after a prompt. Prefill does only
        where a task waits for it.
        """
        prompts = [(running.computed, len(running.task.prompt_ids)) for running in self.running]
        return (
            self.lacking(self.owed()),
            self.sequences.available,
            # Which of them, not how many: one comes out of flight, and can be shared, as another goes in.
            [(running.sequence, running.active, running.ended, running.in_flight > 0) for running in self.running],
            sum(map(min, prompts)) if task_class in self.awaited else 0,
        )

    def need(self, task: Task, match: Match = NOTHING) -> int:
        """KV cells the task must be promised to start."""
        return wanted_cells(len(task.spec.prompt), most_cells(task.spec)) - match.length

    def owed(self) -> int:
        """KV cells that running tasks cannot go on without; they come before those of anybody else."""
        return sum(running.wanted - running.reserved for running in self.running if running.starved)

    def cells_read(self) -> int:
        """KV cells that a decode of each foreground task goes over."""
        if self.lane.reads_all:
            return self.lane.kv_used()
        return sum(running.computed for running in self.running if running.foreground and running.decoding)

    def lacking(self, cells: int, *, soon: bool = False) -> int:
        """How many KV cells short the lane is of promising these.

        `soon` counts those as free that tasks on their way out are about to give up.
        """
        promised = self.lane.kv_used() + cells
        for running in self.running:
            if running.activity is Activity.LEAVING:
                promised -= running.computed if soon else 0
            elif running.activity is not Activity.PAUSED:
                promised += max(0, running.reserved - running.computed)
        return promised - self.cells

    def make_room(self, cells: int, match: Match = NOTHING, *, spare_foreground: bool = False) -> bool:
        """Whether these KV cells can be promised now; what rests goes for them, unless all of it would not do."""
        leaves = (Activity.LEAVING, Activity.PAUSED)
        busy = sum(running.reserved - running.forked for running in self.running if running.activity not in leaves)
        if busy + self.sequences.kept(match, spare_foreground=spare_foreground) + cells > self.cells:
            return False
        while self.lacking(cells, soon=True) > 0:
            if not self.sequences.make_room(match, spare_foreground=spare_foreground):
                return False
        return self.lacking(cells) <= 0

    def admit(self, task: Task, match: Match, now: float) -> Running:
        """Give the task a sequence. An error leaves the lane as it was."""
        running = Running(task, self.sequences.take(task, match, now), match.length)
        if match.rest is not None and running.sequence == match.rest.sequence:
            running.forked = 0  # taken over, not shared
        self.running.append(running)
        task.record.started = now
        task.record.cached_prompt_tokens = match.length
        return running

    def release(self, running: Running, now: float) -> None:
        """Take back the sequence of a task that has ended and has nothing in flight."""
        if running.task.record.finish is Finish.ERROR:
            running.restart()
        self.sequences.give_back(running, now)
        self.running.remove(running)

    def serves_background(self) -> bool:
        """Whether a background task has KV cells here and keeps them."""
        gone = (Activity.LEAVING, Activity.PAUSED)
        return any(not (r.foreground or r.ended or r.activity in gone) for r in self.running)

    def has_background(self) -> bool:
        """Whether a background task runs here."""
        return self.count(Class.BACKGROUND) > 0


def lane_state(
    lane: Lane,
    capabilities: Capabilities,
    controller: Controller,
    limits: dict[Class, int],
    most_tasks: int,
    *,
    prefix_cache: bool = True,
) -> LaneState:
    """Wrap a lane just opened."""
    prefill_s = 1 / capabilities.prefill_tokens_per_s if capabilities.prefill_tokens_per_s else None
    return LaneState(
        lane=lane,
        controller=controller,
        limits=limits,
        cost=Cost(capabilities.decode_s, prefill_s, batched=capabilities.batched),
        sequences=Sequences(lane, lane.spec.sequences, capabilities, caches=prefix_cache),
        cells=lane.spec.context,
        most_tasks=most_tasks,
    )
