"""The model's tokenizer in the front: text is encoded in the worker, bytes of tokens are kept once known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Ask = Callable[[str, dict[str, Any]], Any]


class WorkerTokenizer:
    """Implements `dlfp_edge.runtime.Tokenizer`. Encoding waits for a worker that is being started again.

    Tokens that the worker released come with their bytes, so answers stay readable without it.
    """

    def __init__(self, ask: Ask) -> None:
        self.vocabulary = 0
        self._end_tokens: frozenset[int] = frozenset()
        self._ask = ask
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`. Raises UsageError for a model without a tokenizer, EngineClosed after the end."""
        return list(self._ask("encode", {"text": text}))

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for. Raises EngineClosed after the end for one that was never seen."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._ask("bytes", {"token": token}).encode("latin-1")
        return known

    def spell(self, data: bytes) -> list[int]:
        """Token ids that stand for exactly these bytes. Raises UsageError where the vocabulary cannot spell them."""
        return list(self._ask("spell", {"data": data.decode("latin-1")}))

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return token in self._end_tokens

    def describe(self, vocabulary: int, end_tokens: Iterable[int]) -> None:
        """Take what a worker says of its model."""
        self.vocabulary, self._end_tokens = vocabulary, frozenset(end_tokens)

    def learn(self, pieces: Mapping[str, str]) -> None:
        """Keep the bytes of tokens, by id, each byte a character."""
        self._bytes.update((int(token), text.encode("latin-1")) for token, text in pieces.items())
