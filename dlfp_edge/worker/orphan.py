"""A worker that outlives its front would hold the model's memory for nobody."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the system kill this process with its parent, where it can (Linux); elsewhere its stdin ends instead.

    Raises SystemExit if the parent has gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.name == "posix" and os.getppid() != parent:
        raise SystemExit(1)
