"""A task that has a sequence: how far it is, and what of it is in flight."""

from __future__ import annotations

from dlfp_edge.handle import Task
from dlfp_edge.playout import Playout
from dlfp_edge.runtime import PREVIOUS, Output, Segment
from dlfp_edge.task import Class


class Running:
    """One admitted task on one sequence of one lane.

    `tokens` are the prompt and the output so far, `computed` the KV cells that are certain, `planned` those once the
    steps in flight have completed, `shared` those of them that a kept prefix accounts for. `ahead` says that a paced
    stream is building up its reserve, `foreground` that somebody is watching.
    """

    def __init__(self, task: Task, sequence: int) -> None:
        self.task = task
        self.sequence = sequence
        self.foreground = task.spec.task_class is Class.FOREGROUND
        self.tokens = list(task.spec.prompt)
        self.computed = 0
        self.planned = 0
        self.shared = 0
        self.in_flight = 0
        self.outputs_in_flight = 0
        self.failures = 0
        self.ended = False
        self.ahead = True
        self.playout = Playout(task.spec.pace)
        self.last_token_at = task.record.arrived

    @property
    def remaining(self) -> int:
        """Tokens that can be planned now: the rest of the prompt, one decode, or none while the last one is out."""
        known = len(self.tokens) - self.planned
        if known > 0 or self.outputs_in_flight == 0:
            return known
        return 1 if self.outputs_left > 0 else 0

    @property
    def outputs_left(self) -> int:
        """Outputs neither there nor in flight."""
        return self.task.spec.max_tokens - len(self.task.record.output_token_ids) - self.outputs_in_flight

    @property
    def decoding(self) -> bool:
        """Whether what can be planned now is a decode."""
        return self.planned >= len(self.task.spec.prompt) and self.remaining == 1

    def segment(self, count: int) -> Segment:
        """The next `count` tokens as a segment, with the output of the last known one; marks them in flight."""
        start, end = self.planned, self.planned + count
        tokens = tuple(self.tokens[start:end]) or (PREVIOUS,)
        outputs = {end - 1: Output.TOKEN} if end >= len(self.tokens) else {}
        self.planned = end
        self.in_flight += 1
        self.outputs_in_flight += len(outputs)
        return Segment(self.sequence, start, tokens, outputs)

    def settle(self, segment: Segment, consumed: int) -> None:
        """Account for a segment that has come back."""
        self.in_flight -= 1
        self.outputs_in_flight -= len(segment.outputs)
        self.computed = segment.start + consumed
        if self.in_flight == 0:
            self.planned = self.computed

    def restart(self) -> None:
        """The runtime lost the sequence's KV cells: compute them again, output so far included."""
        self.computed = self.shared = 0
        if self.in_flight == 0:
            self.planned = 0
