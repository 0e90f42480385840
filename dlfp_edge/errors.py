"""Everything that can go wrong and that a user can mend, as a small tree of errors.

Each message is one line that names the thing at fault and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DlfpError(Exception):
    """Root of the errors this package raises on purpose."""


class UsageError(DlfpError):
    """The input is wrong: a path, an option, a workload, a prompt. Commands exit with 2."""


class MissingExtra(UsageError):
    """An adapter needs a package that is not installed; the message says what to install."""


class FetchError(DlfpError):
    """A model could not be fetched: no network, a hub that does not answer, a full disk. Trying again may help."""


class QueueFull(DlfpError):
    """The queue of the task's class is full; nothing was queued. Try again later."""


class EngineClosed(DlfpError):
    """The engine is shutting down or has stopped; it takes no more tasks."""


class RuntimeFailure(DlfpError):
    """A runtime failed in a way that no retry of the same step can mend."""


def hint(word: str, known: Iterable[str], introduction: str = "known are", *, cutoff: float = 0.6) -> str:
    """The end of a message about an unknown word: the nearest known one, or all of them after `introduction`.

    `cutoff`, from 0 to 1, is how alike the nearest must be.
    """
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean '{near[0]}'?" if near else f"{introduction} {', '.join(known) or 'none'}"
