"""An answer's text, whatever tokens its bytes come in, against a search in the whole string."""

from __future__ import annotations

import codecs

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlfp_edge.text import AnswerText

from .stop_oracle import answers, chunked, cut, stops_for


def read(chunks: list[bytes], stops: list[str]) -> tuple[list[str], str | None]:
    """The pieces of text, the last of which is what was held back."""
    text, pieces = AnswerText(stops), []
    for chunk in chunks:
        pieces.append(text.feed(chunk))
        if text.stopped is not None:
            break
    return [*pieces, text.end()], text.stopped


@settings(max_examples=400, deadline=None)
@given(data=st.data(), answer=answers)
def test_the_pieces_are_the_text_up_to_the_first_stop_string(data: st.DataObject, answer: bytes) -> None:
    whole = answer.decode("utf-8", "replace")
    stops = data.draw(stops_for(whole))
    pieces, stopped = read(data.draw(chunked(answer)), stops)
    assert ("".join(pieces), stopped) == cut(whole, stops)
    at_once, _ = read([answer], stops)
    assert "".join(at_once) == "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), answer=st.one_of(answers, st.binary(max_size=40)))
def test_without_stop_strings_it_is_what_decode_gives(data: st.DataObject, answer: bytes) -> None:
    pieces, stopped = read(data.draw(chunked(answer)), [])
    assert "".join(pieces) == answer.decode("utf-8", "replace")
    assert stopped is None


@settings(max_examples=300, deadline=None)
@given(data=st.data(), answer=answers)
def test_nothing_is_held_back_but_what_may_become_a_stop_string(data: st.DataObject, answer: bytes) -> None:
    stops = data.draw(stops_for(answer.decode("utf-8", "replace")))
    text, decoder = AnswerText(stops), codecs.getincrementaldecoder("utf-8")("replace")
    come = shown = ""
    for chunk in data.draw(chunked(answer)):
        come += decoder.decode(chunk)
        shown += text.feed(chunk)
        if text.stopped is not None:
            break
        held = max(
            size for size in range(len(come) + 1) if not size or any(stop.startswith(come[-size:]) for stop in stops)
        )
        assert shown == come[: len(come) - held]


@given(st.lists(st.sampled_from(["a", "ab", "aba", "bab", "b"]), min_size=1, max_size=4))
@example(["bc", "abcd"])
def test_a_stop_string_that_began_earlier_goes_before_one_complete_already(stops: list[str]) -> None:
    for answer in ("abcd", "abcx", "abc", "aabab", "babab"):
        pieces, stopped = read([character.encode() for character in answer], stops)
        assert ("".join(pieces), stopped) == cut(answer, stops)


def test_a_character_appears_whole() -> None:
    pieces, _ = read([bytes((byte,)) for byte in "é 😀".encode()], [])
    assert pieces == ["", "é", " ", "", "", "", "😀", ""]
