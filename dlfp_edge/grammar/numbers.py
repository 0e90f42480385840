"""Ranges of numbers as grammar text: decimal digits that lie between two bounds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

LARGEST = 10**15 - 1
"""Numbers are written with at most 15 digits, so that every reader's floating point keeps them apart."""

_LARGEST_WITH_FRACTION = 10**8
_FRACTION = '"." [0-9]{0,5} [1-9]'


def integers(least: int, most: int) -> str:
    """Whole numbers from `least` to `most`, both included; empty where there is none."""
    parts = []
    if least < 0:
        parts += [f'"-" ({_naturals(max(1, -most), -least)})']
    if most >= 0:
        parts += [_naturals(max(0, least), most)]
    return " | ".join(parts) if least <= most else ""


def decimals(least: Fraction, most: Fraction, *, open_least: bool, open_most: bool) -> str:
    """Whole numbers within the bounds, and fractions between two of them; empty where there is none.

    `open_least` and `open_most` say that the bound itself is left out.
    """
    first = floor(least) + 1 if open_least else ceil(least)
    last = ceil(most) - 1 if open_most else floor(most)
    low = max(ceil(least), -_LARGEST_WITH_FRACTION)
    high = min(floor(most), _LARGEST_WITH_FRACTION)
    parts = [integers(first, last)]
    if max(0, low) < high:
        parts.append(f"({_naturals(max(0, low), high - 1)}) {_FRACTION}")
    if low < min(0, high):
        parts.append(f'"-" ({_naturals(max(0, -high), -low - 1)}) {_FRACTION}')
    return " | ".join(part for part in parts if part)


def _naturals(least: int, most: int) -> str:
    """Numbers from `least` to `most`, none negative, by how many digits they have."""
    parts = []
    while least <= most:
        last = min(most, 10 ** len(str(least)) - 1)
        parts.append(_digits(str(least), str(last)))
        least = last + 1
    return " | ".join(parts)


def _digits(low: str, high: str) -> str:
    """Digits from `low` to `high`, as many in each."""
    rest = len(low) - 1
    if not low:
        return ""
    if low == high:
        return f'"{low}"'
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return _any(low[0], high[0], rest)
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts.append(f'"{first}" ({_digits(low[1:], "9" * rest)})')
        first += 1
    if high[1:] != "9" * rest:
        parts.append(f'"{last}" ({_digits("0" * rest, high[1:])})')
        last -= 1
    if first <= last:
        parts.append(_any(str(first), str(last), rest))
    return " | ".join(parts)


def _any(first: str, last: str, rest: int) -> str:
    return f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else "")
