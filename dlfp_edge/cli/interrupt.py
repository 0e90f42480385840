"""Ctrl-C and SIGTERM: the first one ends a run in order, the second one at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_RESTORE = "\x1b[?2026l\x1b[?7h\x1b[?25h\n"
"""Undoes what a picture sets: its frame held back, no wrapping, no cursor."""


class Interruption:
    """What has interrupted a block, as an exit code: 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        self.code = INTERRUPTED


class Terminated(BaseException):
    """SIGTERM, where there is nothing to end in order."""


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """During the block SIGTERM raises Terminated, unless this process was started to ignore it; a second one kills."""

    def handle(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    previous = signal.getsignal(signal.SIGTERM)
    if previous is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def stops_on_interrupt(stop: Callable[[], None]) -> Iterator[Interruption]:
    """During the block the first Ctrl-C or SIGTERM calls `stop`; a second one ends the process."""
    interruption = Interruption()

    def handle(number: int, _frame: FrameType | None) -> None:
        if interruption.asked:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _RESTORE.encode())
            os._exit(128 + number)
        interruption.asked, interruption.code = True, 128 + number
        stop()

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
