"""Reads the header of a GGUF file, because llama.cpp ends the process on some files that are cut short or not GGUF."""

from __future__ import annotations

import mmap
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlfp_edge.errors import UsageError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SMALLEST_ENTRY = 12
"""Bytes of the shortest entry there can be: a name's length and a type."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


_MOST_KEPT = 1024
"""Arrays of up to as many numbers are kept: those with one for each layer."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file: its name, the number of its type, and its bytes (0 for types not known here)."""

    name: str
    kind: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata of a GGUF file, its size in bytes, and its tensors; of long arrays only the length is kept."""

    metadata: dict[str, Any]
    size: int
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """The model family, such as `qwen3`."""
        return str(self.metadata.get("general.architecture", "unknown"))

    def whole(self, name: str) -> int | None:
        """A whole number of the metadata; None where it is not there or is something else."""
        value = self.metadata.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def check_layers(self, path: Path) -> None:
        """llama.cpp ends the process where the header promises more layers than there are tensors for.

        Raises UsageError then.
        """
        layers = self.whole(f"{self.architecture}.block_count")
        names = [tensor.name for tensor in self.tensors]
        present = {name.split(".")[1] for name in names if name.startswith("blk.") and name.count(".") > 1}
        if layers is not None and present and layers > len(present):
            raise UsageError(
                f"{path}: the file is damaged, it has {len(present)} of its {layers} layers; fetch the file again"
            )


def read_header(path: Path) -> GgufHeader:
    """Read and check the header.

    Raises UsageError where the file is missing, is no GGUF, or is shorter than its header says.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: is a directory; give the path of a GGUF file in it")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for somebody to write to it
            raise UsageError(f"{path}: is no regular file; give the path of a GGUF model")
        size = path.stat().st_size
        metadata, tensors, needed = _read_file(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a NUL in the name
        raise UsageError(f"{path}: no such file; give the path of a GGUF model") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a .gguf file that you may read") from error
    if needed > size:
        raise UsageError(f"{path}: has {size:,} bytes where its tensors need {needed:,}; fetch the file again")
    return GgufHeader(metadata, size, tuple(tensors))


def _read_file(path: Path) -> tuple[dict[str, Any], list[Tensor], int]:
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise UsageError(f"{path}: is not a GGUF model (it does not begin with 'GGUF'); give a .gguf file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).read()
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise UsageError(f"{path}: the GGUF header is cut short or damaged; fetch the file again") from error
            except ValueError as error:
                raise UsageError(f"{path}: {error}; convert the model with a current llama.cpp") from error


class _Reader:
    """Walks through the header once, from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)

    def read(self) -> tuple[dict[str, Any], list[Tensor], int]:
        """The metadata, the tensors, and how many bytes a whole file has."""
        version = self._scalar("<I")
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version} is not supported (known: 2 and 3)")
        tensors, pairs = self._scalar("<Q"), self._scalar("<Q")
        if max(tensors, pairs) > len(self._data) // _SMALLEST_ENTRY:
            raise IndexError("more entries than bytes for them")
        metadata = {self._string(): self._value(self._scalar("<I")) for _ in range(pairs)}
        placed = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise IndexError("no alignment")
        first = -(-self._at // alignment) * alignment
        end = max((offset + tensor.size for offset, tensor in placed), default=0)
        return metadata, [tensor for _, tensor in placed], first + end

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._scalar("<Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise IndexError("string past the end")
        return self._data[start : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise IndexError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> int | list[Any]:
        kind, count = self._scalar("<I"), int(self._scalar("<Q"))
        if kind in _SCALARS and count <= _MOST_KEPT:
            return [self._scalar(_SCALARS[kind]) for _ in range(count)]
        if kind in _SCALARS:
            self._at += count * struct.calcsize(_SCALARS[kind])
        elif kind == _STRING:
            self._skip_strings(count)
        else:
            raise IndexError(f"unknown element type {kind}")
        return count

    def _skip_strings(self, count: int) -> None:
        unpack, data, at = struct.Struct("<Q").unpack_from, self._data, self._at
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._at = at

    def _tensor(self) -> tuple[int, Tensor]:
        """The next tensor, and where its data begins, counted from the first byte of tensor data."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, elements = self._string(), 1
        for _ in range(self._scalar("<I")):
            elements *= self._scalar("<Q")
        kind, offset = self._scalar("<I"), self._scalar("<Q")
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            return int(offset), Tensor(name, int(kind), 0)
        return int(offset), Tensor(name, int(kind), int(elements) // int(block) * int(size))
