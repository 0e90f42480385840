"""A cgroup of our own with a CPU quota, in either version of the interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlfp_edge.errors import DlfpError, RuntimeFailure

PERIOD_US = 100_000


class NotHere(DlfpError):
    """A condition that this machine, or this user, cannot have: why."""


class Trapped(RuntimeFailure):
    """This process cannot get out of a condition again: nothing more can be measured in it."""


@contextmanager
def own_group(cpus: float, root: Path = Path("/")) -> Iterator[None]:
    """This process and what it starts get at most so many CPUs' worth of time during the block.

    Raises NotHere where that may not be done, or the system has no such thing.
    """
    home = _home(root)
    group = home / f"dlfp-edge-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise _refused(group, error) from None
    try:
        _limit(group, cpus)
        _write(group / "cgroup.procs", str(os.getpid()))
        try:
            yield
        finally:
            _leave(group, home)
    finally:
        with suppress(OSError):
            group.rmdir()


def _leave(group: Path, home: Path) -> None:
    """Raises Trapped: whatever is measured from then on would be under the quota too."""
    try:
        _write(home / "cgroup.procs", str(os.getpid()))
    except NotHere as error:
        raise Trapped(f"this process cannot leave {group} again, start anew: {error}") from None


def _home(root: Path) -> Path:
    """The group this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    split = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    first = [(path, "sys/fs/cgroup/cpu") for _, names, path in split if "cpu" in names.split(",")]
    second = [(path, "sys/fs/cgroup") for _, names, path in split if not names]
    for path, mount in (*first, *second):
        home = root / mount / path.lstrip("/")
        if (home / "cgroup.procs").exists():
            return home
    raise NotHere("not permitted here: no cgroup with CPU time can be found")


def _limit(group: Path, cpus: float) -> None:
    granted = round(cpus * PERIOD_US)
    if (group / "cpu.cfs_quota_us").exists():
        _write(group / "cpu.cfs_period_us", str(PERIOD_US))
        _write(group / "cpu.cfs_quota_us", str(granted))
    elif (group / "cpu.max").exists():
        _write(group / "cpu.max", f"{granted} {PERIOD_US}")
    else:
        raise NotHere(f"not permitted here: {group.parent} hands no CPU time on to groups below it")


def _write(file: Path, text: str) -> None:
    try:
        with open(file, "r+") as opened:  # never makes a file
            opened.write(text)
    except OSError as error:
        raise _refused(file, error) from None


def _refused(file: Path, error: OSError) -> NotHere:
    return NotHere(f"not permitted here: {file}: {error.strerror or error}")
