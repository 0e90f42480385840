"""What was read of the outputs of one segment, call by call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlfp_edge.runtime import Output, Segment, SegmentResult

from .context import Context
from .sampler import Choice, Sampler


class Outputs:
    """Tokens chosen so far and the sum of the hidden states so far. Calls take a segment from its first token on."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self._hidden: npt.NDArray[np.float32] | None = None
        self._read: set[int] = set()

    def read(self, segment: Segment, rows: Sequence[tuple[int, int]], context: Context, sampler: Sampler) -> None:
        """Take the outputs (position, row of the batch) of a part of the segment that was just executed."""
        for position, row in rows:
            self._read.add(position)
            if segment.outputs[position] is Output.TOKEN:
                self._choices[position] = sampler.choose(context.pointer, row, context.logits(row))
            else:
                state = context.hidden(row)
                self._hidden = state.copy() if self._hidden is None else self._hidden + state

    def missing(self, segment: Segment) -> list[int]:
        """Positions whose output is still to be read."""
        return [position for position in segment.outputs if position not in self._read]

    def accept(self, sampler: Sampler) -> None:
        """Tell the sampler that what it chose is certain."""
        for position in sorted(self._choices):
            sampler.accept(self._choices[position].token)

    def result(self, consumed: int, completed: float) -> SegmentResult:
        """The segment's result, of which `consumed` tokens are certain."""
        tokens = {position: choice.token for position, choice in self._choices.items()}
        likely = {position: choice.logprobs for position, choice in self._choices.items() if choice.logprobs}
        return SegmentResult(consumed, tokens, completed, logprobs=likely, embedding=self._hidden)
