"""To split a foreground prompt or not, where decodes wait for it: the piece whose late gaps are the least loss.

    loss = gaps above T * T + what they exceed it by, summed  =  the summed length of the gaps above T

A piece that ends within T loses nothing, so prompts are split wherever they can be. Where not even the shortest piece
does, every one of them is late, and each holds the decodes' own time once more: then fewer, longer stalls lose less.
That is the case the paper lost: it cut one stall of a second into sixteen of 281 ms, for decodes of 19 ms.
"""

from __future__ import annotations

import numpy as np

from dlfp_edge.control.estimate import Cost

LONGEST_STALL_S = 1.0
"""A single stall is at most about so long, so that decodes and arrivals have their turn in between."""


def unsplit(cost: Cost, decode_s: float, target_s: float, prompt: int, least: int, most: int) -> int:
    """Tokens of a prompt of `prompt` tokens to run at once beside decodes of `decode_s` seconds.

    0 says to split it as usual. `least` is the shortest piece there can be, `most` the longest.
    """
    if prompt <= 0 or cost.margin * (decode_s + least * cost.rate(least)) <= target_s:
        return 0
    sizes = np.arange(least, max(least, min(prompt, most)) + 1)
    whole, rest = np.divmod(prompt, sizes)
    taken_s = np.arange(sizes[-1] + 1) * cost.rates(sizes[-1])
    bearable = (taken_s[sizes] <= LONGEST_STALL_S) & ((rest == 0) | (rest >= least))
    if not bearable.any():
        return least
    gaps_s = decode_s + taken_s
    late_s = np.where(cost.margin * gaps_s > target_s, gaps_s, 0.0)
    late_s[0] = 0.0  # there is no rest
    loss_s = whole * late_s[sizes] + late_s[rest]
    return int(sizes[bearable][np.argmin(loss_s[bearable])])
