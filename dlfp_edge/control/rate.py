"""The seconds a prompt token took in a step, for laws that size a chunk by time."""

from __future__ import annotations

from dlfp_edge.control.port import Observation


def token_s(observation: Observation, least: float) -> float | None:
    """Seconds a token of prefill, its share of the decodes beside it included; None where the step says nothing.

    One with fewer than `least` tokens, where it could have had them, says more of its fixed cost than of the rate.
    """
    if observation.gap_s <= 0 or observation.used < max(1, min(least, observation.budget)):
        return None
    return observation.gap_s / observation.used or None
