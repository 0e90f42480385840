"""Text to token ids and back, by the vocabulary in the model file."""

from __future__ import annotations

import ctypes
from typing import Any

from dlfp_edge.errors import UsageError

from .library import library

_NO_VOCABULARY = 0


class LlamaTokenizer:
    """The tokenizer of one model. `vocabulary` is the number of token ids."""

    def __init__(self, vocab: Any, model_name: str) -> None:
        self._api = library()
        self._vocab = vocab
        self._model_name = model_name
        self._has_text = self._api.llama_vocab_type(vocab) != _NO_VOCABULARY
        self.vocabulary: int = self._api.llama_vocab_n_tokens(vocab)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the beginning-of-sequence token where the model wants one.

        The names of special tokens in the text become those tokens. Raises UsageError for a model without a tokenizer.
        """
        if not self._has_text:
            raise UsageError(f"{self._model_name} has no tokenizer; give prompts as token ids or a number of tokens")
        data = text.encode()
        count = len(data) + 2
        while True:
            buffer = (self._api.llama_token * count)()
            found = self._api.llama_tokenize(self._vocab, data, len(data), buffer, count, True, True)
            if found >= 0:
                return list(buffer[:found])
            count = -found

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for; empty for control tokens and where the model has no tokenizer."""
        if not self._has_text:
            return b""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = self._api.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if found >= 0:
                return buffer.raw[:found]
            size = -found

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return self._has_text and bool(self._api.llama_vocab_is_eog(self._vocab, token))

    def end_tokens(self) -> list[int]:
        """Every token that ends generation."""
        return [token for token in range(self.vocabulary) if self.is_end(token)] if self._has_text else []
