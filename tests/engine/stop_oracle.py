"""Texts that are hard to cut, and where a stop string ends one, by plain string search."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

FRAGMENTS = [
    *("a", "b", "ab", "aab", "\n", "\n\n", " ", "User:", "é", "e\u0301", "漢字", "😀", "👩\u200d👩\u200d👧", "\u200d"),
    *("🇩🇪", "👍🏽", "\u0301\u0302", "שלום", "\u202eabc\u202c", "नमस्ते", "\ufffd", "\0"),
]
BROKEN = [b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x80", b"\xc3", b"\xf4\x90\x80\x80"]

pieces = st.one_of(st.sampled_from([text.encode() for text in FRAGMENTS]), st.sampled_from(BROKEN))
answers = st.lists(pieces, max_size=25).map(b"".join)
"""Bytes that are text for the most part."""

_near = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8).map(lambda parts: "".join(parts)[:30])


@st.composite
def stops_for(draw: st.DrawFn, text: str, most: int = 4) -> list[str]:
    """Stop strings, most of them from the text itself, so that they match, overlap and almost match."""
    found: list[str] = []
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, max(0, len(text) - 1)))
        taken = text[start : start + draw(st.integers(1, 30))]
        near = taken[:-1] + draw(st.sampled_from("abx\u0301"))
        found.append(draw(st.sampled_from([taken or "a", near])) if draw(st.booleans()) else draw(_near))
    if len(found) < most and draw(st.booleans()):
        found.append(found[0][: draw(st.integers(1, len(found[0])))])
    return found


@st.composite
def chunked(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The bytes in chunks of any size, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=len(data) + 1)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop string in it, and which that is; of equal starts the shortest."""
    places = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not places:
        return text, None
    at, _, stop = min(places)
    return text[:at], stop
