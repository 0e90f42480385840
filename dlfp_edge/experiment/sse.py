"""Server-sent events: what follows `data:` in a stream of bytes."""

from __future__ import annotations

MOST_BYTES = 4 << 20
"""The longest event; what goes on for longer without an end is no stream of events."""


class EventReader:
    """Takes the bytes of one stream as they come and gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that these bytes complete. Raises ValueError where one has no end."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        if len(self._rest) + sum(map(len, self._data)) > MOST_BYTES:
            raise ValueError(f"an event of more than {MOST_BYTES >> 20} MB")
        return events
