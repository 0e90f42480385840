"""What the foreground has shown so far: the text of the newest answers and the gaps between their tokens."""

from __future__ import annotations

from collections import deque

from dlfp_edge.task import Class, TaskRecord

_KEPT_CHARACTERS = 12_000
_KEPT_GAPS = 240


class Transcript:
    """Collects shown tokens. `on_token` runs in the thread that shows them, everything else reads from another."""

    def __init__(self) -> None:
        self.label = ""
        self.tokens = 0
        self.pace: float | None = None
        self.gaps_s: deque[float] = deque(maxlen=_KEPT_GAPS)
        self._pieces: deque[str] = deque(maxlen=_KEPT_CHARACTERS)
        self._newest = ""

    def on_token(self, record: TaskRecord, index: int) -> None:
        """Take the token at `index` of a record; background tokens are not shown."""
        if record.task_class is not Class.FOREGROUND:
            return
        if record.request_id != self._newest:
            self._newest, self.label = record.request_id, record.label or "foreground"
            self._pieces.append(f"\n\n▸ {self.label}\n" if self._pieces else f"▸ {self.label}\n")
        self.pace = record.lowest_pace or record.pace
        self._pieces.append(record.pieces[index])
        self.tokens += 1
        if index > 0:
            self.gaps_s.append(record.shown_times[index] - record.shown_times[index - 1])

    def on_finish(self, record: TaskRecord) -> None:
        """Take the text that was held back after a request's last token."""
        if record.request_id == self._newest:
            self._pieces.extend(record.pieces[len(record.output_token_ids) :])

    def tail(self, characters: int) -> str:
        """About the newest `characters` of text."""
        pieces = list(self._pieces)
        length, first = 0, len(pieces)
        while first > 0 and length < characters:
            first -= 1
            length += len(pieces[first])
        return "".join(pieces[first:])
