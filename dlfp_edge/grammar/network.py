"""A grammar as a network of nodes: what may be read next from each, and how few bytes lead from it to an end.

A rule is a part of the network that ends in `END`; a call of a rule goes through its part and returns. What is repeated
is a rule of its own, so the network grows with the sum of the repetitions and never with their product.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from dlfp_edge.errors import UsageError

from .breath import Breath
from .gbnf import Call, Chars, Choice, Definition, Expression, Ranges, Repeat, Sequence, parse

_LETTER, _SPACE, _TILDE = ord("a"), ord(" "), ord("~")

MOST_NODES = 25_000
UNENDING = 1 << 62
"""The length of what cannot end, and the most that any length counts as."""


class Node:
    """A place in a rule.

    It reads a character (`ranges`), or goes on in each of `targets`, or calls the rule that begins at `called`; after a
    character or a call it goes on at `following`. `length` is the fewest UTF-8 bytes from here to the end of the rule,
    `shortest` the target through which that goes.
    """

    __slots__ = ("called", "following", "length", "line", "ranges", "rule", "shortest", "targets")

    def __init__(self) -> None:
        self.ranges: Ranges = ()
        self.targets: list[Node] = []
        self.called: Node | None = None
        self.following: Node = self
        self.shortest: Node = self
        self.length = UNENDING
        self.rule = ""
        self.line = 0


END = Node()
END.length = 0


def build(text: str, root: str) -> Node:
    """The node at which a grammar's text begins. Raises UsageError with the place of what cannot work."""
    rules = parse(text)
    if root not in rules:
        raise UsageError(f"the grammar has no rule '{root}': name the one it begins with so")
    builder = _Builder(rules)
    start = builder.rule(root, rules[root].line)
    _measure(builder.nodes)
    _refuse_left_recursion(builder.starts.values())
    if start.length >= UNENDING:
        raise UsageError(f"grammar, line {rules[root].line}: the rule '{root}' can never end: give it a way out")
    return start


class _Builder:
    def __init__(self, rules: dict[str, Definition]) -> None:
        self.nodes: list[Node] = []
        self.starts: dict[str, Node] = {}
        self._rules = rules
        self._unbuilt: list[str] = []
        self._breath = Breath()

    def rule(self, name: str, line: int) -> Node:
        """The start of a rule, with all that it and the rules it names hold."""
        start = self._start(name, line)
        while self._unbuilt:
            current = self._unbuilt.pop()
            self.starts[current].targets = [self._expression(self._rules[current].expression, END)]
        return start

    def _start(self, name: str, line: int) -> Node:
        if name not in self.starts:
            if name not in self._rules:
                raise UsageError(f"grammar, line {line}: the rule '{name}' is not defined")
            self._named(name, self._rules[name].line)
            self._unbuilt.append(name)
        return self.starts[name]

    def _named(self, name: str, line: int) -> Node:
        start = self._node()
        start.rule, start.line = name, line
        self.starts[name] = start
        return start

    def _node(self) -> Node:
        if len(self.nodes) >= MOST_NODES:
            raise UsageError(f"the grammar is too large: with its repetitions it has more than {MOST_NODES} parts")
        self._breath.take()
        node = Node()
        self.nodes.append(node)
        return node

    def _expression(self, expression: Expression, following: Node) -> Node:
        """The node that begins this expression and goes on at `following`."""
        if isinstance(expression, Chars):
            node = self._node()
            node.ranges, node.following = expression.ranges, following
            return node
        if isinstance(expression, Call):
            return self._call(self._start(expression.name, expression.line), following)
        if isinstance(expression, Sequence):
            for item in reversed(expression.items):
                following = self._expression(item, following)
            return following
        if isinstance(expression, Choice):
            return self._split(self._expression(option, following) for option in expression.options)
        return self._repeat(expression, following)

    def _repeat(self, repeat: Repeat, following: Node) -> Node:
        copies = repeat.least + (1 if repeat.most is None else repeat.most - repeat.least)
        item = repeat.item
        start = None
        if copies > 1 and not isinstance(item, Chars | Call):
            start = self._named(f"({len(self.starts)})", 0)
            start.targets = [self._expression(item, END)]
        if repeat.most is None:
            loop = self._node()
            loop.targets = [self._once(item, start, loop), following]
            following = loop
        else:
            after = following
            for _ in range(repeat.most - repeat.least):
                following = self._split([self._once(item, start, following), after])
        for _ in range(repeat.least):
            following = self._once(item, start, following)
        return following

    def _once(self, item: Expression, start: Node | None, following: Node) -> Node:
        return self._call(start, following) if start else self._expression(item, following)

    def _call(self, start: Node, following: Node) -> Node:
        node = self._node()
        node.called, node.following = start, following
        return node

    def _split(self, targets: Iterable[Node]) -> Node:
        node = self._node()
        node.targets = list(targets)
        return node


def _measure(nodes: list[Node]) -> None:
    """Enter every node's shortest way to the end of its rule, the shortest first."""
    before: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for other in node.targets or ([node.following, node.called] if node.called else [node.following]):
            before[other].append(node)
    known: set[Node] = set()
    heap: list[tuple[int, int, Node]] = [(0, -1, END)]
    number = 0
    breath = Breath()
    while heap:
        breath.take()
        length, _, node = heapq.heappop(heap)
        if node in known:
            continue
        known.add(node)
        node.length = length
        for other in before[node]:
            through = _length_through(other, node, known)
            if other not in known and through < other.length:
                other.length, other.shortest = through, node
                heapq.heappush(heap, (through, number, other))
                number += 1


def _length_through(node: Node, target: Node, known: set[Node]) -> int:
    if node.ranges:
        return min(UNENDING, utf8_length(plainest(node.ranges)) + target.length)
    if node.called is None:
        return target.length
    if node.called in known and node.following in known:
        return min(UNENDING, node.called.length + node.following.length)
    return UNENDING


def plainest(ranges: Ranges) -> int:
    """The character to take where any will do: a letter, else something visible, else the first."""
    if any(first <= _LETTER <= last for first, last in ranges):
        return _LETTER
    return next((max(first, _SPACE) for first, last in ranges if last >= _SPACE and first <= _TILDE), ranges[0][0])


def utf8_length(point: int) -> int:
    """Bytes of a character in UTF-8."""
    return 1 + (point > 0x7F) + (point > 0x7FF) + (point > 0xFFFF)


def _refuse_left_recursion(starts: Iterable[Node]) -> None:
    """Raises UsageError for a rule that can call itself before anything was read: there is no end to that."""
    done: set[Node] = set()
    for start in starts:
        path: dict[Node, None] = {}
        waiting: list[tuple[Node, bool]] = [(start, False)]
        while waiting:
            rule, leaving = waiting.pop()
            if leaving:
                del path[rule]
                done.add(rule)
            elif rule in path:
                _refuse_loop([*path], rule)
            elif rule not in done:
                path[rule] = None
                waiting.append((rule, True))
                waiting.extend((other, False) for other in _called_first(rule))


def _refuse_loop(path: list[Node], rule: Node) -> None:
    named = next((node for node in path[path.index(rule) :] if node.line), rule)
    raise UsageError(
        f"grammar, line {named.line}: the rule '{named.rule}' begins with itself (left recursion): "
        "put what repeats at the end of the rule"
    )


def _called_first(start: Node) -> list[Node]:
    """The rules that a rule may call before it has read anything."""
    reached, called = {start}, dict[Node, None]()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        onward = node.targets
        if node.called is not None:
            called[node.called] = None
            onward = [node.following] if node.called.length == 0 else []
        for other in onward:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return [*called]
