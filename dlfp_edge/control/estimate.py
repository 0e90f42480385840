"""What steps cost on this device, learned from completed ones: for predictions, targets and step sizes."""

from __future__ import annotations

FORGETTING = 0.2
"""Weight of the newest sample in a running mean."""

EFFICIENT_TOKENS = 16
"""Steps with fewer prefill tokens say more about their fixed cost than about the rate."""


class Cost:
    """Step time of one lane as decode(k) + s x prefill tokens, from whatever ran.

    `decode_s` and `prefill_s` (seconds for one decode, per prefill token) are first guesses; `batched` says whether k
    decodes cost about one pass or k passes.
    """

    def __init__(self, decode_s: float | None, prefill_s: float | None, *, batched: bool) -> None:
        self._decode: dict[int, float] = {} if decode_s is None else {1: decode_s}
        self._prefill_s = prefill_s
        self._batched = batched

    @property
    def prefill_s(self) -> float | None:
        """Seconds per prefill token; None before anything was measured."""
        return self._prefill_s

    def decode_s(self, decodes: int) -> float:
        """Seconds for a step of `decodes` decodes; 0 before anything was measured."""
        if decodes == 0 or not self._decode:
            return 0.0
        nearest = min(self._decode, key=lambda known: abs(known - decodes))
        return self._decode[nearest] if self._batched else self._decode[nearest] * decodes / nearest

    def predict(self, decodes: int, prefills: int) -> float:
        """Expected service time in seconds of a step of `decodes` decodes and `prefills` prefill tokens."""
        return self.decode_s(decodes) + prefills * (self._prefill_s or 0.0)

    def observe(self, decodes: int, prefills: int, service_s: float) -> None:
        """Learn from a completed step."""
        if prefills == 0 and decodes:
            self._decode[decodes] = _mix(self._decode.get(decodes), service_s)
        elif prefills >= EFFICIENT_TOKENS or (prefills and self._prefill_s is None):
            rate_s = max(service_s - self.decode_s(decodes), 0.1 * service_s) / prefills
            self._prefill_s = _mix(self._prefill_s, rate_s)


def _mix(old: float | None, new: float) -> float:
    return new if old is None else (1 - FORGETTING) * old + FORGETTING * new
