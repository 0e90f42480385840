"""The simulated KV cache holds what was put into it and counts a shared cell once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlfp_edge.runtimes.simulated.choice import Chooser
from dlfp_edge.runtimes.simulated.kv import KvCache
from dlfp_edge.runtimes.simulated.tokens import EMPTY_HISTORY, END, ByteTokenizer, extend_history, next_token

IDS = st.integers(0, 3)


class Cells(RuleBasedStateMachine):
    """Beside the cache, lists of cells: an object each, and the token in it."""

    @initialize()
    def start(self) -> None:
        self.cache = KvCache(10_000)
        self.lists: dict[int, list[tuple[object, int]]] = {}

    @rule(sequence=IDS)
    def open(self, sequence: int) -> None:
        if sequence not in self.lists:
            self.cache.open(sequence, Chooser())
            self.lists[sequence] = []

    @rule(sequence=IDS, tokens=st.lists(st.integers(0, 999), max_size=5))
    def append(self, sequence: int, tokens: list[int]) -> None:
        if sequence in self.lists:
            self.cache.append(sequence, tokens)
            self.lists[sequence] += [(object(), token) for token in tokens]

    @rule(sequence=IDS, length=st.integers(0, 12))
    def truncate(self, sequence: int, length: int) -> None:
        if sequence in self.lists:
            self.cache.truncate(sequence, length)
            del self.lists[sequence][length:]

    @rule(sequence=IDS)
    def close(self, sequence: int) -> None:
        self.cache.close(sequence)
        self.lists.pop(sequence, None)

    @rule(source=IDS, copy=IDS, length=st.integers(0, 12))
    def fork(self, source: int, copy: int, length: int) -> None:
        if source in self.lists and self.lists.get(copy) == [] and source != copy:
            self.cache.fork(source, copy, length)
            self.lists[copy] = self.lists[source][:length]

    @invariant()
    def agrees(self) -> None:
        assert self.cache.used == len({id(cell) for cells in self.lists.values() for cell, _ in cells})
        for sequence, cells in self.lists.items():
            tokens = tuple(token for _, token in cells)
            assert self.cache.tokens(sequence) == tokens
            if tokens:
                history = extend_history(EMPTY_HISTORY, tokens)[-1]
                assert self.cache.sample(sequence, len(tokens) - 1) == next_token(history, 0, 0.0)


TestCells = Cells.TestCase


def test_a_cell_is_free_when_the_last_of_three_lets_go() -> None:
    cache = KvCache(100)
    for sequence in range(3):
        cache.open(sequence, Chooser())
    cache.append(0, [1, 2, 3])
    cache.fork(0, 1, 3)
    cache.fork(1, 2, 2)
    used = []
    for sequence in range(3):
        cache.close(sequence)
        used.append(cache.used)
    assert used == [3, 2, 0]


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 999), min_size=1, max_size=30),
    index=st.integers(0, 29),
    other=st.integers(0, 999),
)
def test_any_other_history_has_another_hash(tokens: list[int], index: int, other: int) -> None:
    index %= len(tokens)
    hashed = extend_history(EMPTY_HISTORY, tokens)[-1]
    lost, doubled, changed = tokens[:], tokens[:], tokens[:]
    del lost[index]
    doubled.insert(index, tokens[index])
    changed[index] = other
    for history in (lost, doubled, changed, tokens[index:] + tokens[:index]):
        if history and history != tokens:
            assert extend_history(EMPTY_HISTORY, history)[-1] != hashed


def test_tokens_spread_over_the_words_and_end_as_often_as_asked() -> None:
    histories = extend_history(EMPTY_HISTORY, range(900))
    words = {next_token(history, 0, 0.0) for history in histories}
    assert len(words) > 450
    assert END not in words
    ends = sum(next_token(history, 0, 0.1) == END for history in histories)
    assert 60 < ends < 120
    assert next_token(histories[0], 1, 0.0) != next_token(histories[0], 2, 0.0)


@given(st.text())
def test_text_survives(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


def test_words_have_text_and_the_end_has_none() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.token_bytes(257) == b" w257"
    assert tokenizer.token_bytes(END) == b""
    assert [token for token in range(tokenizer.vocabulary) if tokenizer.is_end(token)] == [END]
