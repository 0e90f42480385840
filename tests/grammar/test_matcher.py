"""Every text that was gone along with can be ended, as shortly as is said, and no grammar makes steps long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.grammar import Grammar, Matcher, compile_grammar
from dlfp_edge.grammar.matcher import MOST_LOOKS, MOST_WAYS

from .random_grammars import ALPHABET, grammars


def follow(matcher: Matcher, pieces: list[bytes]) -> tuple[Matcher, bytes]:
    """The text of those pieces that the grammar takes, one after another."""
    text = b""
    for piece in pieces:
        longer = matcher.after(piece)
        if longer is not None:
            matcher, text = longer, text + piece
    return matcher, text


_pieces = st.lists(
    st.one_of(st.text(ALPHABET, min_size=1, max_size=3).map(str.encode), st.binary(min_size=1, max_size=2)), max_size=25
)


@settings(max_examples=400, deadline=None)
@given(grammars(), _pieces, st.integers(0, 3))
def test_any_text_can_be_ended(grammar: str, pieces: list[bytes], cut: int) -> None:
    matcher, text = follow(compile_grammar(grammar).start, pieces)
    for byte in "é😀".encode()[:cut]:  # a token may end inside a character
        matcher, more = follow(matcher, [bytes((byte,))])
        text += more
    ending = matcher.ending()
    assert len(ending) == matcher.ending_length()
    ended = compile_grammar(grammar).start.after(text + ending)
    assert ended is not None
    assert ended.may_end
    assert (ending == b"") == matcher.may_end


@settings(max_examples=200, deadline=None)
@given(grammars(), _pieces)
def test_no_shorter_end_exists(grammar: str, pieces: list[bytes]) -> None:
    matcher, _ = follow(compile_grammar(grammar).start, pieces)
    reached = {matcher}
    for _ in range(min(matcher.ending_length(), 3)):
        assert not any(one.may_end for one in reached)
        bytes_on = [bytes((byte,)) for byte in {*ALPHABET.encode(), 0x80, 0x82, 0xA9}]
        reached = {longer for one in reached for byte in bytes_on if (longer := one.after(byte)) is not None}


@given(st.text(max_size=8), st.integers(0, 8))
def test_pieces_may_cut_characters(text: str, at: int) -> None:
    data = text.encode()
    half = compile_grammar("root ::= .*").start.after(data[:at])
    assert half is not None
    whole = half.after(data[at:])
    assert whole is not None
    assert whole.may_end


@pytest.mark.parametrize("data", [b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5", b"\xe2\x28", b"\xf4\x90"])
def test_what_is_no_utf8_is_refused(data: bytes) -> None:
    assert compile_grammar("root ::= .*").start.after(data) is None


AMBIGUOUS = [
    'root ::= "a" root "b" | "a" root "c" | "a"',
    "root ::= [a-z] root [a-z] | [a-z] root [a-c] root | [a-z]",
    "root ::= (" + " | ".join(f"r{i}" for i in range(200)) + ")+\n"
    + "\n".join(f"r{i} ::= [a-z] r{(7 * i + 1) % 200}? [a-z]?" for i in range(200)),
]  # fmt: skip


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_many_ways_to_read_a_text_do_not_make_steps_long(text: str) -> None:
    grammar = Grammar(text)
    matcher = grammar.start
    for _ in range(300):
        before = grammar.looks
        longer = matcher.after(b"a")
        assert grammar.looks - before <= MOST_LOOKS
        if longer is None:
            break
        matcher = longer
        assert len(matcher._state.ways) <= MOST_WAYS
    ended = matcher.after(matcher.ending())
    assert ended is not None
    assert ended.may_end


def test_nesting_is_bounded_and_leads_out_again() -> None:
    matcher = compile_grammar('root ::= "(" root ")" "." | "x"').start
    depth = 0
    while depth < 1000 and (longer := matcher.after(b"(")) is not None:
        matcher, depth = longer, depth + 1
    assert 30 < depth < 100
    assert matcher.ending() == b"x" + b")." * depth


def test_what_was_seen_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlfp_edge.grammar.matcher._MOST_KNOWN", 50)
    grammar = Grammar('root ::= ("(" root ")" | [é-￿])*')
    matcher = grammar.start
    for point in range(0x100, 0x300):
        longer = matcher.after(chr(point).encode())
        assert longer is not None
        matcher = longer
    assert len(grammar._states) <= 50
    assert sum(len(state.known) for state in grammar._states.values()) <= 50


def test_a_grammar_is_compiled_once_while_it_is_in_use() -> None:
    held = compile_grammar('root ::= "held"')
    for number in range(200):
        compile_grammar(f'root ::= "{number}"')
    assert compile_grammar('root ::= "held"') is held
