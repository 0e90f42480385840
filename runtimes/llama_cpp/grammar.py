"""Tokens that follow a grammar.

What is drawn is checked alone first: inside a string that is nearly always enough and costs microseconds. Only when it
is refused are other tokens looked at: those whose first character may follow, the likeliest first, until there are
enough to choose from. llama.cpp's own grammar sampler goes through every candidate instead, which takes 20 to
80 ms for a vocabulary of 262,144, cannot be stopped, and ends the process where a token is accepted that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dlfp_edge.grammar import compile_grammar
from dlfp_edge.runtime import Sampling

from .draws import Draw, Logits
from .pieces import Ids, Pieces

_MOST_LOOKS = 3_000
"""Nodes of the grammar that may be looked at for one token, which is some milliseconds."""

_MOST_WANTED = 256
_MOST_CHECKED = 1_000
_FIRST = 8


class GrammarDraw:
    """Lets `inner` draw, and draw again among few tokens where its first one is refused.

    A token whose logit is minus infinity is not drawn unless every other one is refused. A repeat penalty counts what
    was refused too.
    """

    def __init__(self, inner: Draw, sampling: Sampling, pieces: Pieces) -> None:
        assert sampling.grammar is not None, "the sampling has a grammar"
        self._inner = inner
        self._text = compile_grammar(sampling.grammar).start
        self._pieces = pieces
        self._wanted = 1 if sampling.temperature <= 0 else min(sampling.top_k or _MOST_WANTED, _MOST_WANTED)
        self._ends = frozenset(pieces.end_tokens.tolist())

    def draw(self, context: Any, row: int, logits: Logits) -> int:
        limit = self._text.looks + _MOST_LOOKS
        token = self._inner.draw(context, row, logits)
        if self._allows(token, limit):
            return token
        candidates = self._candidates(logits, limit)
        if len(candidates) > 1:
            kept = logits[candidates]
            logits.fill(-np.inf)
            logits[candidates] = kept
            token = self._inner.draw(context, row, logits)
        return token if token in candidates else candidates[0]

    def accept(self, token: int) -> None:
        self._inner.accept(token)
        longer = None if token in self._ends else self._text.after(self._pieces.data[token])
        if longer is not None:
            self._text = longer

    def close(self) -> None:
        """Free what the inner draw holds."""
        self._inner.close()

    def _allows(self, token: int, limit: float) -> bool:
        if token in self._ends:
            return self._text.may_end
        piece = self._pieces.data[token]
        return bool(piece) and self._text.after(piece, limit) is not None

    def _candidates(self, logits: Logits, limit: float) -> list[int]:
        """The likeliest tokens that may follow, and never none."""
        found: list[int] = []
        for token in _by_likelihood(self._possible(), logits):
            if logits[token] == -np.inf:
                break
            if self._allows(token, limit):
                found.append(token)
            if len(found) == self._wanted or self._text.looks > limit:
                break
        return found or [self._plainest()]

    def _possible(self) -> Ids:
        """Tokens that may follow by their first character."""
        text = self._text
        tokens = self._pieces.beginning_with(text.allowed) if text.whole else self._pieces.parts()
        return np.concatenate([tokens, self._pieces.end_tokens]) if text.may_end else tokens

    def _plainest(self) -> int:
        """The token of the first byte of the shortest end, which may always follow."""
        text = self._text
        if text.may_end and len(self._pieces.end_tokens):
            return int(self._pieces.end_tokens[0])
        return self._pieces.spell((text.ending() or b"\0")[:1])[0]


def _by_likelihood(tokens: Ids, logits: Logits) -> Iterator[int]:
    """The likeliest tokens, one after another. The first few are found without ordering them all."""
    values: Logits = logits[tokens]
    for _ in range(min(_FIRST, len(tokens))):
        index = int(values.argmax())
        yield int(tokens[index])
        values[index] = -np.inf
    if len(tokens) > _MOST_CHECKED:
        index_of_likeliest = np.argpartition(-values, _MOST_CHECKED)[:_MOST_CHECKED]
        tokens, values = tokens[index_of_likeliest], values[index_of_likeliest]
    order = np.argsort(-values, kind="stable")[: max(0, len(tokens) - _FIRST)]
    yield from tokens[order].tolist()
