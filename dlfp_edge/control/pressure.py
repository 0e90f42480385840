"""P-PAS: a small step where prompts queue up beside decodes, a large one otherwise.

    tokens of the step = c_min where at least 2 prompts are not yet computed and somebody decodes, else c_max

Published as "Prefill-Pressure Adaptive Scheduling" (T. Sämann, arXiv 2608.15171, 2026) for vLLM, whose budgets are
chosen by hand for a model and a GPU: 1280 and 16384 for a 30B model on an RTX 5090, the pair its repository evaluates.
Prompts that wait count like those that run. Budgets are of the whole step, so decodes are taken off here. Its later
extension, which watches for one very long prompt of 65,536 tokens, is left out.
"""

from __future__ import annotations

from dlfp_edge.control.port import Observation, Update, View

PROMPTS = 2


class PrefillPressure:
    """`c_min` tokens of a step under pressure, `c_max` of any other."""

    resets = 0
    steered = False

    def __init__(self, *, c_min: float = 1280, c_max: float = 16384) -> None:
        self.name = "pressure"
        self._min, self._max = c_min, c_max
        self.state: float | None = c_max

    def budget(self, view: View, now: float) -> int | None:
        pressed = view.prompts >= PROMPTS and view.decoders > 0
        self.state = self._min if pressed else self._max
        return max(1, min(int(self.state) - view.decoders, view.most))

    def observe(self, observation: Observation) -> Update:
        return Update(self.state, changed=False, reason="no feedback")
