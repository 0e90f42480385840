"""What the machine was doing meanwhile: its CPUs, its memory, and who else wanted them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import psutil

from dlfp_edge.errors import UsageError

SAMPLE_S = 1.0
BUSY_CPUS = 0.25
"""More than so many CPUs' worth of work by other programs makes a machine too busy to measure on."""

LOOK_S = 2.0
NO_SAMPLER = "no sampler is there"


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Means over a stretch of time, as JSON has them; what the system does not tell is in `unavailable`, with why.

    `own_cpus` and `foreign_cpus` are CPUs' worth of work by the processes measured and by all others, `steal_cpus` what
    the host of a virtual machine took; `load` is the 1-minute load average, `frequency_mhz` the mean clock and
    `memory_bytes` the highest resident memory of the target's processes, of this one where there are no others;
    `gauges` are the mean and highest of what the target tells.
    """

    own_cpus: float | None = None
    foreign_cpus: float | None = None
    steal_cpus: float | None = None
    load: float | None = None
    frequency_mhz: float | None = None
    memory_bytes: int | None = None
    gauges: dict[str, tuple[float, float]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)


class MachineWatch:
    """Samples the machine from a thread of its own during a block; `use` is what it saw."""

    def __init__(self, processes: Sequence[int] = (), gauges: Callable[[], Mapping[str, float]] = dict) -> None:
        self._processes = _processes([os.getpid(), *processes])
        self._target = _processes(processes or [os.getpid()])
        self._gauges = gauges
        self._told: dict[str, list[float]] = {}
        self._frequency: list[float] = []
        self._memory = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="machine", daemon=True)
        self.use = MachineUse()

    def __enter__(self) -> MachineWatch:
        self._started = time.monotonic()
        self._times, self._own_s = psutil.cpu_times(), self._cpu_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        took_s = max(time.monotonic() - self._started, 1e-6)
        times, own_s = psutil.cpu_times(), self._cpu_s()
        own = (own_s - self._own_s) / took_s
        steal = getattr(times, "steal", None)
        unavailable = {
            "energy": NO_SAMPLER,
            "temperature": NO_SAMPLER,
        }
        if steal is None:
            unavailable["steal_cpus"] = "this system does not tell"
        if not self._frequency:
            unavailable["frequency_mhz"] = "this system does not tell the CPUs' clock"
        self.use = MachineUse(
            own_cpus=own,
            foreign_cpus=max(0.0, (_busy_s(times) - _busy_s(self._times)) / took_s - own),
            steal_cpus=None if steal is None else (steal - self._times.steal) / took_s,
            load=psutil.getloadavg()[0],
            frequency_mhz=fmean(self._frequency) if self._frequency else None,
            memory_bytes=self._memory or None,
            gauges={name: (fmean(values), max(values)) for name, values in self._told.items()},
            unavailable=unavailable,
        )

    def _sample(self) -> None:
        while True:
            self._memory = max(self._memory, sum(_resident(process) for process in self._target))
            with contextlib.suppress(Exception):  # not every system has it, and some that have fail now and then
                if (frequency := psutil.cpu_freq()) is not None and frequency.current:
                    self._frequency.append(frequency.current)
            for name, value in self._gauges().items():
                self._told.setdefault(name, []).append(value)
            if self._ended.wait(SAMPLE_S):
                return

    def _cpu_s(self) -> float:
        return sum(_cpu_s(process) for process in self._processes)


def refuse_busy() -> None:
    """Look at the machine for two seconds. Raises UsageError where other programs use its CPUs."""
    with MachineWatch() as watch:
        time.sleep(LOOK_S)
    cpus = watch.use.foreign_cpus or 0.0
    if cpus > BUSY_CPUS:
        raise UsageError(
            f"the machine is busy: other programs use {cpus:.1f} CPUs; end them, or measure all the same with "
            "--busy-ok (what else ran is recorded with every trial)"
        )


def _processes(pids: Sequence[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return float(times.user + times.system)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _busy_s(times: object) -> float:
    """CPU seconds spent on programs and on the system since boot."""
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
