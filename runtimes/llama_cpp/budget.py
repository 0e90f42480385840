"""Whether a model, and each lane over it, fits the memory that is there; said with the arithmetic where it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import LaneSpec

from .memory import CELL_GRAIN, LaneNeed, MemoryNeed

MOST_CELLS = 1 << 20

Available = Callable[[], int | None]


class Budget:
    """The memory for one model. `available` reads what this process may still take; None where nobody knows."""

    def __init__(self, need: MemoryNeed, available: Available) -> None:
        self.need = need
        self._available = available

    def check_model(self, path: Path) -> None:
        """Raises UsageError where the weights and the smallest lane do not fit. Before anything is loaded."""
        available = self._available()
        smallest = self.need.lane(CELL_GRAIN, 1, flash_attention=True)
        if available is not None and self.need.loaded + smallest.total > available:
            raise UsageError(
                f"{path} does not fit the memory: {self._sum(CELL_GRAIN, smallest)}; {_size(available)} is available: "
                "use a smaller model or quantisation, or end other programs"
            )

    def check_lane(self, spec: LaneSpec, *, flash_attention: bool, reserved: int) -> LaneNeed:
        """What the lane needs. Raises UsageError, which names the largest that fits, where that is not there.

        `reserved` are the bytes of other lanes' buffers, which they may not have touched yet.
        """
        if spec.context < 1:
            raise UsageError(f"a lane of {spec.context} KV cells is not possible; 1 to {MOST_CELLS} are")
        most = self.most_cells(spec.sequences, flash_attention=flash_attention, reserved=reserved)
        need = self.need.lane(spec.context, spec.sequences, flash_attention=flash_attention)
        if spec.context <= most:
            return need
        available = self._available()
        if available is None or most == MOST_CELLS:
            raise UsageError(f"a lane of {spec.context} KV cells is not possible; 1 to {most} are: lower --ctx")
        largest = f"the largest lane that fits has {most} cells" if most else "not even the smallest lane fits"
        others = f" + other lanes {_size(reserved)}" if reserved else ""
        raise UsageError(
            f"lane {spec.name} does not fit the memory: {self._sum(spec.context, need, others)}; "
            f"{_size(available)} is available: {largest}, lower --ctx (the KV cells of all lanes)"
        )

    def most_cells(self, sequences: int, *, flash_attention: bool, reserved: int = 0) -> int:
        """The most KV cells of a lane that fits now, in whole grains; 0 where none does."""
        available = self._available()
        if available is None:
            return MOST_CELLS
        left = available - self._mapped - reserved
        low, high = 0, MOST_CELLS // CELL_GRAIN
        while low < high:
            middle = (low + high + 1) // 2
            need = self.need.lane(middle * CELL_GRAIN, sequences, flash_attention=flash_attention)
            low, high = (middle, high) if need.total <= left else (low, middle - 1)
        return low * CELL_GRAIN

    @property
    def _mapped(self) -> int:
        """Weights that are read from the mapped file: once loaded, the system still counts their pages as available."""
        return self.need.weights - self.need.copies

    def _sum(self, cells: int, lane: LaneNeed, others: str = "") -> str:
        need = self.need
        kv = f"{cells:,} KV cells x {need.cell_bytes:,.0f} bytes ({_size(lane.kv)})"
        total = need.loaded + lane.total
        buffers = _size(lane.buffers + need.tables)
        return f"weights {_size(need.weights)} + {kv} + buffers {buffers}{others} = {_size(total)}"


def _size(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
