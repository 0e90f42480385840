"""Long work in Python, in pieces: other threads, such as one that hands out tokens, must not wait for the lock."""

from __future__ import annotations

import time

_EVERY = 64
_PAUSE_S = 1e-5


class Breath:
    """Gives up the interpreter's lock for a moment once in a while: a waiting thread would else get it every 5 ms."""

    def __init__(self) -> None:
        self._count = 0

    def take(self) -> None:
        """One more piece of work is done."""
        self._count += 1
        if self._count % _EVERY == 0:
            time.sleep(_PAUSE_S)
