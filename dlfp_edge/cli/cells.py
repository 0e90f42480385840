"""Text as a terminal shows it: what it must not be given, how wide it is, where to break and cut it."""

from __future__ import annotations

import re

# Characters that move the cursor, start escape sequences, turn the direction of what follows, or join others into one
# whose width terminals do not agree on.
_UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with control characters made visible, invisible ones dropped and tabs as blanks; line ends stay."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _CONTROL.sub(_symbol, _UNSEEN.sub("", text))


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def width(text: str) -> int:
    """Cells that printable text takes, each character by itself: the most that any terminal gives it."""
    if text.isascii():
        return len(text)
    from rich.cells import get_character_cell_size

    return sum(map(get_character_cell_size, text))


def cut(text: str, cells: int) -> str:
    """The text, with an ellipsis where it does not fit."""
    if width(text) <= cells:
        return text
    return text[: _fitting(text, cells - 1)] + "…" if cells > 0 else ""


def wrap(paragraph: str, cells: int) -> list[str]:
    """Lines of at most this many cells, broken at blanks, and inside a word that is wider than a line."""
    lines, line, used = [], "", 0
    for word in paragraph.split(" "):
        size = width(word)
        if line and used + 1 + size > cells:
            lines.append(line)
            line, used = "", 0
        while size > cells:
            head = max(1, _fitting(word, cells))
            lines.append(word[:head])
            word = word[head:]
            size = width(word)
        line, used = (f"{line} {word}", used + 1 + size) if line else (word, size)
    return [*lines, line]


def _fitting(text: str, cells: int) -> int:
    """How many characters of the text fill at most this many cells."""
    used = 0
    for count, character in enumerate(text):
        used += width(character)
        if used > cells:
            return count
    return len(text)
