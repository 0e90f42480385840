"""Fixed texts as grammar text, with what several share said once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Rule = Callable[[str], str]
"""From a rule's text to the name it has, the same for the same text."""

_NOT_PLAIN = frozenset('"\\\x7f')


def literal(text: str) -> str:
    """A text in quotes."""
    return '"' + "".join(_escaped(character, '"\\') for character in text) + '"'


def one_of(texts: Iterable[str], rule: Rule) -> str:
    """One of some texts. Beginnings they share come first, so that a reader has few ways to go on."""
    texts = sorted(set(texts))
    return _one_of(texts, rule)


def _one_of(texts: list[str], rule: Rule) -> str:
    """Sorted texts. What a group shares goes before a rule of its own; groups of groups wait in a list, not a call."""
    done: dict[tuple[int, int], str] = {}
    waiting: list[tuple[int, int, int]] = [(0, len(texts), 0)]
    order: list[tuple[int, int, int]] = []
    while waiting:
        first, last, at = waiting.pop()
        order.append((first, last, at))
        if last - first > 1:
            waiting += [(low, high, shared) for low, high, shared in _groups(texts, first, last, at)]
    for first, last, at in reversed(order):
        if last - first == 1:
            done[first, last] = literal(texts[first][at:])
            continue
        parts = []
        for low, high, shared in _groups(texts, first, last, at):
            said = literal(texts[low][at:shared])
            parts.append(done[low, high] if high - low == 1 and shared == at else f"{said} {done[low, high]}")
        done[first, last] = rule(" | ".join(parts))
    return done[0, len(texts)]


def _groups(texts: list[str], first: int, last: int, at: int) -> list[tuple[int, int, int]]:
    """Parts of the sorted texts that go on with the same character, and up to where all of a part is the same."""
    groups = []
    low = first
    while low < last:
        high = low + 1
        character = texts[low][at : at + 1]
        while character and high < last and texts[high][at : at + 1] == character:
            high += 1
        shared = at if high - low == 1 else _shared(texts[low], texts[high - 1])
        groups.append((low, high, shared))
        low = high
    return groups


def _shared(one: str, other: str) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def plain_key(name: str) -> bool:
    """Whether a name is written in JSON as it is."""
    return not any(character in _NOT_PLAIN or character < " " for character in name)


def any_but(names: Iterable[str], rule: Rule) -> str:
    r"""A JSON string of plain characters that is none of these names, which are plain too."""
    names = sorted(set(names))
    prefixes = sorted({name[:end] for name in names for end in range(len(name) + 1)}, key=len, reverse=True)
    children: dict[str, list[str]] = {}
    for prefix in prefixes:
        if prefix:
            children.setdefault(prefix[:-1], []).append(prefix)
    after: dict[str, str] = {}
    for prefix in prefixes:
        onward = sorted(children.get(prefix, []))
        excluded = "".join(_escaped(child[-1], '"\\]^-[') for child in onward)
        parts = [rf'[^"\\\x00-\x1f\x7f{excluded}] plain* "\""']
        parts += [f"{literal(child[-1])} {after[child]}" for child in onward]
        if prefix not in names:
            parts.append(r'"\""')
        after[prefix] = rule(" | ".join(parts))
    return rf'"\"" {after[""]}'


def _escaped(character: str, special: str) -> str:
    if character in special or character < " " or character > "~":
        point = ord(character)
        return f"\\U{point:08X}" if point > 0xFFFF else f"\\u{point:04X}"
    return character
