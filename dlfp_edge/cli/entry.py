"""Where the command starts. What Ctrl-C does while everything is still being imported: one line, as later."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def main() -> int:
    """Import the application and run it."""
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ordinary:
        signal.signal(signal.SIGINT, _leave)
    from dlfp_edge.cli.main import main as run

    if ordinary:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End at once: an exception in the middle of an import can become another one, and there is nothing to lose yet."""
    if sys.stderr is not None:
        os.write(2, b"dlfp-edge: interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
