"""How long a step takes on GPUs: a roofline of a few rates, each in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dlfp_edge.runtime import Segment

from ..cost import Work


@dataclass(frozen=True, slots=True)
class GpuCost:
    """A model on one GPU, or split over several that work in step. All rates are in seconds.

    With n tokens in all, of which o give an output, a step takes

        step_s + max(weights_s, token_s n + output_s o) + exchange_s n + sum of attention over its segments

    where a segment of m tokens after s cells attends for max(score_s m (s + (m + 1) / 2), cell_s (s + m)): reading the
    weights and the cells is what decodes take, arithmetic what prefill takes. In `exchange_s` the GPUs add up what each
    of them computed of a token; what that takes however few tokens there are is part of `step_s`.

    Results are with the scheduler `host_s` after the step has ended, and a synchronous runtime starts the next step no
    sooner. `device` is a name for people. The other fields are those that `Cost` asks for.
    """

    device: str
    step_s: float
    weights_s: float
    token_s: float
    output_s: float
    score_s: float
    cell_s: float
    exchange_s: float
    host_s: float
    copy_s: float
    tile: int = 1
    sampling_s: float = 0.0
    bandwidth: float = 0.0
    trickle: float = 0.0
    interrupt_s: float = 0.0

    def step_time_s(self, segments: Iterable[tuple[int, int]], outputs: int) -> float:
        """Seconds of a step over `segments`, each its first cell and its number of tokens."""
        tokens = 0
        attention_s = 0.0
        for start, count in segments:
            tokens += count
            score_s = self.score_s * count * (start + (count + 1) / 2)
            attention_s += max(score_s, self.cell_s * (start + count))
        dense_s = max(self.weights_s, self.token_s * tokens + self.output_s * outputs)
        return self.step_s + dense_s + self.exchange_s * tokens + attention_s

    def work(self, segments: Sequence[Segment]) -> Work:
        """The work of one step over all of `segments`."""
        outputs = sum(len(segment.outputs) for segment in segments)
        pieces = ((segment.start, len(segment.tokens)) for segment in segments)
        return Work(self.step_time_s(pieces, outputs), 0.0)

    def pass_s(self, tokens: int, cores: float, start: int = 0) -> float:
        """Seconds of a step over `tokens` of one sequence that holds `start` cells; `cores` make no difference."""
        return self.step_time_s([(start, tokens)], 1)
