"""What a simulated sequence says next: a function of its history, its place in the answer and its sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

from dlfp_edge.grammar import Matcher, compile_grammar
from dlfp_edge.runtime import LARGEST_BIAS, Logprobs, Sampling

from .tokens import END, VOCABULARY, drawn_number, ends, next_token


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses the tokens of one sequence. `salt` seeds it, `end_probability` is the chance of the end token.

    There are no logits here, so of a bias only its ends mean something: -100 forbids a token, and where tokens have
    100 nothing else is said. Log-probabilities are made up, but as a model's would be: the chosen token's is the
    largest, and the probabilities add up to less than one.
    """

    salt: int = 0
    end_probability: float = 0.0
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def start(self) -> Matcher | None:
        """The empty text of the sampling's grammar."""
        return None if self.sampling.grammar is None else compile_grammar(self.sampling.grammar).start

    def token(self, history: int, number: int, text: Matcher | None = None) -> int:
        """The token that follows a history, as the answer's token `number`, counted from 0.

        In a grammar it is a byte that may follow `text`, or the end token where that may end.
        """
        may_end = not self.sampling.ignore_eos and number >= self.sampling.min_tokens
        if text is not None:
            return self._within(text, history, may_end=may_end)
        bias = self.sampling.logit_bias
        if not bias:
            return next_token(history, self.salt, self.end_probability if may_end else 0.0)
        forced = [token for token in sorted(bias) if bias[token] == LARGEST_BIAS and (may_end or token != END)]
        if forced:
            return self._one_of(forced, history)
        may_end = may_end and bias.get(END) != -LARGEST_BIAS
        token = next_token(history, self.salt, self.end_probability if may_end else 0.0)
        if bias.get(token) != -LARGEST_BIAS:
            return token
        return self._one_of([other for other in range(VOCABULARY) if other != END and other not in bias], history)

    def logprobs(self, history: int, token: int) -> Logprobs | None:
        """Log-probabilities of `token` after a history, and of the likeliest ones, where they are asked for."""
        if self.sampling.logprobs is None:
            return None
        likeliest = 0.5 + 0.49 * drawn_number(history, self.salt) / 2**64
        others = [(likeliest, token)]
        for rank in range(1, self.sampling.logprobs):
            others.append(((1 - likeliest) * 0.5**rank, (token + rank) % VOCABULARY))
        top = tuple((other, log(probability)) for probability, other in others[: self.sampling.logprobs])
        return Logprobs(log(likeliest), top)

    def _within(self, text: Matcher, history: int, *, may_end: bool) -> int:
        """A grammar comes before what forbids tokens: where it leaves only forbidden ones, its shortest end goes on."""
        bias = self.sampling.logit_bias
        allowed = [byte for byte in range(END) if text.after(bytes((byte,)))] + [END] * (text.may_end and may_end)
        tokens = [token for token in allowed if bias.get(token) != -LARGEST_BIAS]
        tokens = [token for token in tokens if bias.get(token) == LARGEST_BIAS] or tokens
        if not tokens:
            return END if text.may_end else text.ending()[0]
        if END in tokens and (len(tokens) == 1 or ends(history, self.salt, self.end_probability)):
            return END
        return self._one_of([token for token in tokens if token != END], history)

    def _one_of(self, tokens: Sequence[int], history: int) -> int:
        return tokens[(drawn_number(history, self.salt) >> 32) % len(tokens)]
