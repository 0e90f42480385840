"""Any other machine, as far as psutil knows it: no quota, and all cores taken as alike."""

from __future__ import annotations

import platform
from typing import Any

import psutil

from dlfp_edge.device import CpuTopology, Memory


class GenericDevice:
    """Implements `dlfp_edge.device.Device` for systems without an adapter of their own."""

    name = "generic"

    def supported(self) -> bool:
        return True

    def cpu(self) -> CpuTopology:
        usable = _usable()
        return CpuTopology(usable=usable, quota=None, siblings=(), performance=usable)

    def throttled(self) -> int | None:
        return None

    def memory(self) -> Memory:
        now = psutil.virtual_memory()
        return Memory(now.total, now.available)

    def describe(self) -> dict[str, Any]:
        return {
            "device": self.name,
            "system": platform.platform(),
            "cpu_model": platform.processor() or platform.machine() or None,
            "memory_bytes": psutil.virtual_memory().total,
            "cpus": list(_usable()),
        }


def _usable() -> tuple[int, ...]:
    """CPU ids by affinity where the system has it, else all of them."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        allowed = process.cpu_affinity()
        if allowed:
            return tuple(sorted(allowed))
    return tuple(range(psutil.cpu_count() or 1))


device = GenericDevice()
