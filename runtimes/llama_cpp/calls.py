"""Steps in several short calls, for devices on which a call that runs cannot be stopped.

A GPU does not look at llama.cpp's abort flag, so a step is run as calls of about 15 ms each, and the wish to stop is
looked at between them. What a call takes is measured from its start until the device has finished.
"""

from __future__ import annotations

from dataclasses import replace

from dlfp_edge.runtime import Segment, Step

CALL_S = 0.015
_LEAST, _FIRST, _MOST = 16, 64, 512
"""Tokens of a call: never less than a kernel's tile, and what a call is before any was measured."""

_LARGEST_CHANGE = 2.0


class CallSize:
    """How many tokens run in about 15 ms, learned from the calls of prefills."""

    def __init__(self) -> None:
        self._tokens = float(_FIRST)

    @property
    def tokens(self) -> int:
        """The size of the next call, in whole tiles."""
        return int(self._tokens) // _LEAST * _LEAST

    def observe(self, tokens: int, took_s: float) -> None:
        """A call ended. Calls of a few decodes say nothing about prefill."""
        if tokens < _LEAST or took_s <= 0:
            return
        change = tokens * CALL_S / took_s / self._tokens
        self._tokens *= min(max(change, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)
        self._tokens = min(max(self._tokens, _LEAST), _MOST)


def split_off(step: Step, tokens: int) -> tuple[Step, Step | None]:
    """The first call of a step, of at most so many tokens, and the rest. Decodes go first."""
    first: list[Segment] = []
    rest: list[Segment] = []
    for segment in sorted(step.segments, key=lambda segment: len(segment.tokens) > 1):
        here = min(max(tokens, 0), len(segment.tokens))
        tokens -= here
        if here:
            first.append(_part(segment, 0, here))
        if here < len(segment.tokens):
            rest.append(_part(segment, here, len(segment.tokens)))
    return replace(step, segments=tuple(first)), replace(step, segments=tuple(rest)) if rest else None


def _part(segment: Segment, begin: int, end: int) -> Segment:
    start, stop = segment.start + begin, segment.start + end
    outputs = {position: wanted for position, wanted in segment.outputs.items() if start <= position < stop}
    return Segment(segment.sequence, start, segment.tokens[begin:end], outputs)
