"""What a model's header says about its size: layers, heads, the numbers a KV cell holds, quantisation, parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .gguf_file import GgufHeader

_NO_VOCABULARY = "no_vocab"
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "exaone4": 4}
"""One layer in so many looks back all the way, in families whose headers do not say so."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions that memory depends on.

    `key_numbers` and `value_numbers` are the numbers one KV cell holds over all layers; `head_sizes` the lengths of one
    head's row of each. `window` is how far back the layers with a sliding window look, None where there are none, and
    `windowed_layers` how many those are, 0 where that is not known.
    """

    layers: int
    embedding: int
    feed_forward: int
    heads: int
    head_sizes: tuple[int, int]
    key_numbers: int
    value_numbers: int
    vocabulary: int
    has_text: bool
    trained_context: int | None
    window: int | None
    windowed_layers: int


def read_shape(header: GgufHeader) -> Shape:
    """The shape a header tells; what it does not say is taken from what it says, as llama.cpp does."""
    told = _Told(header)
    layers = told.number("block_count") or 1
    embedding = told.number("embedding_length") or 1
    heads = told.each_layer("attention.head_count", layers, 1)
    kv_heads = told.each_layer("attention.head_count_kv", layers, max(heads))
    usual = embedding // (max(heads) or 1)
    key, value = (told.number(f"attention.{name}_length") or usual for name in ("key", "value"))
    experts = told.number("expert_used_count") or 0
    feed_forward = max(
        *told.each_layer("feed_forward_length", layers, embedding),
        experts * (told.number("expert_feed_forward_length") or 0),
    )
    return Shape(
        layers=layers,
        embedding=embedding,
        feed_forward=feed_forward,
        heads=max(heads),
        head_sizes=(key, value),
        key_numbers=sum(kv_heads) * key,
        value_numbers=sum(kv_heads) * value,
        vocabulary=_vocabulary(header, told),
        has_text=header.metadata.get("tokenizer.ggml.model", _NO_VOCABULARY) != _NO_VOCABULARY,
        trained_context=told.number("context_length"),
        window=told.number("attention.sliding_window") or None,
        windowed_layers=_windowed_layers(header, told, layers),
    )


def parameters(header: GgufHeader) -> int:
    """How many weights the tensors hold."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    total = 0
    for tensor in header.tensors:
        if tensor.size:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
            total += tensor.size // int(size) * int(block)
    return total


def quantisation(header: GgufHeader) -> str:
    """The name of the file's mixture of types, as llama.cpp's tools use it."""
    from gguf.constants import LlamaFileType

    try:
        name = str(LlamaFileType(header.whole("general.file_type")).name)
    except ValueError:
        return "unknown"
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


class _Told:
    """Hyperparameters of the header's architecture."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header

    def number(self, name: str) -> int | None:
        """A whole number, the largest where each layer has its own."""
        value = self._value(name)
        return max(value, default=None) if isinstance(value, list) else value

    def each_layer(self, name: str, layers: int, usual: int) -> list[int]:
        """The number of each layer."""
        value = self._value(name)
        if isinstance(value, list) and value:
            return value
        return [value if isinstance(value, int) else usual] * layers

    def _value(self, name: str) -> int | list[int] | None:
        name = f"{self._header.architecture}.{name}"
        value: Any = self._header.metadata.get(name)
        if isinstance(value, list):
            return [item for item in value if isinstance(item, int)]
        return self._header.whole(name)


def _windowed_layers(header: GgufHeader, told: _Told, layers: int) -> int:
    if not told.number("attention.sliding_window"):
        return 0
    pattern = told.each_layer("attention.sliding_window_pattern", 0, 0)
    if pattern:
        return sum(1 for windowed in pattern if windowed)
    every = told.number("attention.sliding_window_pattern") or _FULL_EVERY.get(header.architecture)
    return layers - layers // every if every else 0


def _vocabulary(header: GgufHeader, told: _Told) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, int):
        return tokens
    return len(tokens) if isinstance(tokens, list) else told.number("vocab_size") or 1
