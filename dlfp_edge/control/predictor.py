"""The largest chunk that a latency model, fitted offline on this device, predicts to fit the target.

    t(p) = c + a * cells + d * decoders + g * start + b * p + e * p * (2 * start + p)

`p` are the prefill tokens of the step, `start` the KV cells that their prompt has already, `decoders` the decodes
beside them and `cells` the KV cells that those read. The chunk is the largest p with t(p) <= margin * T.

Two publications meet in it. The fixed time and the terms of the chunk (c, g, b, e) are ATOM's (AMD, "Dynamic Chunked
Pipeline Parallel", ROCm/ATOM pull request 2007, 2026), which solves the same quadratic for chunks of equal time; there
no decode shares the step. Those of the decodes (a, d) are LPRS's ("Latency-Prediction-Based Request Scheduling", arXiv
2606.09061, 2026), which chooses the chunk in shared steps by a target time: its predictor is told how many decodes
there are, the cells they read, the prefill tokens and those processed before. Nothing is learned while it runs.

What differs here: LPRS has a neural network where this has a formula, and takes the chunk predicted nearest to the
target, on either side of it; here the target bounds. The step's total is rounded down to the runtime's kernel tile as
in `dlfp_edge.control.edge`, and the constants are measured at such totals. Background decodes count as prefill tokens.

`dlfp-edge bench predictor` fits the constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlfp_edge.control.edge import UNKNOWN_CAP, quantise
from dlfp_edge.control.port import Observation, Update, View
from dlfp_edge.errors import UsageError

CONSTANTS = ("c", "a", "d", "g", "b", "e")
"""The fitted constants in the order of `terms`, in seconds: none is below 0, and a fit may leave any at 0."""


class Predictor:
    """`c`, `a`, `b`, `e`, `d`, `g` as fitted; `T` seconds of a step (None: the engine's target), `margin` of it used.

    With a `T` of its own it has no backstop: that enforces the engine's target. Raises UsageError without constants.
    """

    resets = 0

    def __init__(
        self,
        *,
        c: float | None = None,
        a: float | None = None,
        b: float | None = None,
        e: float | None = None,
        d: float = 0.0,
        g: float = 0.0,
        T: float | None = None,
        margin: float = 1.0,
    ) -> None:
        if c is None or a is None or b is None or e is None:
            raise UsageError(
                "controller 'predictor' needs the constants c, a, b and e of this model on this device: "
                "`dlfp-edge bench predictor` fits them and prints the setting to use"
            )
        self.name = "predictor"
        self.steered = T is None
        self.state: float | None = None
        self._constants = (c, a, d, g, b, e)
        self._target_s, self._margin = T, margin

    def budget(self, view: View, now: float) -> int | None:
        target_s = self._target_s if self._target_s is not None else view.target_s
        fits = UNKNOWN_CAP if target_s is None else self._largest(view, self._margin * target_s)
        chunk = quantise(max(1, int(min(fits, view.most))), view.decoders, view.tile)
        self.state = chunk
        return chunk

    def observe(self, observation: Observation) -> Update:
        return Update(self.state, changed=False, reason="no feedback")

    def _largest(self, view: View, target_s: float) -> float:
        """The p at which the predicted time is `target_s`; not above 0 where decodes alone take longer."""
        slack_s = target_s - step_s(self._constants, view.decoders, view.cells, 0, view.prefill_start)
        *_, each_s, pair_s = self._constants
        first_s = each_s + 2 * pair_s * view.prefill_start
        if slack_s <= 0:
            return 0.0
        twice_s = first_s + math.sqrt(first_s * first_s + 4 * pair_s * slack_s)
        return 2 * slack_s / twice_s if twice_s > 0 else math.inf


def terms(decoders: int, cells: int, chunk: int, start: int) -> tuple[float, ...]:
    """What each of `CONSTANTS` is multiplied with for a step of `chunk` prefill tokens that follow `start` others."""
    return (1.0, cells, decoders, start, chunk, chunk * (2 * start + chunk))


def step_s(constants: Sequence[float], decoders: int, cells: int, chunk: int, start: int) -> float:
    """The predicted time of a step in seconds, for constants in the order of `CONSTANTS`."""
    return sum(constant * term for constant, term in zip(constants, terms(decoders, cells, chunk, start), strict=True))
