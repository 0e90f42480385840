"""The simulated runtime in real time, doing to its process what native code can do. For workers under test only."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlfp_edge.clock import SystemClock
from dlfp_edge.runtime import Lane, LaneSpec, LoadOptions, Runtime, Step
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.worker.protocol import Wire

SEGFAULT, ABORT, EXIT, RAISE, NOISE, HANG, JUNK = 201, 202, 203, 204, 205, 206, 207
"""Tokens that make the step which holds them misbehave. The simulated model never says them itself."""

NONSENSE: dict[int, dict[str, Any]] = {
    211: {"kind": "sing"},
    212: {"kind": "progress", "parts": 5, "bytes": {}},
    213: {"kind": "progress", "parts": [["a", "b", "c"]], "bytes": {}},
    214: {"kind": "progress", "parts": [], "bytes": []},
    215: {"kind": "progress", "parts": [], "bytes": {"x": "y"}},
    216: {"kind": "finished", "task": "b0", "part": {"finish": "strange"}, "bytes": {}},
    217: {"kind": "finished", "task": [], "part": 5, "bytes": {"5": 5}},
    218: {"kind": "finished"},
    219: {"kind": "ready"},
    220: {"kind": "failed", "blame": "engine"},
    221: {"kind": "hello", "now": "noon"},
    222: {"kind": "answer", "ask": []},
    223: {"kind": "refused", "task": "b0"},
    224: {"kind": "notice"},
}
"""Tokens whose step sends the front a message that it cannot make sense of."""


def _wire() -> Wire:
    [wire] = [found for found in gc.get_objects() if isinstance(found, Wire)]
    return wire


def _say(message: dict[str, Any]) -> None:
    _wire().send(**message)
    time.sleep(3600)


def _junk() -> None:
    """What a native library does that writes to any descriptor."""
    _wire().send_frame(b"\xff" * 64)
    time.sleep(3600)


def _noise() -> None:
    """What a C library does that prints: through libc's own buffer, and straight to the descriptor."""
    libc = ctypes.CDLL(None)
    libc.puts(b"noise of native code")
    libc.fflush(None)
    os.write(1, b"more noise\n")
    print("noise of Python", flush=True)


def _raise() -> None:
    raise OSError("the cache is gone")


def _die_loading() -> None:
    print("loading error: out of luck", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


DEEDS: dict[int, Callable[[], object]] = {
    SEGFAULT: lambda: os.kill(os.getpid(), signal.SIGSEGV),
    ABORT: lambda: ctypes.CDLL(None).abort(),
    EXIT: lambda: os._exit(7),
    RAISE: _raise,
    NOISE: _noise,
    HANG: lambda: time.sleep(3600),
    JUNK: _junk,
    **{token: (lambda message=message: _say(message)) for token, message in NONSENSE.items()},
}


class UnrulyRuntime(SimulatedRuntime):
    """A runtime that says whether it was told what an earlier load had found."""

    known = False

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "known": self.known}

    def open_lane(self, spec: LaneSpec) -> Lane:
        lane = super().open_lane(spec)
        submit = lane.submit

        def misbehave(step: Step) -> int:
            for token in {token for segment in step.segments for token in segment.tokens}:
                DEEDS.get(token, int)()
            return submit(step)

        lane.submit = misbehave  # type: ignore[method-assign]
        return lane


class UnrulyProvider:
    """`gate=PATH` loads only once no file is there; `dies=PATH` dies while loading as long as a file is there."""

    name = "unruly"

    def load(self, options: LoadOptions) -> Runtime:
        given = options.options
        while "gate" in given and Path(given["gate"]).exists():
            time.sleep(0.01)
        if "dies" in given and Path(given["dies"]).exists():
            _die_loading()
        runtime = UnrulyRuntime(mode=given.get("mode", "lanes"), clock=SystemClock())
        runtime.known = options.known == runtime.capabilities
        return runtime


provider = UnrulyProvider()
