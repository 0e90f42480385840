"""Which steps a simulated lane refuses. Every function raises ValueError with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from dlfp_edge.runtime import PREVIOUS, Segment, Step, Transfer

from .kv import KvCache
from .mode import Mode
from .tokens import VOCABULARY


def check_step(step: Step, pending: Sequence[Step], kv: KvCache, mode: Mode) -> None:
    """Check a step that is to run after those `pending`."""
    if len(pending) >= mode.depth:
        raise ValueError(f"the lane already has {mode.depth} step(s) submitted")
    if step.transfer is not None:
        _check_transfer(step.transfer, pending, kv, mode)
        return
    if not step.segments or step.threads < 1:
        raise ValueError("a step needs a segment and a thread")
    if step.total_tokens > mode.largest_step:
        raise ValueError(f"a step of {step.total_tokens} tokens is larger than {mode.largest_step}")
    if len({segment.sequence for segment in step.segments}) < len(step.segments):
        raise ValueError("a step may have one segment of a sequence")
    for segment in step.segments:
        check_open(segment.sequence, kv)
        _check_segment(segment, segments_of(segment.sequence, pending), kv, mode)


def check_open(sequence: int, kv: KvCache) -> None:
    """Check that the sequence is open."""
    if sequence not in kv:
        raise ValueError(f"sequence {sequence} is not open")


def check_outside(sequence: int, pending: Sequence[Step]) -> None:
    """Check that no step in flight has this sequence."""
    copied = any(step.transfer is not None and step.transfer.sequence == sequence for step in pending)
    if copied or segments_of(sequence, pending):
        raise ValueError(f"sequence {sequence} is in a step in flight")


def segments_of(sequence: int, steps: Sequence[Step]) -> list[Segment]:
    """The segments of one sequence."""
    return [segment for step in steps for segment in step.segments if segment.sequence == sequence]


def _check_segment(segment: Segment, earlier: Sequence[Segment], kv: KvCache, mode: Mode) -> None:
    sequence, count = segment.sequence, len(segment.tokens)
    held = kv.length(sequence) + sum(len(item.tokens) for item in earlier)
    if segment.start != held:
        raise ValueError(f"sequence {sequence} holds {held} cells, so a segment cannot start at {segment.start}")
    if not count or segment.end > mode.sequence_context:
        raise ValueError(f"a segment needs a token and must end by {mode.sequence_context}")
    if 1 < count < mode.min_chunk and segment.start:
        raise ValueError(f"a chunk of {count} tokens is shorter than {mode.min_chunk}")
    if any(not segment.start <= position < segment.end for position in segment.outputs):
        raise ValueError(f"an output of sequence {sequence} is outside its segment")
    known = segment.tokens
    if known[0] == PREVIOUS:
        _check_previous(segment, earlier, kv, mode)
        known = known[1:]
    if known and not (min(known) >= 0 and max(known) < VOCABULARY):
        raise ValueError(f"a token of sequence {sequence} is not in 0..{VOCABULARY - 1}")


def _check_previous(segment: Segment, earlier: Sequence[Segment], kv: KvCache, mode: Mode) -> None:
    position = segment.start - 1
    to_come = any(position in item.outputs for item in earlier)
    if mode.depth == 1 or not (to_come or kv.sampled_at(segment.sequence, position) is not None):
        raise ValueError(f"sequence {segment.sequence} has no token on the device to continue with")


def _check_transfer(transfer: Transfer, pending: Sequence[Step], kv: KvCache, mode: Mode) -> None:
    if not mode.save:
        raise ValueError("this runtime cannot copy KV cells")
    check_open(transfer.sequence, kv)
    check_outside(transfer.sequence, pending)
    held = kv.length(transfer.sequence)
    if transfer.content is not None and transfer.start != held:
        raise ValueError(f"sequence {transfer.sequence} holds {held} cells, not {transfer.start}")
    if not 0 <= transfer.start < transfer.end or (transfer.content is None and transfer.end > held):
        raise ValueError(f"cells {transfer.start} to {transfer.end} of sequence {transfer.sequence} are not there")
