"""Memory as a runtime works it out before it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import LaneSpec, LoadOptions


class Forecaster(Protocol):
    """A runtime provider that works memory out before it is taken."""

    def expected_resident(self, options: LoadOptions, lanes: Sequence[LaneSpec], filled: int) -> tuple[int, int]:
        """Bytes that loading adds, and those with `filled` cells of each lane in use.

        The runtime's packages are loaded then, and no longer part of what loading adds.
        """
        ...

    def inspect(self, options: LoadOptions, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
        """What a model is, and what memory each part of it needs."""
        ...


def forecaster(runtime: str) -> Forecaster | None:
    """The runtime's, where it has one."""
    provider = runtime_provider(runtime)
    return cast(Forecaster, provider) if hasattr(provider, "expected_resident") else None
