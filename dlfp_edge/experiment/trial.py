"""One trial: one arm of a comparison, one seed, from warm-up to what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dlfp_edge.engine import Engine
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.client import LoadTarget
from dlfp_edge.experiment.machine import MachineUse, MachineWatch
from dlfp_edge.experiment.prefill import PrefillMeter, ProgressMeter, StepMeter
from dlfp_edge.experiment.session import is_virtual
from dlfp_edge.experiment.trial_load import Limits, Loaded, TrialLoad, wait_for
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.task import Class, TaskRecord
from dlfp_edge.trace import Counters, StepRecord

WARM_UPS = 3
WARM_UP_TOKENS = 16
ISOLATED = 2
"""Background prompts read alone, after the foreground was measured alone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A target that takes requests now. `processes` are the ids of others that do its work; `engine` is the target
    where it is one of ours; `exact_prompts` says that it gets ids, so that its prompts are as long as asked; `describe`
    tells for the record what it is.
    """

    target: LoadTarget
    tokenizer: Tokenizer
    engine: Engine | None = None
    processes: tuple[int, ...] = ()
    exact_prompts: bool = True
    describe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial saw. `prefilled` are background prompt tokens computed between `load.start` and `load.end`.

    `isolated` is what became of the background prompts read alone, on a solo arm. `counters` (what was added to them
    meanwhile) and `steps` are an engine's.
    """

    load: Loaded
    prefilled: float
    isolated: Sequence[TaskRecord]
    machine: MachineUse | None
    counters: dict[str, int] | None
    steps: Sequence[StepRecord]
    messages: tuple[str, ...]
    exact_prompts: bool = True


class Trial:
    """Runs one trial on an opened target; `stop` ends it with RuntimeFailure."""

    def __init__(
        self, opened: Opened, workload: Workload, *, seed: int, limits: Limits, isolated: Stream | None = None
    ):
        """`isolated` is a background stream whose prompts are read alone at the end."""
        self._opened, self._workload = opened, workload
        self._seed, self._limits, self._isolated = seed, limits, isolated
        self._steps: list[StepRecord] = []
        self._meter: PrefillMeter = StepMeter() if opened.engine else ProgressMeter()
        self._load: TrialLoad | None = None
        self._stopped = False

    @property
    def part(self) -> float:
        """How far the measured load has come, from 0 to 1."""
        return self._load.part if self._load is not None else 0.0

    def stop(self) -> None:
        """Give the trial up. For signal handlers and other threads."""
        self._stopped = True

    def run(self) -> Measured:
        """Raises UsageError for a workload the target cannot take, RuntimeFailure where it fails or was stopped."""
        opened = self._opened
        self._run(_warm_up(self._workload), Limits(cap_s=math.inf), self._seed)
        if opened.engine is not None:
            opened.engine.forget_prefixes()
            opened.engine.on_step = self._stepped
        before = Counters() if opened.engine is None else replace(opened.engine.counters)
        watch = None if is_virtual(opened.target) else MachineWatch(opened.processes, self._gauges)
        try:
            if watch is None:
                load = self._run(self._workload, self._limits, self._seed)
            else:
                with watch:
                    load = self._run(self._workload, self._limits, self._seed)
        finally:
            if opened.engine is not None:
                opened.engine.on_step = None
        counters = None if opened.engine is None else _since(before, opened.engine.counters)
        isolated: Sequence[TaskRecord] = ()
        if self._isolated is not None:
            isolated = self._run(_alone(self._isolated), Limits(cap_s=math.inf), self._seed).records
        return Measured(
            load,
            self._meter.tokens(load.start, load.end, load.records),
            isolated,
            None if watch is None else watch.use,
            counters,
            self._steps,
            () if opened.engine is None else tuple(opened.engine.messages),
            opened.exact_prompts,
        )

    def _run(self, workload: Workload, limits: Limits, seed: int) -> Loaded:
        target, tokenizer = self._opened.target, self._opened.tokenizer
        load = TrialLoad(target, workload, tokenizer, seed=seed, limits=limits, settled=self._meter.settled)
        if limits is self._limits:
            self._load = load
        target.call_at(target.clock.now(), load.begin)
        wait_for(target, load, lambda: self._stopped)
        if not load.done():
            raise RuntimeFailure("stopped on the way")
        return load.outcome()

    def _stepped(self, step: StepRecord) -> None:
        self._steps.append(step)
        if isinstance(self._meter, StepMeter):
            self._meter.add(step)

    def _gauges(self) -> Mapping[str, float]:
        engine = self._opened.engine
        if engine is None:
            return {}
        snapshot = engine.snapshot()
        return {
            "foreground_queued": snapshot.foreground_queued,
            "background_queued": snapshot.background_queued,
            "kv_occupancy": snapshot.kv_used / snapshot.kv_cells if snapshot.kv_cells else 0.0,
        }


def _since(before: Counters, after: Counters) -> dict[str, int]:
    """What was added to the counters that are numbers."""
    numbers = [field.name for field in fields(Counters) if isinstance(getattr(after, field.name), int)]
    return {name: getattr(after, name) - getattr(before, name) for name in numbers}


def _warm_up(workload: Workload) -> Workload:
    """Requests like the first foreground stream's, one after another, with prompts of their own and short answers."""
    first = (workload.of_class(Class.FOREGROUND) or workload.streams)[0]
    return workload.with_streams([first.one_by_one(WARM_UPS, WARM_UP_TOKENS)])


def _alone(stream: Stream) -> Workload:
    return Workload(
        name="isolated",
        description="Background prompts, one at a time, with nothing beside them.",
        stream=[stream.one_by_one(ISOLATED, 1)],
    )
