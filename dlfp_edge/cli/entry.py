"""Where the command starts. What Ctrl-C and SIGTERM do while everything is still imported: one line, as later."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_ORDINARY = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_WORDS = {signal.SIGINT: b"interrupted", signal.SIGTERM: b"terminated"}


def main() -> int:
    """Import the application and run it."""
    ordinary = {number: handler for number, handler in _ORDINARY.items() if signal.getsignal(number) is handler}
    for number in ordinary:
        signal.signal(number, _leave)
    from dlfp_edge.cli.main import main as run

    for number, handler in ordinary.items():
        signal.signal(number, handler)
    return run()


def _leave(number: int, _frame: FrameType | None) -> None:
    """End at once: an exception in the middle of an import can become another one, and there is nothing to lose yet."""
    if sys.stderr is not None:
        os.write(2, b"dlfp-edge: %s\n" % _WORDS[signal.Signals(number)])
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
