"""Which segments of a step go into one call of llama.cpp, and which had better go one after another."""

from __future__ import annotations

from dlfp_edge.runtime import Output, Segment, Step

TILE_ROWS = 64
"""From this many tokens on, llama.cpp's flash attention on CPUs works in tiles of as many rows."""

SHORT_ROWS = 7
"""The most tokens of a call for which llama.cpp takes its kernels for short ones; what they say differs in bits."""

MOST_FOREIGN_CELLS = 512
"""How many cells of other sequences a tile may have to go through before a pass of their own is cheaper for them.

A tile goes through the cells of every sequence that has a row in it. For Gemma 3 270M on two CPUs six decodes at 1,200
cells each took 350 ms more in one call with a prefill of 64, 128 or 256 tokens, and 50 ms in a call of their own.
"""


def parts(step: Step, *, exact: bool, flash_attention: bool) -> list[Step]:
    """The calls a step is made of: one, or the decodes together and each prefill by itself.

    Apart where output must not depend on the make-up of a step: where sequences have KV streams of their own, llama.cpp
    cuts a batch into runs of equal length a sequence. Beside a decode that leaves a prefill's first token alone, and
    beside another prefill a rest of any length; runs that short take another kernel and change the output, and so do
    decodes that are too many for it. And apart where flash attention would go through many cells of other sequences.
    What is to be embedded is a call of its own too: llama.cpp gives hidden states of every token of a call or of none.
    """
    embedded = tuple(segment for segment in step.segments if embeds(segment))
    if embedded and len(embedded) < len(step.segments):
        rest = tuple(segment for segment in step.segments if not embeds(segment))
        halves = Step(rest, step.threads), Step(embedded, step.threads)
        return [part for half in halves for part in parts(half, exact=exact, flash_attention=flash_attention)]
    if not (exact or (flash_attention and _crowded(step))):
        return [step]
    decodes = [segment for segment in step.segments if len(segment.tokens) == 1]
    most = SHORT_ROWS if exact else len(decodes) or 1
    groups = [tuple(decodes[start : start + most]) for start in range(0, len(decodes), most)]
    prefills = [(segment,) for segment in step.segments if len(segment.tokens) > 1]
    return [Step(part, step.threads) for part in groups + prefills]


def embeds(segment: Segment) -> bool:
    """Whether hidden states of the segment are wanted."""
    return Output.EMBEDDING in segment.outputs.values()


def _crowded(step: Step) -> bool:
    longest = max(step.segments, key=lambda segment: len(segment.tokens))
    foreign = sum(segment.end for segment in step.segments) - longest.end
    return step.total_tokens >= TILE_ROWS and foreign > MOST_FOREIGN_CELLS
