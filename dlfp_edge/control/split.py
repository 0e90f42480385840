"""To split a foreground prompt or not, where decodes wait for it: the piece whose late gaps are the least loss.

    loss = gaps above T * T + what they exceed it by, summed  =  the summed length of the gaps above T

A piece that ends within T loses nothing, so prompts are split wherever they can be. Where not even the shortest piece
does, every one of them is late, and each holds the decodes' own time once more: then fewer, longer stalls lose less.
That is the case the paper lost: it cut one stall of a second into sixteen of 281 ms, for decodes of 19 ms.
"""

from __future__ import annotations

from dlfp_edge.control.estimate import Cost

LONGEST_STALL_S = 1.0
"""A single stall is at most about so long, so that decodes and arrivals have their turn in between."""


def unsplit(cost: Cost, decode_s: float, target_s: float, prompt: int, least: int, most: int) -> int:
    """Tokens of a prompt of `prompt` tokens to run at once beside decodes of `decode_s` seconds.

    0 says to split it as usual. `least` is the shortest piece there can be, `most` the longest.
    """
    if prompt <= 0 or cost.margin * (decode_s + least * cost.rate(least)) <= target_s:
        return 0
    sizes = [1 << power for power in range(least.bit_length(), most.bit_length())]
    pieces = [least, *(size for size in sizes if size < min(prompt, most)), min(prompt, most)]
    bearable = [size for size in pieces if size * cost.rate(size) <= LONGEST_STALL_S] or [least]
    return min(bearable, key=lambda size: (_late_s(cost, decode_s, target_s, prompt, size), size))


def _late_s(cost: Cost, decode_s: float, target_s: float, prompt: int, size: int) -> float:
    """The summed length of the gaps above the target where steps are slow, of whole pieces and the rest."""
    whole, rest = divmod(prompt, size)
    whole_s, rest_s = (decode_s + tokens * cost.rate(tokens) for tokens in (size, rest))
    bound_s = target_s / cost.margin
    return whole * whole_s * (whole_s > bound_s) + rest_s * (rest > 0 and rest_s > bound_s)
