"""A terminal as far as the picture needs one. It fails on a sequence that it does not know."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Terminal:
    """`lines` are all lines so far, those that have scrolled out too; a line that was too long is wrapped or cut."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.wraps = True
        self.colours: set[str] = set()
        self.modes: dict[str, bool] = {}
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Take output."""
        while text:
            match = _SEQUENCE.match(text)
            if match:
                self._obey(*match.groups())
                text = text[match.end() :]
                continue
            assert text[0] != "\x1b", f"unknown sequence {text[:12]!r}"
            self._put(text[0])
            text = text[1:]

    def narrow(self, columns: int) -> None:
        """Another width: lines too long for it break, as most terminals do it."""
        broken: list[str] = []
        for index, line in enumerate(self.lines):
            parts = [line[start : start + columns] for start in range(0, len(line), columns)] or [""]
            if index == self._row:
                self._row = len(broken) + len(parts) - 1
            broken += parts
        self.lines, self.columns = broken, columns

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self.lines):
                self.lines.append("")
        else:
            assert character.isprintable(), f"{character!r} reached the terminal"
            if self._column == self.columns:
                if not self.wraps:
                    return
                self._put("\n")
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1

    def _obey(self, private: str, number: str, action: str) -> None:
        if private:
            assert number in ("7", "25", "2026"), number
            self.modes[number] = action == "h"
            self.wraps = self.modes.get("7", True)
        elif action == "A":
            self._row = max(self._row - int(number), len(self.lines) - self.rows, 0)
        elif action == "K":
            self.lines[self._row] = self.lines[self._row][: self._column]
        elif action == "J":
            del self.lines[self._row + 1 :]
            self.lines[self._row] = self.lines[self._row][: self._column]
        else:
            assert action == "m", action
            self.colours.update(number.split(";"))
