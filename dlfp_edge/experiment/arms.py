"""What a comparison compares: settings of our engine, peers, endpoints, and the foreground alone on each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from dlfp_edge.device import CpuTopology
from dlfp_edge.engine import Engine
from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.session import running
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.trial import Opened
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class


@dataclass(frozen=True, slots=True)
class Speed:
    """What the device does alone: seconds for a decode, prompt tokens a second."""

    decode_s: float
    prefill_tokens_per_s: float

    def beside(self, tokens: float) -> float:
        """A decode in one step with so many prompt tokens, in seconds."""
        return self.decode_s + tokens / self.prefill_tokens_per_s


class Opener(Protocol):
    """Where an arm's requests go."""

    @property
    def opening_s(self) -> float:
        """About how long opening and closing take."""
        ...

    @property
    def family(self) -> str:
        """The solo it is held against: arms of one family are alike but for what they do to two classes at once."""
        ...

    def plain(self) -> Opener:
        """The target as its family's solo has it, without a law of its own."""
        ...

    def open(self, workload: Workload) -> AbstractContextManager[Opened]:
        """A fresh target during a block, large enough for the workload. Raises DlfpError where there is none."""
        ...

    def expected_gap_s(self, speed: Speed) -> float:
        """About the foreground's usual gap beside background work; infinite where nothing bounds it."""
        ...

    def describe(self) -> dict[str, Any]:
        """What makes this target what it is, as JSON values, the same in every process."""
        ...


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing compared. `solo` names the arm it is held against, itself for a solo arm; `sweep` the declared series
    of settings it is a point of: such an arm has one seed, and the others only where it is the best of the series.
    """

    label: str
    opener: Opener
    workload: Workload
    solo: str
    sweep: str | None = None

    @property
    def alone(self) -> bool:
        """Whether the arm is the foreground by itself."""
        return self.solo == self.label

    @property
    def slug(self) -> str:
        """The label as part of a file's name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-")


@dataclass(frozen=True, slots=True)
class EngineOpener:
    """An engine of ours in this process, fresh for each trial, on a runtime that stays."""

    runtime: Runtime
    settings: Settings
    topology: CpuTopology | None = None
    opening_s: ClassVar[float] = 0.2

    @property
    def family(self) -> str:
        return "lanes" if self._in_lanes else "shared"

    def plain(self) -> Opener:
        placement = Placement.AUTO if self._in_lanes else Placement.SHARED
        return replace(self, settings=replace(_USUAL, placement=placement, context=self.settings.context))

    @property
    def _in_lanes(self) -> bool:
        """Whether background work has a lane of its own, as far as that can be known before one is opened."""
        shared = self.settings.placement is Placement.SHARED or self.settings.single_class
        return self.runtime.capabilities.lanes > 1 and not shared

    @contextmanager
    def open(self, workload: Workload) -> Iterator[Opened]:
        engine = Engine(self.runtime, sized(self.settings, workload), self.topology)
        with running(engine):
            described = {"setting": engine.controller_name, "lanes": engine.lane_specs}
            yield Opened(engine, self.runtime.tokenizer, engine, describe=described)

    def expected_gap_s(self, speed: Speed) -> float:
        settings = self.settings
        name, _, tokens = settings.controller.partition(":")
        if settings.target_itl_s is not None and name not in ("fixed", *_UNBOUNDED):
            return settings.target_itl_s
        if self._in_lanes or name in ("auto", "slack", "dlfp", "dlfp-bounded", "predictor"):
            return (settings.slowdown or (1.75 if self._in_lanes else 3.0)) * speed.decode_s
        return speed.beside(float(tokens)) if name == "fixed" else math.inf

    def describe(self) -> dict[str, Any]:
        settings = self.settings
        names = [name for name in Settings.__dataclass_fields__ if getattr(settings, name) != getattr(_USUAL, name)]
        return {name: getattr(settings, name) for name in names}


_USUAL = Settings()
_UNBOUNDED = frozenset({"unlimited", "stall-cap", "tick", "pressure", "dlfp-cadence"})
"""Laws that hold no gap to the target."""


Named = tuple[str, Opener, str | None]
"""A label, where its requests go, and the sweep it is a point of."""


Others = Callable[[Runtime, Workload, int | None], list[Named]]
"""Makes arms once the runtime is loaded that they are held against, with so many KV cells where that was asked."""


def with_solo(named: Sequence[Named], workload: Workload) -> list[Arm]:
    """The arms named (label, opener, sweep), each family's solo among them.

    Raises UsageError for a label that is there twice.
    """
    arms: dict[str, Arm] = {}
    alone = workload.with_streams(workload.of_class(Class.FOREGROUND))
    if not alone.streams:
        raise UsageError(f"workload '{workload.name}' has no foreground stream: there is nobody to protect")
    for label, opener, sweep in named:
        solo = f"{opener.family}/solo"
        if solo not in arms:
            arms[solo] = Arm(solo, opener.plain(), alone, solo)
        if label in arms:
            raise UsageError(f"'{label}' is there twice: name each once")
        arms[label] = Arm(label, opener, workload, solo, sweep)
    return list(arms.values())
