"""A runtime on virtual time, for tests of schedulers and for experiments without a device."""

from .cost import FREE, CostModel, Slowdown
from .lane import SimulatedLane
from .mode import MODES, Mode
from .provider import provider
from .runtime import SimulatedRuntime
from .tokens import ByteTokenizer

__all__ = [
    "FREE",
    "MODES",
    "ByteTokenizer",
    "CostModel",
    "Mode",
    "SimulatedLane",
    "SimulatedRuntime",
    "Slowdown",
    "provider",
]
