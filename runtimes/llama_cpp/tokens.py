"""Text to token ids and back, by the vocabulary in the model file."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

from dlfp_edge.errors import EngineClosed, UsageError

from .library import library
from .pieces import Pieces

_NO_VOCABULARY = 0
_CACHED_PIECES = 1 << 16


class LlamaTokenizer:
    """The tokenizer of one model, for any number of threads. `vocabulary` is the number of token ids.

    The vocabulary is part of the weights, so it goes with them: `close` waits for calls under way, later ones raise
    EngineClosed.
    """

    def __init__(self, vocab: Any, model_name: str) -> None:
        self._api = library()
        self._vocab = vocab
        self._model_name = model_name
        self._users = 0
        self._closed = False
        self._changed = threading.Condition()
        self._has_text = self._api.llama_vocab_type(vocab) != _NO_VOCABULARY
        self.vocabulary: int = self._api.llama_vocab_n_tokens(vocab)
        # Asking of every token takes a tenth of a second: not while somebody waits for an answer.
        self.end_tokens = frozenset(
            token for token in range(self.vocabulary) if self._has_text and self._api.llama_vocab_is_eog(vocab, token)
        )
        self._piece = lru_cache(_CACHED_PIECES)(self._ask_piece)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the beginning-of-sequence token where the model wants one.

        The names of special tokens in the text become those tokens. Raises UsageError for a model without a tokenizer.
        """
        if not self._has_text:
            raise UsageError(f"{self._model_name} has no tokenizer; give prompts as token ids or a number of tokens")
        data = text.encode()
        count = len(data) + 2
        with self._using():
            while True:
                buffer = (self._api.llama_token * count)()
                found = self._api.llama_tokenize(self._vocab, data, len(data), buffer, count, True, True)
                if found >= 0:
                    return list(buffer[:found])
                count = -found

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for; empty for control tokens and where the model has no tokenizer."""
        return self._piece(token) if self._has_text else b""

    @cached_property
    def pieces(self) -> Pieces:
        """The text of every token. Looked up on first use, which takes half a second. Raises UsageError as `spell`."""
        if not self._has_text:
            raise UsageError(f"{self._model_name} has no tokenizer, so its answers cannot follow a grammar")
        with self._using():
            return Pieces(
                [self._read_piece(token) for token in range(self.vocabulary)],
                {token for token in range(self.vocabulary) if self._stands_for_a_byte(token)},
                self.end_tokens,
                self._model_name,
            )

    def spell(self, data: bytes) -> list[int]:
        """Token ids that stand for exactly these bytes, the longest first.

        Raises UsageError for a model without a tokenizer, or whose vocabulary cannot spell every text.
        """
        return self.pieces.spell(data)

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return token in self.end_tokens

    def close(self) -> None:
        """The weights are about to go."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._users == 0)

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise EngineClosed("the model is closed: open it again")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _ask_piece(self, token: int) -> bytes:
        with self._using():
            return self._read_piece(token)

    def _read_piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = self._api.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if found >= 0:
                return buffer.raw[:found]
            size = -found

    def _stands_for_a_byte(self, token: int) -> bool:
        return bool(self._api.llama_vocab_get_attr(self._vocab, token) & self._api.LLAMA_TOKEN_ATTR_BYTE)
