"""Named GPU devices: what a data sheet and a model's shape say, times the constants fitted to the paper's baselines."""

from __future__ import annotations

import importlib.resources
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.runtime import Interruptible

from ..mode import Mode
from .cost import GpuCost

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BYTES = 2
"""Of a BF16 number."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted, the same for every device.

    `dense` and `attention` are the parts of the GPU's peak arithmetic that matrix products and prefill attention reach,
    `memory` the part of its peak bandwidth at which weights and cells are read. A step costs `step_s` besides. Where
    GPUs share a model, each sum over them takes `exchange_s` and moves `exchange_bytes_per_s`.
    """

    dense: float
    attention: float
    memory: float
    step_s: float
    exchange_s: float
    exchange_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 model's shape."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    tied: bool

    @property
    def dense_weights(self) -> int:
        """Weights that every token is multiplied with."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def output_weights(self) -> int:
        """Weights that every token with an output is multiplied with."""
        return self.hidden * self.vocabulary

    @property
    def cell_bytes(self) -> int:
        """Bytes of one KV cell."""
        return 2 * _BYTES * self.layers * self.kv_heads * self.head

    @property
    def all_bytes(self) -> int:
        """Bytes of all weights."""
        return _BYTES * (self.dense_weights + self.output_weights * (1 if self.tied else 2))


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """What the simulated runtime needs to be this device; `noise` is the standard deviation of log step times."""

    cost: GpuCost
    mode: Mode
    noise: float


def device_names() -> list[str]:
    """The devices there are."""
    return list(_given()["device"])


def gpu_device(name: str, constants: Constants | None = None) -> GpuDevice:
    """A device by name, with the constants that are frozen in `fitted.toml`, or with others.

    Raises UsageError for a name that is none.
    """
    given = _given()
    if name not in given["device"]:
        raise UsageError(f"the simulated runtime has no device '{name}': {hint(name, device_names(), 'it has')}")
    device, gpu, host = given["device"][name], given["gpu"], given["host"]
    shape, gpus = Shape(**given["model"][device["model"]]), device["gpus"]
    cost = _cost(name, shape, gpus, constants or frozen_constants())
    room = gpus * gpu["memory_bytes"] * gpu["memory_share"] - shape.all_bytes
    mode = Mode(
        depth=2 if device["asynchronous"] else 1,
        interruptible=Interruptible.NO,
        sequences=host["sequences"],
        context=int(room / shape.cell_bytes),
        sequence_context=host["sequence_context"],
        largest_step=host["largest_step"],
        ubatch=host["largest_step"],
    )
    return GpuDevice(cost, mode, host["noise"])


@cache
def frozen_constants() -> Constants:
    """What was fitted once, to the paper's baselines."""
    return Constants(**_read("fitted.toml")["constants"])


def _cost(name: str, shape: Shape, gpus: int, constants: Constants) -> GpuCost:
    """Every GPU has its part of all weights, heads and cells; what they compute of each token they then add up."""
    gpu, host = _given()["gpu"], _given()["host"]
    arithmetic = gpus * gpu["operations_per_s"]
    read_s = 1 / (gpus * gpu["memory_bytes_per_s"] * constants.memory)
    sums = 2 * shape.layers + 1 if gpus > 1 else 0
    return GpuCost(
        device=name,
        step_s=constants.step_s + sums * constants.exchange_s,
        weights_s=_BYTES * (shape.dense_weights + shape.output_weights) * read_s,
        token_s=2 * shape.dense_weights / (arithmetic * constants.dense),
        output_s=2 * shape.output_weights / (arithmetic * constants.dense),
        score_s=4 * shape.layers * shape.heads * shape.head / (arithmetic * constants.attention),
        cell_s=shape.cell_bytes * read_s,
        exchange_s=sums * _BYTES * shape.hidden / constants.exchange_bytes_per_s,
        host_s=host["host_s"],
        copy_s=shape.cell_bytes / (gpus * gpu["host_bytes_per_s"]),
    )


@cache
def _given() -> dict[str, Any]:
    return _read("devices.toml")


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((importlib.resources.files(__package__) / file).read_text(encoding="utf-8"))
