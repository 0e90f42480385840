"""The text of an answer as its tokens come in, and where a stop string ends it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class AnswerText:
    """Joins the bytes of tokens to text; bytes that are no UTF-8 become U+FFFD, as `bytes.decode` would have it.

    The text ends before the first place where one of `stop` stands; of those that start at the same place, the one that
    is complete first counts. Characters that may still turn out to be part of one are held back, and no others.
    `stopped` is the stop string that was found.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = sorted(stop, key=len)
        self._begins = {stop[0] for stop in self._stop}
        self._held = ""
        self.stopped: str | None = None

    def feed(self, data: bytes) -> str:
        """The text that is certain now that `data` has come."""
        return self._let_go(self._decoder.decode(data), last=False)

    def end(self) -> str:
        """What was held back: nothing follows that could complete a character or a stop string."""
        return self._let_go(self._decoder.decode(b"", True), last=True)

    def _let_go(self, more: str, *, last: bool) -> str:
        text, self._held = self._held + more, ""
        if not self._stop:
            return text
        if self.stopped is not None:
            return ""
        for at, character in enumerate(text):
            if character not in self._begins:
                continue
            self.stopped = next((stop for stop in self._stop if text.startswith(stop, at)), None)
            if self.stopped is not None:
                return text[:at]
            if not last and any(stop.startswith(text[at:]) for stop in self._stop):
                self._held = text[at:]
                return text[:at]
        return text
