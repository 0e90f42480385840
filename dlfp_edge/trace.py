"""What the engine says of its own work: one record a step, counters, and a snapshot for live views."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SegmentTrace:
    """One segment of a step: `kind` is "prefill" or "decode", `consumed` what of `tokens` was kept."""

    request_id: str
    task_class: str
    kind: str
    start: int
    tokens: int
    consumed: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step and what the controller made of it.

    `budget` is the cap (tokens beside the decodes) or the background lane's share (threads) in force, `value_after` the
    controller's state once the step was observed; `update` whether it changed by this step, and `reason` why not.
    `observed_s` is the gap a stream saw: service time plus sampling, and how long the step was put off for the
    background's sake. `target_s` is what that gap was aimed to stay below, where the step held foreground decodes
    beside other work, or beside another lane's. `note` marks a "floor", "solo" or "backstop" step, and the copies of KV
    cells ("save", "restore"), which have no segments.
    """

    lane: str
    segments: tuple[SegmentTrace, ...]
    protected: bool
    threads: int
    budget: float | None
    observed_s: float | None
    target_s: float | None
    value_after: float | None
    update: bool
    reason: str | None
    submitted: float
    completed: float
    sampling_s: float
    basis: str
    interrupted: bool
    error: str | None
    plan_s: float
    note: str = ""


@dataclass(slots=True)
class Counters:
    """Totals since the engine started. Durations are seconds; the lists keep the newest 20,000.

    `computed_tokens` are all that steps executed, the `aborted_tokens` of interrupted steps among them. `pauses` counts
    tasks that left because KV cells ran short, `recomputed` those whose cells could not be saved.
    """

    steps: int = 0
    updates: int = 0
    resets: int = 0
    preemptions: int = 0
    preemption_s: deque[float] = field(default_factory=lambda: deque(maxlen=20_000))
    computed_tokens: int = 0
    aborted_tokens: int = 0
    backstops: int = 0
    floors: int = 0
    solo_steps: int = 0
    pauses: int = 0
    recomputed: int = 0
    plan_s: deque[float] = field(default_factory=lambda: deque(maxlen=20_000))
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=20_000))


@dataclass(frozen=True, slots=True)
class StuckStep:
    """A step that runs far longer than predicted, or was told to stop and has not."""

    lane: str
    ran_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine at one moment, for a live view. `budget` is the cap in tokens or the background's share in threads."""

    now: float
    placement: str
    controller: str
    target_s: float | None
    decode_only_s: float | None
    budget: float | None
    foreground_running: int
    foreground_queued: int
    background_running: int
    background_queued: int
    paused: int
    background_finished: int
    background_prompt_tokens: int
    kv_used: int
    kv_cells: int
    last_gap_s: float | None
    messages: tuple[str, ...] = ()
    stuck: tuple[StuckStep, ...] = ()
