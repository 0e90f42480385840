"""What the front has to say, and callers' functions that must not stop it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dlfp_edge.engine import MOST_MESSAGES

_log = logging.getLogger(__name__)


class Notes:
    """Messages for the engine's user, each once."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, message: str) -> None:
        """Keep a message, and log it."""
        if message not in self.messages and len(self.messages) < MOST_MESSAGES:
            self.messages.append(message)
            _log.warning("%s", message)

    def guard(self, what: str, action: Callable[[], None]) -> None:
        """Run something that calls a caller's function: one that raises must not stop the others."""
        try:
            action()
        except BaseException as error:
            _log.error("%s failed", what, exc_info=error)
            self.say(f"{what} failed: {type(error).__name__}: {error}")
