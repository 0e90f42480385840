"""Small files of /proc and /sys. What is missing or malformed reads as None: it is simply not known."""

from __future__ import annotations

from pathlib import Path

_MOST_CPUS = 1 << 16
"""More than any kernel supports; a larger number in a list is nonsense."""


def read_text(path: Path) -> str | None:
    """The file's text without surrounding space, if it can be read and is not empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip(" \t\r\n\0") or None
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The one whole number the file holds."""
    return to_int(read_text(path))


def to_int(text: str | None) -> int | None:
    """A whole number, if that is what the text is."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def read_field(path: Path, name: str, separator: str | None = None) -> str | None:
    """The value of the first line `name<separator>value`; the separator is white space unless given."""
    for line in (read_text(path) or "").splitlines():
        key, *value = line.split(separator, 1)
        if key.strip() == name and value:
            return value[0].strip() or None
    return None


def read_cpu_list(path: Path) -> frozenset[int] | None:
    """CPU ids of a list such as `0-3,8`."""
    text = read_text(path)
    if text is None:
        return None
    ids: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = to_int(first), to_int(last or first)
        if low is None or high is None or not 0 <= low <= high < _MOST_CPUS:
            return None
        ids.update(range(low, high + 1))
    return frozenset(ids)
