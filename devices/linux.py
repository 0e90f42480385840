"""A Linux machine, as /proc and /sys describe it."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dlfp_edge.device import CpuTopology, Memory

from .cgroup import limiting_groups, memory_limits
from .sysfs import read_cpu_list, read_field, read_int, read_text, to_int

_FAST = 0.75
"""A core is a fast one from this share of the best core's capacity or clock: cores alike differ by less."""


def _affinity() -> Iterable[int]:
    return os.sched_getaffinity(0)


class LinuxDevice:
    """Implements `dlfp_edge.device.Device`. Nothing here raises: what cannot be read is taken as unknown.

    `root` is where /proc and /sys are found, `affinity` gives the CPU ids the process may run on.
    """

    name = "linux"

    def __init__(self, root: Path = Path("/"), affinity: Callable[[], Iterable[int]] = _affinity) -> None:
        self._root = root
        self._affinity = affinity

    def supported(self) -> bool:
        return sys.platform == "linux"

    def cpu(self) -> CpuTopology:
        quota = min((group.quota for group in limiting_groups(self._root)), default=None)
        usable = self._paid_for(tuple(sorted(self._affinity())), quota)
        return CpuTopology(
            usable=usable,
            quota=quota,
            siblings=self._siblings(usable),
            performance=self._performance(usable),
        )

    def throttled(self) -> int | None:
        counts = [group.throttled() for group in limiting_groups(self._root)]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def memory(self) -> Memory:
        limits = memory_limits(self._root)
        totals = [self._meminfo("MemTotal"), *(limit.most for limit in limits)]
        available = [self._meminfo("MemAvailable"), *(limit.left for limit in limits)]
        return Memory(_smallest(totals), _smallest(available))

    def describe(self) -> dict[str, Any]:
        topology = self.cpu()
        return {
            "device": self.name,
            "kernel": read_text(self._root / "proc/sys/kernel/osrelease"),
            "cpu_model": self._cpu_model(),
            "memory_bytes": self._meminfo("MemTotal"),
            "virtual_machine": self._virtual_machine(),
            "cpus": list(topology.usable),
            "cpu_quota": topology.quota,
            "smt_siblings": [list(group) for group in topology.siblings],
            "performance_cpus": list(topology.performance),
        }

    def _meminfo(self, name: str) -> int | None:
        """A figure of /proc/meminfo, in bytes."""
        kib = to_int((read_field(self._root / "proc/meminfo", name, ":") or "").removesuffix("kB"))
        return None if kib is None else kib * 1024

    def _siblings(self, usable: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        groups = set()
        for cpu in usable:
            listed = read_cpu_list(self._cpu_folder(cpu) / "topology/thread_siblings_list") or frozenset()
            group = tuple(sorted(listed & set(usable)))
            if len(group) > 1 and cpu in group:
                groups.add(group)
        return tuple(sorted(groups))

    def _performance(self, usable: tuple[int, ...]) -> tuple[int, ...]:
        named = read_cpu_list(self._root / "sys/devices/cpu_core/cpus") or frozenset()
        fast = tuple(cpu for cpu in usable if cpu in named)
        if fast:
            return fast
        for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
            rates = {cpu: read_int(self._cpu_folder(cpu) / file) for cpu in usable}
            known = {cpu: rate for cpu, rate in rates.items() if rate is not None and rate > 0}
            if known and len(known) == len(usable):
                return tuple(cpu for cpu in usable if known[cpu] >= _FAST * max(known.values()))
        return usable

    def _paid_for(self, cpus: tuple[int, ...], quota: float | None) -> tuple[int, ...]:
        """The CPUs whose whole time a quota grants, one at least: fast ones first, then one of each physical core.

        Threads on more of them use it up before its period ends, and then all stand still, somebody's answer with them.
        Where in the line the choice begins depends on the host's name, so that containers do not all take the same.
        """
        if quota is None or quota >= len(cpus):
            return cpus
        turn = zlib.crc32(self._host().encode()) % len(cpus)
        second = {cpu for group in self._siblings(cpus) for cpu in group[1:]}
        fast = set(self._performance(cpus))
        line = sorted((*cpus[turn:], *cpus[:turn]), key=lambda cpu: (cpu not in fast, cpu in second))
        return tuple(sorted(line[: max(1, int(quota))]))

    def _host(self) -> str:
        return read_text(self._root / "proc/sys/kernel/hostname") or ""

    def _cpu_folder(self, cpu: int) -> Path:
        return self._root / f"sys/devices/system/cpu/cpu{cpu}"

    def _cpu_model(self) -> str | None:
        cpuinfo = self._root / "proc/cpuinfo"
        return (
            read_field(cpuinfo, "model name", ":")
            or read_field(cpuinfo, "Hardware", ":")
            or read_text(self._root / "proc/device-tree/model")
        )

    def _virtual_machine(self) -> bool | None:
        """Whether the processor says it is a hypervisor's guest; None where it has no such flag to set."""
        flags = read_field(self._root / "proc/cpuinfo", "flags", ":")
        return None if flags is None else "hypervisor" in flags.split()


def _smallest(figures: Iterable[int | None]) -> int | None:
    return min((figure for figure in figures if figure is not None), default=None)


device = LinuxDevice()
