"""How far a text has come in a grammar: which characters may follow, whether it may end, and its shortest end.

A *state* is every way to read the text so far: pairs of a node that reads the next character and a *frame*, the calls
to return to after it. States that were seen are kept with the characters that lead on from them, so a token of a usual
schema costs a few look-ups.

Work is bounded whatever the grammar: a state holds at most `MOST_WAYS` ways, calls nest at most `MOST_DEPTH` deep, and
a step looks at `MOST_LOOKS` nodes at most. What is beyond is given up, the longest ways to an end first. That only
narrows what can still be said: every way kept has an end.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from math import inf

from dlfp_edge.errors import UsageError

from .gbnf import Ranges, merge
from .network import END, UNENDING, Node, build, plainest
from .utf8 import begun, split

MOST_WAYS = 256
MOST_DEPTH = 64
MOST_LOOKS = 1_000
MOST_BYTES = 4_096
"""The longest shortest text a grammar may have."""

_MOST_KNOWN = 50_000
_KEPT_GRAMMARS = 32


class Frame:
    """Where to go on after a call, and after the calls around it. `length` is the fewest bytes to the very end."""

    __slots__ = ("depth", "inner", "length", "outer", "returns")

    def __init__(self, returns: Node, outer: Frame | None) -> None:
        self.returns = returns
        self.outer = outer
        self.length: int = min(UNENDING, returns.length + (outer.length if outer else 0))
        self.depth: int = outer.depth + 1 if outer else 1
        self.inner: dict[Node, Frame] = {}


Way = tuple[Node, Frame | None]


class State:
    """All ways to go on; `ended` says that the text may end here, `length` how many bytes its shortest end has."""

    __slots__ = ("ended", "known", "length", "ways")

    def __init__(self, ways: tuple[Way, ...], ended: bool) -> None:
        self.ways = ways
        self.ended = ended
        self.length = 0 if ended else min(map(_length, ways))
        self.known: dict[str, State | None] = {}

    def allowed(self) -> Ranges:
        """The characters that may follow."""
        return merge({span for node, _ in self.ways for span in node.ranges})


class Grammar:
    """A compiled grammar, for any number of texts and threads. Get one from `compile_grammar`.

    `looks` counts the nodes that were looked at so far, which is what the time of a step goes by.
    """

    def __init__(self, text: str, root: str = "root") -> None:
        """Raises UsageError with one line that names the place."""
        self.text = text
        self._lock = threading.Lock()
        self._states: dict[tuple[bool, frozenset[Way]], State] = {}
        self._outermost: dict[Node, Frame] = {}
        self._known = 0
        self.looks = 0
        first: Way = (build(text, root), None)
        if _length(first) > MOST_BYTES:
            raise UsageError(f"the grammar's shortest text is longer than {MOST_BYTES} bytes: ask for less")
        self._start = self._explore([first], refuse=True)

    @property
    def start(self) -> Matcher:
        """The empty text."""
        return Matcher(self, self._start, b"")

    def step(self, state: State, character: str) -> State | None:
        """The state after one more character; None where it may not follow."""
        try:
            return state.known[character]
        except KeyError:
            pass
        with self._lock:
            self._known += 1
            if self._known > _MOST_KNOWN:
                self._forget()
            found = self._step(state, ord(character))
            state.known[character] = found
        return found

    def _step(self, state: State, point: int) -> State | None:
        ways = [(node.following, frame) for node, frame in state.ways if _reads(node.ranges, point)]
        return self._explore(ways) if ways else None

    def _forget(self) -> None:
        for state in self._states.values():
            state.known.clear()
        self._start.known.clear()
        self._states.clear()
        self._outermost.clear()
        self._known = 0

    def _explore(self, ways: list[Way], *, refuse: bool = False) -> State:
        """Follow ways to where they read a character or end, the shortest first."""
        ways.sort(key=_length)
        found = {self._descend(ways[0])}
        looked: set[Way] = set()
        waiting = ways[::-1]
        while waiting and len(looked) < MOST_LOOKS:
            way = waiting.pop()
            if way in looked or _length(way) >= UNENDING:
                continue
            looked.add(way)
            if way[0].ranges or way == _THE_END:
                found.add(way)
            else:
                waiting.extend(self._onward(way))
        self.looks += len(looked)
        ended = _THE_END in found
        found.discard(_THE_END)
        if refuse and (waiting or len(found) > MOST_WAYS):
            raise UsageError(
                f"the grammar's text can begin in more than {MOST_WAYS} ways: let what they share come first"
            )
        return self._state(self._bounded(found, ended), ended)

    def _descend(self, way: Way) -> Way:
        """Follow the shortest end alone, so that it is there whatever has to be given up."""
        while not way[0].ranges and way != _THE_END:
            node, frame = way
            way = (node.shortest, frame) if node.targets else self._onward(way)[0]
        return way

    def _onward(self, way: Way) -> list[Way]:
        node, frame = way
        if node is END:
            assert frame is not None, "the end leads nowhere"
            return [(frame.returns, frame.outer)]
        if node.called is None:
            return [(target, frame) for target in reversed(node.targets)]
        return [(node.called, frame if node.following is END else self._frame(node.following, frame))]

    def _frame(self, returns: Node, outer: Frame | None) -> Frame:
        inner = outer.inner if outer else self._outermost
        found = inner.get(returns)
        if found is None:
            found = inner[returns] = Frame(returns, outer)
        return found

    def _bounded(self, ways: Iterable[Way], ended: bool) -> list[Way]:
        """At most so many, none too deep; where all are too deep only the shortest, which leads out again."""
        shortest_first = sorted(ways, key=_length)
        shallow = [way for way in shortest_first if way[1] is None or way[1].depth <= MOST_DEPTH]
        return (shallow or shortest_first[: not ended])[:MOST_WAYS]

    def _state(self, ways: list[Way], ended: bool) -> State:
        key = (ended, frozenset(ways))
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = State(tuple(ways), ended)
        return found


class Matcher:
    """A text in a grammar; it never changes, `after` gives the longer one. `rest` is the beginning of a character."""

    __slots__ = ("_grammar", "_rest", "_state")

    def __init__(self, grammar: Grammar, state: State, rest: bytes) -> None:
        self._grammar = grammar
        self._state = state
        self._rest = rest

    @property
    def looks(self) -> int:
        """The nodes of the grammar looked at so far, for this text and others."""
        return self._grammar.looks

    def after(self, data: bytes, most_looks: float = inf) -> Matcher | None:
        """The text with these UTF-8 bytes added; None where the grammar does not allow them.

        Also None where `looks` exceeds `most_looks` on the way.
        """
        parts = split(self._rest + data if self._rest else data)
        if parts is None:
            return None
        state = self._state
        for character in parts[0]:
            onward = self._grammar.step(state, character)
            if onward is None or self._grammar.looks > most_looks:
                return None
            state = onward
        if parts[1] and not _completions(state, parts[1]):
            return None
        return Matcher(self._grammar, state, parts[1])

    @property
    def whole(self) -> bool:
        """Whether the text is whole characters."""
        return not self._rest

    @property
    def may_end(self) -> bool:
        """Whether the text is complete."""
        return self._state.ended and not self._rest

    @property
    def must_end(self) -> bool:
        """Whether nothing can follow."""
        return self.may_end and not self._state.ways

    @property
    def allowed(self) -> Ranges:
        """The characters that may follow; for a text that ends inside a character, those that can complete it."""
        return _completions(self._state, self._rest) if self._rest else self._state.allowed()

    def ending_length(self) -> int:
        """How many bytes the shortest end of the text has."""
        if not self._rest:
            return self._state.length
        way, point = self._shortest_completion()
        return len(chr(point).encode()) - len(self._rest) + _length((way[0].following, way[1]))

    def ending(self) -> bytes:
        """The shortest end of the text. Look at its length first."""
        if not self._rest:
            return b"" if self._state.ended else _written(min(self._state.ways, key=_length))
        way, point = self._shortest_completion()
        return chr(point).encode()[len(self._rest) :] + _written((way[0].following, way[1]))

    def _shortest_completion(self) -> tuple[Way, int]:
        span = begun(self._rest)
        assert span is not None, "only what can be completed is kept"
        found = []
        for way in self._state.ways:
            shared = _shared(way[0].ranges, span)
            if shared:
                found.append((_length((way[0].following, way[1])), shared[0][0], way))
        _, point, way = min(found, key=lambda one: one[0])
        return way, point


_cache: weakref.WeakValueDictionary[str, Grammar] = weakref.WeakValueDictionary()
_recent: OrderedDict[str, Grammar] = OrderedDict()
_cache_lock = threading.Lock()


def compile_grammar(text: str) -> Grammar:
    """The grammar whose text begins with the rule `root`; the same object while somebody holds it.

    Raises UsageError with one line that names the place.
    """
    with _cache_lock:
        found = _cache.get(text)
    grammar = found or Grammar(text)
    with _cache_lock:
        grammar = _cache.setdefault(text, grammar)
        _recent[text] = grammar
        _recent.move_to_end(text)
        if len(_recent) > _KEPT_GRAMMARS:
            _recent.popitem(last=False)
    return grammar


_THE_END: Way = (END, None)


def _length(way: Way) -> int:
    node, frame = way
    return node.length + frame.length if frame else node.length


def _reads(ranges: Ranges, point: int) -> bool:
    for first, last in ranges:
        if point <= last:
            return first <= point
    return False


def _shared(ranges: Ranges, span: tuple[int, int]) -> Ranges:
    low, high = span
    return tuple((max(first, low), min(last, high)) for first, last in ranges if first <= high and last >= low)


def _completions(state: State, rest: bytes) -> Ranges:
    span = begun(rest)
    return _shared(state.allowed(), span) if span else ()


def _written(way: Way) -> bytes:
    """The shortest text from here to the very end."""
    node, frame = way
    returns: list[Node] = []
    points: list[int] = []
    while True:
        if node.ranges:
            points.append(plainest(node.ranges))
            node = node.following
        elif node.called is not None:
            returns.append(node.following)
            node = node.called
        elif node.targets:
            node = node.shortest
        elif returns:
            node = returns.pop()
        elif frame is not None:
            node, frame = frame.returns, frame.outer
        else:
            return "".join(map(chr, points)).encode()
