"""llama.cpp's own quantiser, asked what types it would give the tensors of a model."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import numpy as np

from dlfp_edge.runtimes.llama_cpp import library, synth
from dlfp_edge.runtimes.llama_cpp.mixture import tensors
from dlfp_edge.runtimes.llama_cpp.shapes import Shape

_LINE = re.compile(r"\] +(\S+) +- \[[^]]*\], type = +(\S+), size = .*?(?:\((\w+)\))?\n")
"""What it says of a tensor: name, type, and the type it would get where that is another."""


def write_unquantised(path: Path, shape: Shape) -> Path:
    """The shape's file in F16, with a hole where the numbers would be."""
    import gguf

    writer = gguf.GGUFWriter(path, shape.family.architecture)
    synth._add_metadata(writer, gguf, "unquantised", shape, "Q8_0")
    end = 0
    for tensor in tensors(shape, "Q8_0"):
        vector = tensor.kind == "F32"
        dimensions = (tensor.width,) if vector else (tensor.rows, tensor.width)
        kind = gguf.GGMLQuantizationType.F32 if vector else gguf.GGMLQuantizationType.F16
        size = tensor.rows * tensor.width * (4 if vector else 2)
        writer.add_tensor_info(tensor.name, dimensions, np.dtype(np.float32), size, raw_dtype=kind)
        end = _aligned(end) + size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, _aligned(path.stat().st_size) + end)
    return path


def chosen_kinds(unquantised: Path, quant: str) -> dict[str, str]:
    """The type of each tensor by name, from a dry run: no number is read and nothing is written."""
    from gguf.constants import LlamaFileType

    api, said = library.library(), list[str]()
    settings = api.llama_model_quantize_default_params()
    settings.ftype = LlamaFileType[f"MOSTLY_{quant}"]
    settings.dry_run = True
    callback = api.llama_log_callback(lambda _level, text, _data: said.append(text.decode()))
    with library.collected_log():  # which silences the log again; itself it keeps too few lines
        api.llama_log_set(callback, None)
        failed = api.llama_model_quantize(str(unquantised).encode(), b"nothing.gguf", ctypes.byref(settings))
    assert not failed, said[-1]
    return {name: (other or kind).upper() for name, kind, other in _LINE.findall("".join(said))}


def _aligned(size: int) -> int:
    return -(-size // 32) * 32
