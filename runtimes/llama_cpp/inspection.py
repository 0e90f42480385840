"""What a model's header tells without loading it, and whether it fits the memory that is there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import LaneSpec, LoadOptions

from .budget import MOST_CELLS
from .context import ContextSettings, flash_attention
from .library import library
from .memory import CELL_GRAIN, LaneNeed, MemoryNeed
from .model import default_model
from .model_files import ModelFiles, read_model_files
from .options import check_options, context_settings
from .shape import parameters, quantisation


def inspect(options: LoadOptions, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
    """The model `options` names, and the memory it needs with these lanes, as JSON values; sizes in bytes.

    Raises UsageError for a model or an option that loading would refuse, but not for want of memory.
    """
    check_options(options)
    settings = context_settings(options)
    files = read_model_files(options.model or default_model())
    need, header = MemoryNeed(files.header, settings), files.header
    needs, memory = _lane_needs(need, settings, lanes), detect_device().memory()
    total = need.loaded + sum(lane.total for lane in needs)
    most = _most_cells(need, settings, lanes, memory.available)
    return {
        "path": str(files.first),
        "files": len(files.paths),
        "bytes": header.size,
        "name": str(header.metadata.get("general.name", files.first.stem)),
        "architecture": header.architecture,
        "quantisation": quantisation(header),
        "parameters": parameters(header),
        "layers": need.shape.layers,
        "vocabulary": need.shape.vocabulary,
        "trained_context": need.shape.trained_context,
        "sliding_window": need.shape.window,
        "sliding_window_layers": need.shape.windowed_layers or None,
        "windowed": settings.windowed,
        "kv_type": settings.kv_type,
        "kv_bytes_per_cell": need.cell_bytes,
        "memory": {
            "kv_cells": sum(spec.context for spec in lanes),
            "weights": need.weights,
            "kv": sum(lane.kv for lane in needs),
            "buffers": need.tables + sum(lane.buffers for lane in needs),
            "needed": total,
            "available": memory.available,
            "total": memory.total,
            "fits": None if memory.available is None else total <= memory.available and _possible(lanes),
            "most_kv_cells": most,
        },
    }


def expected_resident(options: LoadOptions, lanes: Sequence[LaneSpec], filled: int) -> tuple[int, int]:
    """Bytes that loading adds to what a process has resident, and those with `filled` cells of each lane in use.

    The library is no part of that: this call loads it.
    """
    library()
    settings, _, need = _read(options)
    loaded = need.loaded + need.copies
    return loaded, loaded + sum(lane.total for lane in _lane_needs(need, settings, lanes, filled))


def _read(options: LoadOptions) -> tuple[ContextSettings, ModelFiles, MemoryNeed]:
    check_options(options)
    settings = context_settings(options)
    files = read_model_files(options.model or default_model())
    return settings, files, MemoryNeed(files.header, settings)


def _lane_needs(
    need: MemoryNeed, settings: ContextSettings, lanes: Sequence[LaneSpec], filled: int | None = None
) -> list[LaneNeed]:
    return [
        need.lane(spec.context, spec.sequences, flash_attention=flash_attention(settings, spec), filled=filled)
        for spec in lanes
    ]


def _most_cells(need: MemoryNeed, settings: ContextSettings, lanes: Sequence[LaneSpec], available: int | None) -> int:
    """The most KV cells, in whole grains, that lanes of these proportions can have in all; 0 where none fit."""
    asked = sum(spec.context for spec in lanes)

    def too_many(grains: int) -> bool:
        cells = grains * CELL_GRAIN
        scaled = [replace(spec, context=-(-spec.context * cells // asked)) for spec in lanes]
        taken = need.loaded + sum(lane.total for lane in _lane_needs(need, settings, scaled))
        return not _possible(scaled) or (available is not None and taken > available)

    counts = range(1, len(lanes) * MOST_CELLS // CELL_GRAIN + 1)
    return CELL_GRAIN * bisect_left(counts, True, key=too_many)


def _possible(lanes: Sequence[LaneSpec]) -> bool:
    return all(spec.context <= MOST_CELLS for spec in lanes)
