"""What a step must be for a lane to take it. Everything here is the caller's mistake, so ValueError."""

from __future__ import annotations

from dlfp_edge.runtime import Segment, Step, Transfer

from .cells import CellLedger
from .context import LARGEST_STEP


def check_step(step: Step, cells: CellLedger, vocabulary: int, most_outputs: int) -> None:
    """Raises ValueError for a step that the capabilities or the state of the lane rule out."""
    if not step.segments or step.threads < 1:
        raise ValueError("a step needs at least one segment and one thread")
    if step.total_tokens > LARGEST_STEP:
        raise ValueError(f"{step.total_tokens} tokens in a step; the most is {LARGEST_STEP}")
    if len({segment.sequence for segment in step.segments}) < len(step.segments):
        raise ValueError("two segments of one sequence in a step")
    for segment in step.segments:
        _check_segment(segment, cells, vocabulary)
    outputs = sum(len(segment.outputs) for segment in step.segments)
    if outputs > most_outputs:
        raise ValueError(f"{outputs} outputs in a step; the most is {most_outputs}")


def _check_segment(segment: Segment, cells: CellLedger, vocabulary: int) -> None:
    if segment.sequence not in cells:
        raise ValueError(f"sequence {segment.sequence} is not open")
    held = cells.held(segment.sequence)
    if segment.start != held:
        raise ValueError(f"sequence {segment.sequence} holds {held} cells; its segment starts at {segment.start}")
    if not segment.tokens:
        raise ValueError(f"the segment of sequence {segment.sequence} is empty")
    if min(segment.tokens) < 0 or max(segment.tokens) >= vocabulary:
        raise ValueError(f"a token of sequence {segment.sequence} is not in 0..{vocabulary - 1}")
    if any(not segment.start <= position < segment.end for position in segment.outputs):
        raise ValueError(f"an output of sequence {segment.sequence} is outside its segment")


def check_transfer(transfer: Transfer, cells: CellLedger, *, copies: bool) -> None:
    """Check a copy of KV cells to or from host memory. Raises ValueError with the reason."""
    if not copies:
        raise ValueError("this runtime cannot copy KV cells")
    if transfer.sequence not in cells:
        raise ValueError(f"sequence {transfer.sequence} is not open")
    held = cells.held(transfer.sequence)
    if transfer.content is not None and transfer.start != held:
        raise ValueError(
            f"sequence {transfer.sequence} holds {held} cells; what is put back starts at {transfer.start}"
        )
    if not 0 <= transfer.start < transfer.end or (transfer.content is None and transfer.end > held):
        raise ValueError(f"cells {transfer.start} to {transfer.end} of sequence {transfer.sequence} are not there")
