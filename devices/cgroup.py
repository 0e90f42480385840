"""What a Linux cgroup grants this process, CPU time and memory, in either version of the interface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .sysfs import read_field, read_int, read_text, to_int

_V2_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_UNKNOWN = "2:memory:/\n1:cpu:/\n0::/"
_V1_MOUNTS = {
    "cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpuacct,cpu"),
    "memory": ("sys/fs/cgroup/memory",),
}
_NO_LIMIT = 1 << 60
"""Version 1 writes a number of about this size where memory has no limit."""


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup that limits this process: its folder, and the CPUs' worth of time it grants."""

    folder: Path
    quota: float

    def throttled(self) -> int | None:
        """How often the quota has stopped the group."""
        return to_int(read_field(self.folder / "cpu.stat", "nr_throttled"))


def limiting_groups(root: Path) -> list[Group]:
    """The process's own group and those above it, as far as they have a quota.

    In a container the path may be one that only the host can see; then whatever of it exists under the mount counts, at
    least the mount itself, which is the container's own group there.
    """
    found: dict[Path, Group] = {}
    for folder in _folders(root, "cpu"):
        quota = _quota(folder)
        if quota is not None:
            found[folder] = Group(folder, quota)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes a cgroup allows at most, and those left of it."""

    most: int
    left: int


def memory_limits(root: Path) -> list[MemoryLimit]:
    """The limits of the process's own group and those above it. Pages of files can be dropped, so they are not used."""
    return [limit for folder in _folders(root, "memory") if (limit := _memory_limit(folder)) is not None]


def _memory_limit(folder: Path) -> MemoryLimit | None:
    given = [read_int(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    limits = [limit for limit in given if limit is not None and 0 <= limit < _NO_LIMIT]
    if not limits:
        return None
    most, used = min(limits), read_int(folder / "memory.current") or read_int(folder / "memory.usage_in_bytes") or 0
    files = sum(_files(folder, name) for name in ("active_file", "inactive_file"))
    return MemoryLimit(most, max(0, most - max(0, used - files)))


def _files(folder: Path, name: str) -> int:
    """Pages of files of the group and those below it, which version 1 counts under a name of its own."""
    stat = folder / "memory.stat"
    return to_int(read_field(stat, f"total_{name}")) or to_int(read_field(stat, name)) or 0


def _folders(root: Path, controller: str) -> Iterator[Path]:
    for line in (read_text(root / "proc/self/cgroup") or _UNKNOWN).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _upward(root, _V2_MOUNTS, path)
        elif controller in controllers.split(","):
            yield from _upward(root, _V1_MOUNTS[controller], path)


def _upward(root: Path, mounts: tuple[str, ...], path: str) -> Iterator[Path]:
    # A path that leads out of the process's own namespace holds "..", which must not lead out of the mount here.
    inside = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
    for mount in mounts:
        for level in (inside, *inside.parents):
            yield root / mount / level


def _quota(folder: Path) -> float | None:
    granted, period = _v2(folder) or (read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us"))
    if granted is None or period is None or granted <= 0 or period <= 0:
        return None
    return granted / period


def _v2(folder: Path) -> tuple[int | None, int | None] | None:
    text = read_text(folder / "cpu.max")
    if text is None:
        return None
    granted, *period = text.split()
    return to_int(granted), to_int(period[0]) if period else None
