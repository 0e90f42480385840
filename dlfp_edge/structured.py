"""An answer in a grammar, up to its token limit: cut where the shortest end of the text still fits."""

from __future__ import annotations

from dlfp_edge.errors import UsageError
from dlfp_edge.grammar import Grammar, Matcher, compile_grammar
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.task import Finish

MOST_BYTES = 4_096
"""An end longer than this is not made into tokens to see whether they fit, as that would take a millisecond."""


def check_fits(grammar: Grammar, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raises UsageError where not even the grammar's shortest text fits, saying what it takes."""
    least = shortest_tokens(grammar, tokenizer)
    if least > max_tokens:
        raise UsageError(
            f"max_tokens is {max_tokens}, and the shortest text of the grammar takes {least}: allow at least {least}"
        )


def shortest_tokens(grammar: Grammar, tokenizer: Tokenizer) -> int:
    """How many tokens the grammar's shortest text takes, and at least the one that any answer takes."""
    return max(1, len(tokenizer.spell(grammar.start.ending())))


class Structured:
    """Follows one answer through its grammar. Runs in the engine's thread, so it looks only at what a token changes.

    Whatever is delivered, the shortest end of it takes no more tokens than are left. A token after which that would no
    longer hold is not delivered: the end is, and the answer is over.
    """

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = grammar.start

    @classmethod
    def of(cls, grammar: str | None, tokenizer: Tokenizer) -> Structured | None:
        """For an answer that has a grammar."""
        return None if grammar is None else cls(compile_grammar(grammar), tokenizer)

    def follow(self, token: int, left: int) -> tuple[list[int], Finish | None]:
        """What to deliver now that the model has chosen `token` and `left` more may be delivered, and how it ends.

        A token that the grammar refuses ends the answer too: its runtime cannot follow the grammar any further.
        """
        if self._tokenizer.is_end(token) and self._text.may_end:
            return [token], Finish.STOP
        data = self._tokenizer.token_bytes(token)
        longer = self._text.after(data) if data else None
        if longer is None or not self._fits(longer, left - 1):
            return self._end(), Finish.LENGTH
        self._text = longer
        if longer.must_end:
            return [token], Finish.STOP
        return [token], Finish.LENGTH if left == 1 else None

    def _fits(self, text: Matcher, left: int) -> bool:
        """Whether the text's shortest end takes at most `left` tokens. No token stands for less than a byte."""
        if text.ending_length() <= left:
            return True
        return text.ending_length() <= MOST_BYTES and len(self._tokenizer.spell(text.ending())) <= left

    def _end(self) -> list[int]:
        """The tokens of the shortest end; it was made sure that they fit."""
        return self._tokenizer.spell(self._text.ending())
