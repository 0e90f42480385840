"""Lines drawn in place on a terminal, again and again, whatever becomes of its size meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text

from dlfp_edge.cli.output import discard

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_BEGIN, _END = "\x1b[?2026h\x1b[?7l", "\x1b[?7h\x1b[?2026l"
"""Between them terminals that can do so hold the frame back until it is whole, and cut lines instead of wrapping."""

_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Painter:
    """Draws pictures over one another on stderr, a terminal. The cursor waits hidden in the line below."""

    def __init__(self) -> None:
        self._console = Console(file=StringIO(), force_terminal=True, highlight=False)
        self._widths: list[int] = []
        self._columns = 0
        self._shown = ""
        self._gone = False

    def size(self) -> tuple[int, int]:
        """Columns and rows now. Not what COLUMNS and LINES say: they stay as they were when a window changes."""
        try:
            columns, rows = os.get_terminal_size(sys.stderr.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        return columns or 80, rows or 24

    def draw(self, lines: Sequence[Text], columns: int) -> None:
        """Replace the last picture; one that looks the same costs nothing."""
        body = self._styled(lines).replace("\n", f"{_CLEAR_LINE}\n")
        if body == self._shown and columns == self._columns:
            return
        self._write(f"{_HIDE_CURSOR}{_BEGIN}{self._back(columns)}{body}{_CLEAR_BELOW}{_END}")
        self._widths, self._columns, self._shown = [line.cell_len for line in lines], columns, body

    def leave(self) -> None:
        """Give the cursor back; the last picture stays."""
        self._write(_SHOW_CURSOR)

    def _back(self, columns: int) -> str:
        """To where the last picture begins: a terminal that has become narrower has broken its lines."""
        rows = sum(max(1, -(-cells // columns)) for cells in self._widths)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _styled(self, lines: Sequence[Text]) -> str:
        with self._console.capture() as capture:
            self._console.print(Text("\n").join(lines), soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        if self._gone:
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:  # the terminal has gone away
            self._gone = True
            discard(sys.stderr)
