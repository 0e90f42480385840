"""The text of a grammar in llama.cpp's notation (GBNF), read into expressions.

Everything is bounded: the text, how deep groups nest, how often something may be repeated. What is wrong is said in one
line with the place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from dlfp_edge.errors import UsageError

from .breath import Breath

MOST_TEXT = 100_000
MOST_NESTING = 50
MOST_REPEATS = 5_000
MOST_SIGNS = 4
"""Repetitions of a repetition, as in x{2}*."""

LAST_CHARACTER = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
"""Code points from first to last, both included; sorted, and apart from one another."""

_SURROGATES = (0xD800, 0xDFFF)
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_ESCAPES = {"t": 9, "r": 13, "n": 10, "\\": 92, '"': 34, "[": 91, "]": 93}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of some."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Call:
    """What another rule says; `line` is where it is named."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after another."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `least` to `most` times; `most` None has no end."""

    item: Expression
    least: int
    most: int | None


Expression = Chars | Call | Sequence | Choice | Repeat


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule as it was written, and on which line."""

    expression: Expression
    line: int


def parse(text: str) -> dict[str, Definition]:
    """The rules of a grammar by name. Raises UsageError with the line and column of what cannot be read."""
    if len(text) > MOST_TEXT:
        raise UsageError(f"the grammar has {len(text)} characters; the most is {MOST_TEXT}")
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._newlines = [at for at, character in enumerate(text) if character == "\n"]
        self._at = 0
        self._depth = 0
        self._breath = Breath()

    def rules(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        self._space(newlines=True)
        while self._at < len(self._text):
            line, begun = self._line(), self._at
            name = self._name()
            if name in found:
                raise self._error(f"the rule '{name}' is defined twice", begun)
            self._space()
            if not self._text.startswith("::=", self._at):
                raise self._error("expected ::= after the rule's name")
            self._at += 3
            self._space(newlines=True)
            found[name] = Definition(self._choice(nested=False), line)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"unexpected {self._text[self._at]!r}")
            self._space(newlines=True)
        return found

    def _choice(self, *, nested: bool) -> Expression:
        options = [self._sequence(nested=nested)]
        while self._peek() == "|":
            self._at += 1
            self._space(newlines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, *, nested: bool) -> Expression:
        items: list[Expression] = []
        while (item := self._item(nested=nested)) is not None:
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, *, nested: bool) -> Expression | None:
        self._breath.take()
        item = self._primary()
        if item is None:
            return None
        self._space(newlines=nested)
        signs = 0
        while self._peek() in ("*", "+", "?", "{"):
            begun, signs = self._at, signs + 1
            if signs > MOST_SIGNS:
                raise self._error(f"more than {MOST_SIGNS} repetitions of one another")
            least, most = self._times()
            self._check_times(least, most, begun)
            item = Repeat(item, least, most)
            self._space(newlines=nested)
        return item

    def _primary(self) -> Expression | None:
        here = self._peek()
        if here == '"':
            return self._literal()
        if here == "[":
            return self._class()
        if here == ".":
            self._at += 1
            return Chars(complement(()))
        if here == "(":
            return self._group()
        if here in _NAME:
            line = self._line()
            return Call(self._name(), line)
        if here in ("<", "!"):
            raise self._error("a token in a grammar is not supported: write its text in quotes")
        return None

    def _group(self) -> Expression:
        begun = self._at
        self._at += 1
        self._depth += 1
        if self._depth > MOST_NESTING:
            raise self._error(f"groups nest deeper than {MOST_NESTING}", begun)
        self._space(newlines=True)
        inner = self._choice(nested=True)
        if self._peek() != ")":
            raise self._error("this ( has no )", begun)
        self._at += 1
        self._depth -= 1
        return inner

    def _literal(self) -> Expression:
        begun = self._at
        self._at += 1
        items: list[Expression] = []
        while (here := self._peek()) != '"':
            if here in ("", "\n"):
                raise self._error("this quote has no end", begun)
            point = self._character()
            items.append(Chars(((point, point),)))
        self._at += 1
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _class(self) -> Expression:
        begun = self._at
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (here := self._peek()) != "]":
            if here in ("", "\n"):
                raise self._error("this [ has no ]", begun)
            first = last = self._character()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error("a range ends before it begins", begun)
            ranges.append((first, last))
        self._at += 1
        merged = merge(ranges)
        if not merged:
            raise self._error("[] matches no character", begun)
        chosen = complement(merged) if negated else merged
        if not chosen:
            raise self._error("this class matches no character", begun)
        return Chars(chosen)

    def _character(self) -> int:
        self._breath.take()
        here = self._text[self._at]
        begun = self._at
        self._at += 1
        if here != "\\":
            point = ord(here)
        else:
            kind = self._peek()
            self._at += 1
            if kind in _ESCAPES:
                return _ESCAPES[kind]
            if kind not in _HEX_DIGITS:
                raise self._error(f"unknown escape \\{kind}", begun)
            point = self._hexadecimal(_HEX_DIGITS[kind], begun)
        if point > LAST_CHARACTER or _SURROGATES[0] <= point <= _SURROGATES[1]:
            raise self._error(f"U+{point:04X} is no character", begun)
        return point

    def _hexadecimal(self, digits: int, begun: int) -> int:
        written = self._text[self._at : self._at + digits]
        self._at += digits
        if len(written) < digits or any(digit not in "0123456789abcdefABCDEF" for digit in written):
            raise self._error(f"this escape needs {digits} hexadecimal digits", begun)
        return int(written, 16)

    def _times(self) -> tuple[int, int | None]:
        sign = self._peek()
        self._at += 1
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        begun = self._at - 1
        self._space()
        least = self._number(begun)
        most: int | None = least
        self._space()
        if self._peek() == ",":
            self._at += 1
            self._space()
            most = None if self._peek() == "}" else self._number(begun)
            self._space()
        if self._peek() != "}":
            raise self._error("this repetition is not {n}, {n,} or {n,m}", begun)
        self._at += 1
        return least, most

    def _check_times(self, least: int, most: int | None, begun: int) -> None:
        largest = least if most is None else max(least, most)
        if largest > MOST_REPEATS:
            raise self._error(f"{largest} repetitions; the most is {MOST_REPEATS}", begun)
        if most is not None and most < least:
            raise self._error(f"at least {least} and at most {most} repetitions", begun)

    def _number(self, begun: int) -> int:
        first = self._at
        while self._peek() in tuple("0123456789"):
            self._at += 1
        digits = self._text[first : self._at]
        if not digits:
            raise self._error("this repetition is not {n}, {n,} or {n,m}", begun)
        return int(digits) if len(digits) < 10 else 10**9

    def _name(self) -> str:
        first = self._at
        while self._peek() in _NAME:
            self._at += 1
        if first == self._at:
            raise self._error("expected a rule's name (letters, digits and -)")
        return self._text[first : self._at]

    def _space(self, *, newlines: bool = False) -> None:
        while here := self._peek():
            if here == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif here in " \t" or (newlines and here in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._text[at] if at < len(self._text) else ""

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1

    def _error(self, what: str, at: int | None = None) -> UsageError:
        at = self._at if at is None else at
        before = bisect_left(self._newlines, at)
        column = at - (self._newlines[before - 1] if before else -1)
        return UsageError(f"grammar, line {before + 1}, column {column}: {what}")


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as sorted ranges that are apart, surrogates left out."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    others, free = [], 0
    for first, last in merge([*ranges]):
        others.append((free, first - 1))
        free = last + 1
    others.append((free, LAST_CHARACTER))
    return merge((first, last) for first, last in others if first <= last)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    low, high = _SURROGATES
    for first, last in ranges:
        if first < low:
            yield first, min(last, low - 1)
        if last > high:
            yield max(first, high + 1), last
