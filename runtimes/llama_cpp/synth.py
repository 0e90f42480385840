"""Model files of a real model's shape with random weights, to measure speed where no real model is at hand.

llama.cpp's kernels take the same time whatever the weights are, so latencies are those of the real model; the text is
meaningless. There is no tokenizer: prompts are token ids.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlfp_edge.errors import MissingExtra, UsageError, hint

RANDOM_WEIGHTS = "random weights"
Bytes = npt.NDArray[np.uint8]
_FAST_BITS = np.random.SFC64


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a Qwen3 model with tied embeddings."""

    layers: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int = 128
    vocabulary: int = 151_936
    context: int = 40_960
    rope_base: float = 1e6
    norm_epsilon: float = 1e-6


SHAPES = {
    "qwen3-0.6b": Shape(layers=28, embedding=1024, feed_forward=3072, heads=16, kv_heads=8),
    "qwen3-1.7b": Shape(layers=28, embedding=2048, feed_forward=6144, heads=16, kv_heads=8),
}
QUANTS = ("Q4_K", "Q8_0")


def synthesize(shape: str, quant: str, out: Path, seed: int = 0) -> Path:
    """Write a GGUF file of a shape in `SHAPES` and a quantisation in `QUANTS`; returns `out`.

    Tensor types are those of llama.cpp's Q4_K_M and Q8_0 mixtures. The file appears under its name when it is whole.
    Raises UsageError for an unknown shape or quantisation, or where the file cannot be written.
    """
    dimensions = SHAPES[_known(shape, list(SHAPES), "shape")]
    mixture = _known(quant, list(QUANTS), "quantisation")
    unfinished = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(unfinished, shape, dimensions, mixture, np.random.Generator(_FAST_BITS(seed)))
        unfinished.replace(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror}); choose another place or free space") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return out


def _known(name: str, names: list[str], what: str) -> str:
    if name in names:
        return name
    raise UsageError(f"no {what} '{name}': {hint(name, names)}")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to write: rows of `width` elements of one type."""

    name: str
    rows: int
    width: int
    kind: str


def _tensors(shape: Shape, quant: str) -> Iterator[_Tensor]:
    """Every tensor of the model, with the type llama.cpp's quantiser would choose."""
    main = quant
    better = "Q6_K" if quant == "Q4_K" else quant
    d, queries, keys = shape.embedding, shape.heads * shape.head, shape.kv_heads * shape.head
    yield _Tensor("token_embd.weight", shape.vocabulary, d, better)
    yield _Tensor("output_norm.weight", 1, d, "F32")
    for layer in range(shape.layers):
        mixed = better if _gets_more_bits(layer, shape.layers) else main
        for name, rows, width, kind in (
            ("attn_norm", 1, d, "F32"),
            ("attn_q", queries, d, main),
            ("attn_k", keys, d, main),
            ("attn_v", keys, d, mixed),
            ("attn_output", d, queries, main),
            ("attn_q_norm", 1, shape.head, "F32"),
            ("attn_k_norm", 1, shape.head, "F32"),
            ("ffn_norm", 1, d, "F32"),
            ("ffn_gate", shape.feed_forward, d, main),
            ("ffn_up", shape.feed_forward, d, main),
            ("ffn_down", d, shape.feed_forward, mixed),
        ):
            yield _Tensor(f"blk.{layer}.{name}.weight", rows, width, kind)


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's rule for the layers whose value and down projections get Q6_K in a Q4_K_M mixture."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _write(path: Path, name: str, shape: Shape, quant: str, random: np.random.Generator) -> None:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra("synthesising needs gguf: run  pip install 'dlfp-edge[llama-cpp]'") from error
    writer = gguf.GGUFWriter(path, "qwen3")
    _add_metadata(writer, gguf, name, shape, quant)
    tensors = list(_tensors(shape, quant))
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.kind]
        width = _row_bytes(tensor, gguf) if tensor.kind != "F32" else tensor.width
        dimensions = (tensor.rows, width) if tensor.kind != "F32" else (tensor.width,)
        dtype = np.dtype(np.float32 if tensor.kind == "F32" else np.uint8)
        size = tensor.rows * width * dtype.itemsize
        writer.add_tensor_info(tensor.name, dimensions, dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_content(tensor, random, gguf))
    writer.close()


def _add_metadata(writer: Any, gguf: Any, name: str, shape: Shape, quant: str) -> None:
    types = {"Q4_K": gguf.LlamaFileType.MOSTLY_Q4_K_M, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    writer.add_name(f"{name} shape, {RANDOM_WEIGHTS}")
    writer.add_file_type(types[quant])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")


def _row_bytes(tensor: _Tensor, gguf: Any) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.kind]]
    return tensor.width // int(block) * int(size)


def _content(tensor: _Tensor, random: np.random.Generator, gguf: Any) -> npt.NDArray[Any]:
    """Ones for norms; else random blocks whose scales make weights of about 0.02."""
    if tensor.kind == "F32":
        return np.ones(tensor.width, np.float32)
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.kind]]
    total = tensor.rows * _row_bytes(tensor, gguf)
    blocks = np.frombuffer(random.bytes(total), np.uint8).reshape(-1, int(size)).copy()
    _SET_SCALES[tensor.kind](blocks)
    return blocks.reshape(tensor.rows, -1)


def _half(value: float) -> Bytes:
    return np.array([value], np.float16).view(np.uint8)


def _scale_q8_0(blocks: Bytes) -> None:
    """34 bytes: a scale, then 32 signed values."""
    blocks[:, :2] = _half(3e-4)


def _scale_q4_k(blocks: Bytes) -> None:
    """144 bytes: a scale and a minimum's scale, then 6-bit scales and 4-bit values; 7.5 centres the values on 0."""
    blocks[:, :2] = _half(1.2e-4)
    blocks[:, 2:4] = _half(7.5 * 1.2e-4)


def _scale_q6_k(blocks: Bytes) -> None:
    """210 bytes: 6-bit values and 16 signed scales, then a scale for all."""
    blocks[:, 208:210] = _half(1.5e-5)


_SET_SCALES = {"Q8_0": _scale_q8_0, "Q4_K": _scale_q4_k, "Q6_K": _scale_q6_k}
