"""One step as a `llama_batch`, filled through numpy arrays that the batch points at."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dlfp_edge.runtime import Step

from .library import library


class Batch:
    """Memory for steps of up to `capacity` tokens, filled anew for each step.

    Every token belongs to one sequence, so the lists of sequence ids are one array with a pointer to each element.
    """

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._pointers = self._sequences.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self._wanted = np.zeros(capacity, np.int8)
        self.raw = self._point_at_arrays()

    def fill(self, step: Step) -> None:
        """Lay out the segments of a step one after another."""
        row = 0
        for segment in step.segments:
            rows = slice(row, row + len(segment.tokens))
            self._tokens[rows] = segment.tokens
            self._positions[rows] = np.arange(segment.start, segment.end)
            self._sequences[rows] = segment.sequence
            self._wanted[rows] = 0
            for position in segment.outputs:
                self._wanted[row + position - segment.start] = 1
            row = rows.stop
        self.raw.n_tokens = row

    def _point_at_arrays(self) -> Any:
        raw = library().llama_batch()
        for name, array in (
            ("token", self._tokens),
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._pointers),
            ("logits", self._wanted),
        ):
            field_type = type(getattr(raw, name))
            setattr(raw, name, ctypes.cast(array.ctypes.data, field_type))
        return raw


def requested_rows(step: Step) -> list[list[tuple[int, int]]]:
    """For each segment the outputs asked for, as (position, row in the batch) in order of position."""
    rows: list[list[tuple[int, int]]] = []
    first_row = 0
    for segment in step.segments:
        rows.append([(position, first_row + position - segment.start) for position in sorted(segment.outputs)])
        first_row += len(segment.tokens)
    return rows
