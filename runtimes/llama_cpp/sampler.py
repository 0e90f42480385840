"""How the next token of a sequence is chosen from its logits: they are edited, and then one token is drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dlfp_edge.runtime import LARGEST_BIAS, Logprobs, Sampling

from .draws import ChainDraw, Draw, GreedyDraw, Logits
from .grammar import GrammarDraw
from .logprobs import largest, log_softmax
from .pieces import Pieces


class Choice(NamedTuple):
    """A chosen token, and how likely it was where that is asked for."""

    token: int
    logprobs: Logprobs | None


class Sampler:
    """The sampling state of one sequence. `end_tokens` end an answer, `pieces` are for a sampling with a grammar."""

    def __init__(
        self,
        sampling: Sampling,
        vocabulary: int,
        end_tokens: npt.NDArray[np.intp],
        pieces: Pieces | None = None,
    ) -> None:
        self._draw: Draw = GreedyDraw() if sampling.temperature <= 0 else ChainDraw(sampling, vocabulary)
        if sampling.grammar is not None:
            assert pieces is not None, "a grammar needs the texts of tokens"
            self._draw = GrammarDraw(self._draw, sampling, pieces)
        self._end_tokens = end_tokens
        self._ends_from = np.inf if sampling.ignore_eos else sampling.min_tokens
        self._bias = _Bias(sampling) if sampling.logit_bias else None
        self._top = sampling.logprobs
        self._accepted = 0

    def choose(self, context: Any, row: int, logits: Logits) -> Choice:
        """The next token from the outputs of row `row` of the last batch. May change `logits`."""
        likely = None if self._top is None else log_softmax(logits)
        if self._bias is not None:
            self._bias.apply(logits)
        if self._accepted < self._ends_from:
            logits[self._end_tokens] = -np.inf
        token = self._draw.draw(context, row, logits)
        if likely is None or self._top is None:
            return Choice(token, None)
        return Choice(token, Logprobs(float(likely[token]), tuple(largest(likely, self._top))))

    def accept(self, token: int) -> None:
        """The token that was chosen is certain: the answer is one longer."""
        self._accepted += 1
        self._draw.accept(token)

    def close(self) -> None:
        """Free the state."""
        self._draw.close()


class _Bias:
    """What is added to the logits of some tokens."""

    def __init__(self, sampling: Sampling) -> None:
        added = np.array(list(sampling.logit_bias.values()), np.float32)
        self._tokens = np.array(list(sampling.logit_bias), np.intp)
        self._added = np.where(added <= -LARGEST_BIAS, -np.inf, added)

    def apply(self, logits: Logits) -> None:
        logits[self._tokens] += self._added
