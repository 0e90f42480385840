"""How much memory a model and its lanes take, worked out from the header before anything is allocated.

The rule: weights count once and in full. A mapped file's pages can be dropped by the system and read again, but every
token reads all of them, so a model whose weights do not stay in memory is of no use. Where llama.cpp keeps a repacked
copy of a tensor, the copy is what is read, and the mapped original is dropped when memory is short; both are resident
until then. KV cells of layers with a sliding window are kept in full, unless `swa=window` gives that up for memory.

The sizes of buffers follow llama.cpp's own plan of its largest graph. Against what it says of Gemma 3 270M and the
Qwen3-0.6B shape, for contexts of 1,024 to 65,536 cells, they are within 4%.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from .context import KV_BYTES, MOST_OUTPUTS, UBATCH, ContextSettings
from .gguf_file import GgufHeader
from .shape import Shape, read_shape

CELL_GRAIN = 256
"""llama.cpp rounds the cells of a stream up to a multiple of this."""

_FLOAT, _HALF = 4, 2
_REPACKED = ("Q2_K", "Q4_0", "Q4_K", "IQ4_NL", "MXFP4")
"""Types of which llama.cpp's x86 kernels keep a copy in another order (AVX2; Q2_K with AVX-512 only)."""

_NOT_REPACKED = "token_embd.weight"
_TOKEN_BYTES = 160
"""What the tables of a vocabulary take a token (Gemma 3: 42 MB for 262,144)."""

_ACTIVATIONS = 3
"""Rows as wide as the feed-forward layer that are alive at once."""

_FLASH_WORK = 8 << 20


@dataclass(frozen=True, slots=True)
class LaneNeed:
    """Bytes a lane takes: its KV cells, and buffers for its largest step."""

    kv: int
    buffers: int

    @property
    def total(self) -> int:
        """Both."""
        return self.kv + self.buffers


class MemoryNeed:
    """The memory of one model with the settings that all its lanes share.

    `weights` are the bytes of all tensors, `copies` those of repacked copies, `tables` those of the vocabulary.
    """

    def __init__(self, header: GgufHeader, settings: ContextSettings) -> None:
        self.shape: Shape = read_shape(header)
        self.weights = sum(tensor.size for tensor in header.tensors)
        self.copies = 0 if settings.exact else _repacked_bytes(header)
        self.tables = _TOKEN_BYTES * self.shape.vocabulary if self.shape.has_text else 0
        self._settings = settings

    @property
    def cell_bytes(self) -> float:
        """Bytes of one KV cell over all layers."""
        return (self.shape.key_numbers + self.shape.value_numbers) * KV_BYTES[self._settings.kv_type]

    @property
    def loaded(self) -> int:
        """Bytes the model takes without a lane."""
        return self.weights + self.tables

    def lane(self, cells: int, sequences: int, *, flash_attention: bool, filled: int | None = None) -> LaneNeed:
        """What a lane takes when all its cells are in use, or `filled` of each stream and one output at a time."""
        streams = sequences if self._settings.exact else 1
        stream_cells = _rounded(-(-cells // streams))
        reach = stream_cells if filled is None else min(stream_cells, _rounded(filled))
        outputs = MOST_OUTPUTS + sequences if filled is None else 1
        rows = min(cells, UBATCH)
        logits = outputs * self.shape.vocabulary * _FLOAT
        windowed = self._windowed_cells(stream_cells, sequences, rows)
        masked = reach + (min(reach, windowed) if self.shape.window else 0)
        graph = max(
            logits + rows * self.shape.embedding * _FLOAT, self._attention(rows, reach, masked, flash_attention)
        )
        share = self.shape.windowed_layers / self.shape.layers
        kv = streams * self.cell_bytes * (stream_cells * (1 - share) + windowed * share)
        return LaneNeed(int(kv), graph + logits)

    def _windowed_cells(self, cells: int, sequences: int, rows: int) -> int:
        """Cells of the layers with a sliding window."""
        if not self._settings.windowed:
            return cells
        return min(cells, _rounded((self.shape.window or 0) * (sequences + 1) + rows))

    def _attention(self, rows: int, reach: int, masked: int, flash_attention: bool) -> int:
        """The largest layer: activations, masks, and without flash attention a score a head, row and cell."""
        masks = rows * masked
        activations = _ACTIVATIONS * rows * self.shape.feed_forward * _FLOAT
        if flash_attention:
            return masks * _HALF + activations + _FLASH_WORK
        return (masks + rows * reach * self.shape.heads) * _FLOAT + activations


def _repacked_bytes(header: GgufHeader) -> int:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 0
    from gguf.constants import GGMLQuantizationType

    kinds = {int(GGMLQuantizationType[name]) for name in _REPACKED}
    return sum(tensor.size for tensor in header.tensors if tensor.kind in kinds and tensor.name != _NOT_REPACKED)


def _rounded(cells: int) -> int:
    return -(-max(cells, 1) // CELL_GRAIN) * CELL_GRAIN
