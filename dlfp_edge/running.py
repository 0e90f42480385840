"""A task that has a sequence: how far it is, and what of it is in flight."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlfp_edge.handle import Task
from dlfp_edge.pauses import Activity, Slice
from dlfp_edge.playout import Playout
from dlfp_edge.runtime import PREVIOUS, Output, Pooling, Segment, Transfer
from dlfp_edge.task import Class, TaskSpec

GROWTH = 256
"""KV cells are promised for so many tokens of output at a time."""


class Running:
    """One admitted task on one sequence of one lane.

    `tokens` are the prompt and the output so far, `computed` the KV cells that are certain, `planned` those once the
    steps in flight have completed, `forked` those of them that it shares with other sequences, `reserved` those that
    are promised to it. `ahead` says that a paced stream is building up its reserve, `foreground` that somebody is
    watching. `saved` are the cells of a paused task in host memory, from the last to the first, `saving` how many there
    will be, `dropped` says that cells were given up once, to be computed again, `pooled` is the sum of hidden states so
    far of a text to embed.
    """

    def __init__(self, task: Task, sequence: int, cached: int = 0) -> None:
        self.task = task
        self.sequence = sequence
        self.foreground = task.spec.task_class is Class.FOREGROUND
        self.tokens = list(task.spec.prompt)
        self.computed = self.planned = self.forked = cached
        self.reserved = self.wanted
        self.activity = Activity.ACTIVE
        self.saved: list[Slice] = []
        self.saving = 0
        self.dropped = False
        self.pooled: npt.NDArray[np.float32] | None = None
        self.in_flight = 0
        self.outputs_in_flight = 0
        self.failures = 0
        self.ended = False
        self.ahead = True
        self.playout = Playout(task.spec.pace)
        self.last_token_at = task.record.arrived

    @property
    def active(self) -> bool:
        """Whether it can be part of steps."""
        return self.activity is Activity.ACTIVE

    @property
    def wanted(self) -> int:
        """KV cells it should be promised next: all it has tokens for, and those of some more output."""
        return wanted_cells(len(self.tokens), self.most_cells)

    @property
    def starved(self) -> bool:
        """Whether it has used up the KV cells it was promised and cannot go on."""
        return self.active and not self.ended and self.planned >= self.reserved

    @property
    def most_cells(self) -> int:
        """KV cells it can come to need."""
        return most_cells(self.task.spec)

    @property
    def remaining(self) -> int:
        """Tokens that can be planned now: the rest of the prompt, one decode, or none while the last one is out."""
        known = len(self.tokens) - self.planned
        if self.task.spec.embed:
            return known
        if known > 0 or self.outputs_in_flight == 0:
            return known
        return 1 if self.outputs_left > 0 else 0

    @property
    def outputs_left(self) -> int:
        """Outputs neither there nor in flight."""
        return self.task.spec.max_tokens - len(self.task.record.output_token_ids) - self.outputs_in_flight

    @property
    def prompt_planned(self) -> bool:
        """Whether all of the prompt is computed or in flight."""
        return self.planned >= len(self.task.spec.prompt)

    @property
    def decoding(self) -> bool:
        """Whether what can be planned now is a decode."""
        return self.prompt_planned and self.remaining == 1

    def segment(self, count: int, pooling: Pooling) -> Segment:
        """The next `count` tokens as a segment, with the output of the last known one; marks them in flight.

        A text to embed has an output at every token, or at the last, as `pooling` says.
        """
        start, end = self.planned, self.planned + count
        tokens = tuple(self.tokens[start:end]) or (PREVIOUS,)
        last = {end - 1: Output.EMBEDDING if self.task.spec.embed else Output.TOKEN}
        outputs = last if end >= len(self.tokens) else {}
        if self.task.spec.embed and pooling is Pooling.MEAN:
            outputs = dict.fromkeys(range(start, end), Output.EMBEDDING)
        self.planned = end
        self.in_flight += 1
        self.outputs_in_flight += len(outputs)
        return Segment(self.sequence, start, tokens, outputs)

    def settle(self, segment: Segment, consumed: int) -> None:
        """Account for a segment that has come back."""
        self.in_flight -= 1
        self.outputs_in_flight -= len(segment.outputs)
        if segment.start <= self.computed:  # else the cells before it were lost meanwhile, and it with them
            self.computed = segment.start + consumed
        if self.in_flight == 0:
            self.planned = self.computed

    def pool(self, hidden: npt.NDArray[np.float32]) -> tuple[float, ...] | None:
        """Add hidden states of a text to embed; the embedding, of length 1, once they are all there."""
        self.pooled = hidden.copy() if self.pooled is None else self.pooled + hidden
        if self.computed < len(self.tokens):
            return None
        length = float(np.linalg.norm(self.pooled))
        return tuple(float(value) for value in self.pooled / (length or 1.0))

    def restart(self) -> None:
        """The sequence's KV cells are gone: compute them again, output so far included."""
        self.computed = self.forked = 0
        self.pooled = None
        self.saved.clear()
        self.saving = 0
        if self.in_flight == 0:
            self.planned = 0

    def put_off(self) -> None:
        """Its cells are gone: it waits until as many as it needs can be promised again, and computes them."""
        self.restart()
        self.activity = Activity.PAUSED

    def transfer(self, cells: int) -> Transfer | None:
        """The next slice to copy of a task on its way out or back, marked in flight; None while a step still has it."""
        if self.in_flight:
            return None
        if self.activity is Activity.LEAVING:
            piece = Transfer(self.sequence, max(0, self.computed - cells), self.computed)
        elif self.activity is Activity.RETURNING:
            piece = Transfer(self.sequence, *self.saved[-1])
        else:
            return None
        self.in_flight += 1
        return piece


def most_cells(spec: TaskSpec) -> int:
    """KV cells a task can come to need."""
    return len(spec.prompt) + (0 if spec.embed else spec.max_tokens)


def wanted_cells(tokens: int, most: int) -> int:
    """KV cells to promise a task that has `tokens` and can come to need `most`."""
    return min(tokens + GROWTH, most)
