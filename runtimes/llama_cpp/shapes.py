"""Dimensions of real models, as their makers' `config.json` give them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """What the models of one GGUF architecture share.

    `qkv_biases`: biases on queries, keys and values; `qk_norms`: a norm on each head's queries and keys; `post_norms`:
    norms after attention and after the feed-forward layer, beside those before them.
    """

    architecture: str
    qkv_biases: bool = False
    qk_norms: bool = False
    post_norms: bool = False


LLAMA = Family("llama")
QWEN2 = Family("qwen2", qkv_biases=True)
QWEN3 = Family("qwen3", qk_norms=True)
GEMMA3 = Family("gemma3", qk_norms=True, post_norms=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model whose output projection is its token embedding, as it is in all of `SHAPES`.

    `head` is the size of one head, `window` how many tokens back the layers with a sliding window look: in llama.cpp's
    gemma3 five of six, with a RoPE base of 10,000. `rope_factors`: RoPE's frequencies are scaled one by one (Llama 3).
    Where nothing is said the numbers are Qwen3's.
    """

    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    family: Family = QWEN3
    head: int = 128
    vocabulary: int = 151_936
    context: int = 40_960
    rope_base: float = 1e6
    rope_factors: bool = False
    norm_epsilon: float = 1e-6
    window: int | None = None


SHAPES = {
    "smollm2-360m": Shape(
        family=LLAMA,
        layers=32,
        embedding=960,
        feed_forward=2560,
        heads=15,
        kv_heads=5,
        head=64,
        vocabulary=49_152,
        context=8192,
        rope_base=1e5,
        norm_epsilon=1e-5,
    ),
    "qwen2.5-0.5b": Shape(
        family=QWEN2,
        layers=24,
        embedding=896,
        feed_forward=4864,
        heads=14,
        kv_heads=2,
        head=64,
        context=32_768,
    ),
    "qwen3-0.6b": Shape(layers=28, embedding=1024, feed_forward=3072, heads=16, kv_heads=8),
    "gemma-3-1b": Shape(
        family=GEMMA3,
        layers=26,
        embedding=1152,
        feed_forward=6912,
        heads=4,
        kv_heads=1,
        head=256,
        vocabulary=262_144,
        context=32_768,
        window=512,
    ),
    "llama-3.2-1b": Shape(
        family=LLAMA,
        layers=16,
        embedding=2048,
        feed_forward=8192,
        heads=32,
        kv_heads=8,
        head=64,
        vocabulary=128_256,
        context=131_072,
        rope_base=5e5,
        rope_factors=True,
        norm_epsilon=1e-5,
    ),
    "smollm2-1.7b": Shape(
        family=LLAMA,
        layers=24,
        embedding=2048,
        feed_forward=8192,
        heads=32,
        kv_heads=32,
        head=64,
        vocabulary=49_152,
        context=8192,
        rope_base=1.3e5,
        norm_epsilon=1e-5,
    ),
    "qwen3-1.7b": Shape(layers=28, embedding=2048, feed_forward=6144, heads=16, kv_heads=8),
    "qwen2.5-3b": Shape(
        family=QWEN2,
        layers=36,
        embedding=2048,
        feed_forward=11_008,
        heads=16,
        kv_heads=2,
        context=32_768,
    ),
    "llama-3.2-3b": Shape(
        family=LLAMA,
        layers=28,
        embedding=3072,
        feed_forward=8192,
        heads=24,
        kv_heads=8,
        vocabulary=128_256,
        context=131_072,
        rope_base=5e5,
        rope_factors=True,
        norm_epsilon=1e-5,
    ),
    "qwen3-4b": Shape(layers=36, embedding=2560, feed_forward=9728, heads=32, kv_heads=8),
}
"""By name, from the smallest."""
