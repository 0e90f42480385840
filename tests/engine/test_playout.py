"""The laws by which paced tokens are shown, on scripts of tokens that come and contention that begins and ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.playout import AHEAD_S, RAMP, Playout, chat_pace
from dlfp_edge.task import Class

EPSILON_S = 1e-9
INTERVAL_S = 0.1


@dataclass
class Shown:
    """A token: whether it was shown under contention, and as which one since that began or ended (0: it never did)."""

    there: float
    due: float
    at: float
    contended: bool
    number: int


@dataclass
class Reader:
    """Shows the tokens of a stream at the first moment its playout allows."""

    playout: Playout
    contended: bool = False
    there: list[float] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    number: int | None = None

    def advance(self, until: float) -> None:
        """Show what is to be shown up to a moment."""
        while (at := self.playout.next_at()) is not None and at <= until:
            if self.number is not None:
                self.number += 1
            there = self.there[len(self.shown)]
            self.shown.append(Shown(there, self.playout.show(), at, self.contended, self.number or 0))

    def contend(self, contended: bool) -> None:
        if contended != self.contended:
            self.contended, self.number = contended, 0
            self.playout.contend(contended)

    def add(self, at: float, least_gap_s: float = 0.0) -> None:
        self.there.append(at)
        self.playout.add(at, least_gap_s)


gaps_s = st.sampled_from([0.0, 0.005, 0.03, 0.09, 0.1, 0.25, 1.5, 4.0])
events = st.lists(st.tuples(gaps_s, st.sampled_from(["token"] * 6 + ["begin", "end"])), max_size=120)


def play(script: list[tuple[float, str]], pace: float | None = 1 / INTERVAL_S) -> Reader:
    reader, now = Reader(Playout(pace)), 0.0
    for after_s, what in script:
        now += after_s
        reader.advance(now)
        if what == "token":
            reader.add(now)
        else:
            reader.contend(what == "begin")
    reader.advance(now + 1000.0)
    return reader


@given(events)
def test_every_token_is_shown_once_and_none_is_held_past_its_time(script: list[tuple[float, str]]) -> None:
    reader = play(script)
    assert len(reader.shown) == len(reader.there)
    for token in reader.shown:
        assert token.there <= token.at <= max(token.there, token.due) + EPSILON_S
        assert token.at >= token.due - AHEAD_S - EPSILON_S, "further ahead than allowed"
        if token.contended:
            assert token.at >= token.due - EPSILON_S
    if reader.shown:
        assert reader.shown[0].at == reader.shown[0].there, "the first token is shown at once"
    assert not reader.playout.waits


@given(events)
def test_gaps_while_contended_and_after_it(script: list[tuple[float, str]]) -> None:
    for before, token in pairwise(play(script).shown):
        gap_s = token.at - before.at
        if token.contended:
            assert gap_s >= INTERVAL_S - EPSILON_S, "faster than the pace"
            if token.number == 1:
                assert token.due == pytest.approx(before.at + INTERVAL_S), "the schedule goes on from what was shown"
        elif token.number:
            assert gap_s >= RAMP**token.number * INTERVAL_S - EPSILON_S, "a burst"


@given(events)
def test_the_deadline_is_when_the_next_token_is_due(script: list[tuple[float, str]]) -> None:
    reader, now = Reader(Playout(1 / INTERVAL_S)), 0.0
    for after_s, what in script:
        now += after_s
        reader.advance(now)
        if what != "token":
            reader.contend(what == "begin")
            continue
        deadline = reader.playout.deadline()
        reader.add(now)
        if deadline is None:
            assert len(reader.there) == 1
            continue
        ahead = 0.0 if reader.contended else AHEAD_S
        _, due = reader.playout._waiting[-1]
        assert due - ahead == pytest.approx(deadline)


def test_a_reserve_is_not_shown_in_a_burst_when_contention_is_over() -> None:
    reader = Reader(Playout(1 / INTERVAL_S))
    reader.contend(True)
    for index in range(40):
        reader.advance(0.02 * index)
        reader.add(0.02 * index)
    reader.advance(1.0)
    shown = len(reader.shown)
    reader.contend(False)
    reader.advance(100.0)
    gaps = [b.at - a.at for a, b in pairwise(reader.shown[shown - 1 :])]
    until_ahead = [gap for gap, token in zip(gaps, reader.shown[shown:], strict=True) if token.at > token.due - AHEAD_S]
    assert len(until_ahead) > 15
    for index, gap_s in enumerate(until_ahead[:-1], start=1):
        assert gap_s == pytest.approx(RAMP**index * INTERVAL_S)


def test_what_was_shown_ahead_is_not_waited_for_at_the_onset() -> None:
    reader = Reader(Playout(1 / INTERVAL_S))
    for index in range(20):
        reader.add(0.01 * index)
        reader.advance(0.01 * index)
    assert reader.shown[-1].at == 0.19, "its place in the schedule is at 1.9 s"
    reader.contend(True)
    reader.add(0.2)
    reader.advance(100.0)
    assert reader.shown[-1].at == reader.shown[-1].due == pytest.approx(0.19 + INTERVAL_S)


def test_a_pace_that_decoding_cannot_keep_is_lowered_and_comes_back() -> None:
    reader = Reader(Playout(10.0))
    reader.contend(True)
    reader.add(0.0)
    reader.add(0.0, least_gap_s=0.25)
    assert reader.playout.lowered == pytest.approx(4.0)
    reader.add(0.0, least_gap_s=0.05)
    assert reader.playout.lowered is None
    reader.advance(100.0)
    assert [token.at for token in reader.shown] == pytest.approx([0.0, 0.25, 0.35])


def test_without_a_pace_tokens_are_shown_when_they_are_there() -> None:
    reader = play([(0.0, "token"), (0.1, "begin"), (0.1, "token"), (0.0, "token")], pace=None)
    assert [token.at for token in reader.shown] == reader.there
    assert reader.playout.deadline() is None
    assert reader.playout.lowered is None


@pytest.mark.parametrize(
    ("task_class", "grammar", "pace"),
    [(Class.FOREGROUND, None, 15.0), (Class.BACKGROUND, None, None), (Class.FOREGROUND, 'root ::= "a"', None)],
)
def test_the_pace_of_a_chat(task_class: Class, grammar: str | None, pace: float | None) -> None:
    assert chat_pace(task_class, grammar) == pace
