"""Becomes another program that dies with its parent, hears no Ctrl-C of the terminal's, and may have idle priority.

A process group of its own rather than a session: Linux ranks idle priority inside a scheduling group, and a session is
one where autogroups are on.
"""

from __future__ import annotations

import os
import sys

from dlfp_edge.worker.orphan import die_with


def main(parent: int, idle: bool, command: list[str]) -> None:
    """Prepare this process, then run `command` in its place: what it starts and loads inherits all of this."""
    os.setpgid(0, 0)
    die_with(parent)
    if idle:
        lower()
    os.execvp(command[0], command)


def lower() -> None:
    """Give this process idle priority; the lowest nice value where the system has or allows no other."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):
        os.nice(19)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "idle", sys.argv[3:])
