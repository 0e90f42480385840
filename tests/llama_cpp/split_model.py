"""Cuts a model into parts, as llama.cpp's `gguf-split` does."""

from __future__ import annotations

from pathlib import Path

import pytest

gguf = pytest.importorskip("gguf")


def split_model(path: Path, folder: Path, parts: int, name: str = "split") -> list[Path]:
    """Write the model in `path` as `parts` files; the first has the metadata."""
    reader = gguf.GGUFReader(path)
    tensors = reader.tensors
    made = []
    for number in range(parts):
        file = folder / f"{name}-{number + 1:05d}-of-{parts:05d}.gguf"
        writer = gguf.GGUFWriter(file, reader.get_field("general.architecture").contents())
        if number == 0:
            _copy_metadata(reader, writer)
        else:
            writer.kv_data[0].clear()
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number::parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.append(file)
    return made


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
