"""How long a trial will take, from what the runtime's probe measured at load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlfp_edge.experiment.arms import Arm, Speed
from dlfp_edge.experiment.trial import ISOLATED, WARM_UP_TOKENS, WARM_UPS
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Stream
from dlfp_edge.task import Class

TEXT_TOKENS = 300
"""What a prompt from a text is taken to be long."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Predicts trials within `limits` on a device of this `speed`."""

    speed: Speed
    limits: Limits

    def seconds(self, arm: Arm) -> float:
        """One trial of the arm, from opening the target to closing it."""
        foreground, background = arm.workload.of_class(Class.FOREGROUND), arm.workload.of_class(Class.BACKGROUND)
        gap_s = self.speed.decode_s if arm.alone else arm.opener.expected_gap_s(self.speed)
        first = (foreground or background)[0]
        warm_s = WARM_UPS * (self._reading_s(first) + WARM_UP_TOKENS * self.speed.decode_s)
        load_s = self._load_s(foreground or background, gap_s)
        drain_s = self._reading_s(background[0]) / 2 if background else 0.0
        alone_s = ISOLATED * self._reading_s(first) if arm.alone else 0.0
        return arm.opener.opening_s + warm_s + load_s + drain_s + alone_s

    def _load_s(self, streams: list[Stream], gap_s: float) -> float:
        """Until the streams have seen enough gaps, or have ended, but not longer than the cap."""
        per_s = sum((stream.clients or 1) * self._gaps_per_s(stream, gap_s) for stream in streams)
        limited = [stream.requests / stream.rate for stream in streams if stream.rate and stream.requests]
        limited += [stream.rows[-1].arrival_s / stream.speed for stream in streams if stream.rows]
        enough_s = self.limits.gaps / per_s if per_s else math.inf
        return min(self.limits.cap_s, enough_s, *limited)

    def _gaps_per_s(self, stream: Stream, gap_s: float) -> float:
        if not math.isfinite(gap_s):
            return 0.0
        return (stream.answer_length(0) - 1) / (self._answer_s(stream, gap_s) + stream.think_s)

    def _answer_s(self, stream: Stream, gap_s: float) -> float:
        shown_s = gap_s if stream.pace is None else max(gap_s, 1.0 / stream.pace)
        return self._reading_s(stream) + stream.answer_length(0) * shown_s

    def _reading_s(self, stream: Stream) -> float:
        return (stream.prompt_length(0) or TEXT_TOKENS) / self.speed.prefill_tokens_per_s
