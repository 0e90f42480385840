"""How the types of tensors store their numbers, and random blocks of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Block:
    """`numbers` values in `size` bytes, with half-precision scales: (where in the block, value).

    They make weights of 0.02 to 0.03 of the bytes beside them where those are random.
    """

    numbers: int
    size: int
    scales: tuple[tuple[int, float], ...]


BLOCKS = {
    "Q4_0": Block(32, 18, ((0, 4e-3),)),  # a scale, then 4-bit values that count from -8
    "Q5_0": Block(32, 22, ((0, 2e-3),)),  # a scale, then 5-bit values that count from -16
    "Q8_0": Block(32, 34, ((0, 3e-4),)),  # a scale, then signed values
    # A scale and a minimum's scale, then 6-bit scales and minimums and 4-bit values; 7.5 centres the values on 0.
    "Q4_K": Block(256, 144, ((0, 1.2e-4), (2, 7.5 * 1.2e-4))),
    "Q6_K": Block(256, 210, ((208, 1.5e-5),)),  # 6-bit values and 16 signed scales, then a scale for all
    "F32": Block(1, 4, ()),
}
"""By the names of ggml's types; the layouts are those of its ggml-common.h."""


def random_blocks(kind: str, count: int, random: np.random.Generator) -> Bytes:
    """`count` blocks of a quantised type, as one row of bytes.

    Half of the blocks have negative scales. The values of most types have a mean a little below 0, which would grow
    from layer to layer until the model says one token whatever it is asked.
    """
    block = BLOCKS[kind]
    blocks = random.integers(0, 256, (count, block.size), np.uint8)
    signs = random.integers(0, 2, count, np.uint8) << 7
    for at, scale in block.scales:
        low, high = np.array([scale], "<f2").view(np.uint8)
        blocks[:, at] = low
        blocks[:, at + 1] = high | signs
    return blocks.reshape(-1)
