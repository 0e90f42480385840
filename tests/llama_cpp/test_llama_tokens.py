"""Text to tokens and back."""

from __future__ import annotations

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Runtime


@pytest.mark.parametrize(
    "text", ["Hello, world", "naïve café", "日本語のテキスト", "🦙🦙 llamas", "a  b\n\n\tc", "x" * 300]
)
def test_pieces_put_together_are_the_text(runtime: Runtime, text: str) -> None:
    tokens = runtime.tokenizer.encode(text)
    assert b"".join(runtime.tokenizer.token_bytes(token) for token in tokens).decode() == text


def test_a_sequence_begins_with_what_the_model_wants(runtime: Runtime) -> None:
    first = runtime.tokenizer.encode("Hello")[0]
    assert runtime.tokenizer.token_bytes(first) == b""
    assert runtime.tokenizer.encode("") == [first]


def test_end_tokens(runtime: Runtime) -> None:
    (end,) = runtime.tokenizer.encode("<end_of_turn>")[1:]
    assert runtime.tokenizer.is_end(end)
    assert not runtime.tokenizer.is_end(runtime.tokenizer.encode("Hello")[1])


def test_a_model_without_tokenizer_says_so(tiny_runtime: Runtime) -> None:
    assert tiny_runtime.tokenizer.vocabulary == 4096
    assert tiny_runtime.tokenizer.token_bytes(17) == b""
    with pytest.raises(UsageError, match="no tokenizer"):
        tiny_runtime.tokenizer.encode("Hello")
