"""The port to devices: what the machine under the runtime looks like.

Adapters come through the entry-point group `dlfp_edge.devices`; each entry is a `Device`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The CPUs this process may use.

    `usable` are the CPU ids its affinity allows, of these as many as a quota pays for; `quota` the CPUs' worth of time
    that a cgroup grants (None: no quota);
    `siblings` groups of usable ids that share one physical core; `performance` the ids of the fast cores (all of them
    where cores are alike).
    """

    usable: tuple[int, ...]
    quota: float | None
    siblings: tuple[tuple[int, ...], ...]
    performance: tuple[int, ...]

    @property
    def limit(self) -> int:
        """CPUs worth using at once: min(affinity, floor of the quota), at least 1."""
        if self.quota is None:
            return len(self.usable)
        return max(1, min(len(self.usable), math.floor(self.quota)))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory; None where the system does not say.

    `total` is what this process can have at most, the machine's memory or less where a cgroup limits it. `available` is
    what it can still take without swapping; pages of files that the system would drop for it count as available, those
    of a mapped model too.
    """

    total: int | None
    available: int | None


class Device(Protocol):
    """One platform's view of the machine."""

    name: str

    def supported(self) -> bool:
        """Whether this adapter fits the machine it runs on."""
        ...

    def cpu(self) -> CpuTopology:
        """The CPUs this process may use."""
        ...

    def throttled(self) -> int | None:
        """How often the cgroup quota has stopped this process so far; None without a quota."""
        ...

    def memory(self) -> Memory:
        """The memory this process may use, as it is now."""
        ...

    def describe(self) -> dict[str, Any]:
        """CPU model, memory and system for a manifest, as JSON values."""
        ...
