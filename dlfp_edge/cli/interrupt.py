"""Ctrl-C: the first one ends a run in order, the second one at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h\n"


@contextmanager
def stops_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """During the block the first Ctrl-C calls `stop`; a second one ends the process with 130."""
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR.encode())
            os._exit(INTERRUPTED)
        asked = True
        stop()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
