"""Model files of a real model's shape with random weights, to measure speed where no real model is at hand.

llama.cpp's kernels take the same time whatever the weights are, so latencies are those of the real model; the text is
meaningless. There is no tokenizer: prompts are token ids.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlfp_edge.errors import MissingExtra, UsageError, hint

from .blocks import random_blocks
from .mixture import QUANTS, Tensor, tensors
from .shapes import SHAPES, Shape

RANDOM_WEIGHTS = "random weights"
_FAST_BITS = np.random.SFC64


def synthesize(shape: str, quant: str, out: Path, seed: int = 0) -> Path:
    """Write a GGUF file of a shape in `SHAPES` and a mixture in `QUANTS`; returns `out`.

    It is written tensor by tensor, and appears under its name when it is whole.
    Raises UsageError for an unknown shape or mixture, or where the file cannot be written.
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


def _write(path: Path, name: str, shape: Shape, quant: str, random: np.random.Generator) -> None:
    try:
        import gguf
    except ImportError as error:
        raise MissingExtra("synthesising needs gguf: run  pip install 'dlfp-edge[llama-cpp]'") from error
    writer = gguf.GGUFWriter(path, shape.family.architecture)
    _add_metadata(writer, gguf, name, shape, quant)
    content = list(tensors(shape, quant))
    for tensor in content:
        dimensions = (tensor.rows, tensor.width) if tensor.rows > 1 else (tensor.width,)
        kind = gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, dimensions, np.dtype(np.float32), tensor.size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in content:
        writer.write_tensor_data(_numbers(tensor, random))
    writer.close()


def _add_metadata(writer: Any, gguf: Any, name: str, shape: Shape, quant: str) -> None:
    writer.add_name(f"{name} shape, {RANDOM_WEIGHTS}")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quant}"])
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
    if shape.window is not None:
        writer.add_sliding_window(shape.window)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")


def _numbers(tensor: Tensor, random: np.random.Generator) -> npt.NDArray[Any]:
    """Random blocks for matrices; biases of 0, and 1 for norms and for the factors of RoPE's frequencies."""
    if tensor.kind != "F32":
        return random_blocks(tensor.kind, tensor.blocks, random)
    return np.full(tensor.width, 0 if tensor.name.endswith(".bias") else 1, np.float32)
