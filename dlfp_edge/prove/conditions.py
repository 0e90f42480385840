"""What a cell is measured under: other programs, fewer CPUs, a quota, no priorities."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import psutil

from dlfp_edge.bench.busy import busy_cores
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.trial import Trial
from dlfp_edge.plugins import detect_device
from dlfp_edge.prove.quota import NotHere, own_group
from dlfp_edge.settings import Settings

MID_RUN, POLL_S, AT_MOST_S = 0.5, 0.05, 300.0
"""Another program comes at half of a trial's measured time and goes with that; it ends by itself after so long."""


class Condition(Protocol):
    """A condition. `real` says that it means nothing on virtual time, `what` is a line for people."""

    real: ClassVar[bool]

    @property
    def what(self) -> str: ...

    def around_cell(self) -> AbstractContextManager[None]:
        """In force from before the model is loaded until it is closed. Raises NotHere."""
        ...

    def around_trial(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        """In force around a trial; gives what the trial's record is told, complete once the block has ended."""
        ...

    def changed(self, settings: Settings) -> Settings:
        """The settings of our own engines under it."""
        ...


class Quiet:
    """Nothing but us; the base of the others."""

    real: ClassVar[bool] = False
    what: str = "nothing else wants the machine"

    def around_cell(self) -> AbstractContextManager[None]:
        return nullcontext()

    def around_trial(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        return nullcontext({})

    def changed(self, settings: Settings) -> Settings:
        return settings


class NoPriority(Quiet):
    """The background's threads at the foreground's priority: a system that has no others."""

    what = "our engines may not lower priorities"

    def changed(self, settings: Settings) -> Settings:
        return replace(settings, priority=False)


class Contention(Quiet):
    """Another program that keeps one CPU busy, from the middle of each trial's measured time to its end."""

    real = True
    what = "from the middle of each trial another program keeps one CPU busy"

    def around_trial(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        return _beside(_contend, trial)


Beside = Callable[[Trial, threading.Event, dict[str, Any]], None]
"""Runs beside a trial until that has ended, and tells what the trial's record is told."""


@contextmanager
def _beside(what: Beside, trial: Trial) -> Iterator[Mapping[str, Any]]:
    told: dict[str, Any] = {}
    ended = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            what(trial, ended, told)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="condition", daemon=True)
    thread.start()
    try:
        yield told
    finally:
        ended.set()
        thread.join()
    if errors:
        raise RuntimeFailure(f"what was to go on beside the trial failed: {errors[0]}") from errors[0]


def _contend(trial: Trial, ended: threading.Event, told: dict[str, Any]) -> None:
    while trial.part < MID_RUN:
        if ended.wait(POLL_S):
            return
    cpu = detect_device().cpu().usable[-1]
    began = time.monotonic()
    with busy_cores([cpu], AT_MOST_S):
        while trial.part < 1.0 and not ended.wait(POLL_S):
            pass
    told.update(busy_cpu=cpu, busy_s=time.monotonic() - began)


def _count_throttled(trial: Trial, ended: threading.Event, told: dict[str, Any]) -> None:
    """How often the quota stopped this process, and the trial's peer, while the trial measured."""
    while trial.part <= 0.0:
        if ended.wait(POLL_S):
            return
    before, began = detect_device().throttled(), time.monotonic()
    while trial.part < 1.0 and not ended.wait(POLL_S):
        pass
    after = detect_device().throttled()
    if before is not None and after is not None:
        told.update(throttled=after - before, throttled_in_s=time.monotonic() - began)


@dataclass(frozen=True)
class FewerCpus(Quiet):
    """Only a part of the CPUs, for all that this process is and starts meanwhile; `share` 0 is one CPU."""

    share: float

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"{self.share:.0%} of the CPUs" if self.share else "one CPU"

    @contextmanager
    def around_cell(self) -> Iterator[None]:
        if not hasattr(os, "sched_setaffinity"):
            raise NotHere("this system cannot keep a process off a CPU")
        usual = sorted(os.sched_getaffinity(0))
        if len(usual) < 2:
            raise NotHere("there is one CPU as it is")
        _keep_to(usual[: max(1, round(self.share * len(usual)))])
        try:
            yield
        finally:
            _keep_to(usual)


def _keep_to(cpus: list[int]) -> None:
    """All threads there are: pools of kernels outlive the model that made them."""
    for thread in psutil.Process().threads():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread.id, cpus)


@dataclass(frozen=True)
class Quota(Quiet):
    """A cgroup that grants `share` of the CPUs' time: what containers have."""

    share: float
    real: ClassVar[bool] = True

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"a cgroup grants {self.share:.0%} of the CPUs' time"

    @contextmanager
    def around_cell(self) -> Iterator[None]:
        cpus = self.share * len(detect_device().cpu().usable)
        with own_group(cpus):
            yield

    def around_trial(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        return _beside(_count_throttled, trial)


CONDITIONS: Mapping[str, Condition] = {
    "quiet": Quiet(),
    "contention": Contention(),
    "one-cpu": FewerCpus(0.0),
    "affinity": FewerCpus(0.5),
    "quota": Quota(0.75),
    "no-priority": NoPriority(),
}
