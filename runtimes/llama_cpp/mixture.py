"""The tensors of a model, with the type that llama.cpp's quantiser gives each.

After `llama-quant.cpp` of the llama.cpp in llama-cpp-python 0.3.36, without an importance matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .blocks import BLOCKS
from .shapes import Shape


@dataclass(frozen=True, slots=True)
class Tensor:
    """Rows of `width` numbers of one type; a vector has one row."""

    name: str
    rows: int
    width: int
    kind: str

    @property
    def blocks(self) -> int:
        """How many blocks of its type it has."""
        return self.rows * (self.width // BLOCKS[self.kind].numbers)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.blocks * BLOCKS[self.kind].size


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The type of most tensors, of those that some layers have in more bits, and of the token embedding.

    The embedding has the output's type, because it is the output.
    """

    main: str
    more: str
    embedding: str


_MIXTURES = {
    "Q4_K_M": _Mixture("Q4_K", more="Q6_K", embedding="Q6_K"),
    "Q8_0": _Mixture("Q8_0", more="Q8_0", embedding="Q8_0"),
    "Q4_0": _Mixture("Q4_0", more="Q4_0", embedding="Q6_K"),
}
QUANTS = tuple(_MIXTURES)

_FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What rows get whose width is no multiple of 256."""


def weight_bytes(shape: Shape, quant: str) -> int:
    """Bytes of all tensors in one of `QUANTS`: the file without its header."""
    return sum(tensor.size for tensor in tensors(shape, quant))


def tensors(shape: Shape, quant: str) -> Iterator[Tensor]:
    """Every tensor of the model in one of `QUANTS`."""
    mixture = _MIXTURES[quant]
    yield _matrix("token_embd", shape.vocabulary, shape.embedding, mixture.embedding)
    yield _vector("output_norm.weight", shape.embedding)
    if shape.rope_factors:
        yield _vector("rope_freqs.weight", shape.head // 2)
    for layer in range(shape.layers):
        more = mixture.more if _gets_more_bits(layer, shape.layers) else mixture.main
        yield from _attention(f"blk.{layer}", shape, mixture.main, more)
        yield from _feed_forward(f"blk.{layer}", shape, mixture.main, more)


def _attention(layer: str, shape: Shape, main: str, more: str) -> Iterator[Tensor]:
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    yield _vector(f"{layer}.attn_norm.weight", shape.embedding)
    for name, rows, kind in (("attn_q", queries, main), ("attn_k", keys, main), ("attn_v", keys, more)):
        yield _matrix(f"{layer}.{name}", rows, shape.embedding, kind)
        if shape.family.qkv_biases:
            yield _vector(f"{layer}.{name}.bias", rows)
    yield _matrix(f"{layer}.attn_output", shape.embedding, queries, main)
    if shape.family.qk_norms:
        yield _vector(f"{layer}.attn_q_norm.weight", shape.head)
        yield _vector(f"{layer}.attn_k_norm.weight", shape.head)
    if shape.family.post_norms:
        yield _vector(f"{layer}.post_attention_norm.weight", shape.embedding)


def _feed_forward(layer: str, shape: Shape, main: str, more: str) -> Iterator[Tensor]:
    yield _vector(f"{layer}.ffn_norm.weight", shape.embedding)
    yield _matrix(f"{layer}.ffn_gate", shape.feed_forward, shape.embedding, main)
    yield _matrix(f"{layer}.ffn_up", shape.feed_forward, shape.embedding, main)
    yield _matrix(f"{layer}.ffn_down", shape.embedding, shape.feed_forward, more)
    if shape.family.post_norms:
        yield _vector(f"{layer}.post_ffw_norm.weight", shape.embedding)


def _gets_more_bits(layer: int, layers: int) -> bool:
    """The layers whose value and down projections get Q6_K in Q4_K_M: `use_more_bits` there."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _matrix(name: str, rows: int, width: int, kind: str) -> Tensor:
    fits = width % BLOCKS[kind].numbers == 0
    return Tensor(f"{name}.weight", rows, width, kind if fits else _FALLBACK[kind])


def _vector(name: str, width: int) -> Tensor:
    return Tensor(name, 1, width, "F32")
