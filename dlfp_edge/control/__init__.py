"""Controllers by name.

In shared steps: `unlimited`, `fixed:N`, `dlfp` (preset `edge` or `a100`), `dlfp-bounded`, `dlfp-cadence`.
In lanes: `static`, `dlfp`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dlfp_edge.control.constant import Fixed, Static, Unlimited
from dlfp_edge.control.edge import Edge
from dlfp_edge.control.paper import Cadence, Paper
from dlfp_edge.control.port import Controller, Observation, Update, View
from dlfp_edge.control.share import Share
from dlfp_edge.errors import UsageError, hint
from dlfp_edge.settings import Placement

__all__ = [
    "Controller",
    "Observation",
    "Update",
    "View",
    "controller_names",
    "make_chunk_controller",
    "make_controller",
    "suitable_placement",
]

MAX_CHANGE = 0.25

_CHUNK: dict[tuple[str, str], Callable[..., Controller]] = {
    ("unlimited", "edge"): Unlimited,
    ("dlfp", "edge"): Edge,
    ("dlfp-bounded", "edge"): partial(Edge, "dlfp-bounded", max_change=MAX_CHANGE),
    ("unlimited", "a100"): Unlimited,
    ("dlfp", "a100"): Paper,
    ("dlfp-bounded", "a100"): partial(Paper, "dlfp-bounded", max_change=MAX_CHANGE),
    ("dlfp-cadence", "edge"): Cadence,
    ("dlfp-cadence", "a100"): Cadence,
}
_LANES: dict[str, Callable[..., Controller]] = {"static": Static, "dlfp": Share}


def controller_names(placement: Placement) -> list[str]:
    """The controllers that fit a placement, as people write them."""
    if placement is Placement.LANES:
        return sorted(_LANES)
    return sorted({name for name, _ in _CHUNK} | {"fixed:N"})


def make_chunk_controller(name: str, preset: str = "edge", parameters: Mapping[str, float] | None = None) -> Controller:
    """A controller for shared steps. Raises UsageError naming the nearest controller, preset or parameter."""
    if name == "auto":
        name = "dlfp"
    if name.startswith("fixed:"):
        return Fixed(_fixed_tokens(name))
    if preset not in ("edge", "a100"):
        raise UsageError(f"unknown preset '{preset}': presets are edge and a100")
    if (name, preset) not in _CHUNK:
        raise UsageError(_unknown(name, Placement.SHARED))
    return _build(_CHUNK[name, preset], name, parameters or {})


def make_controller(
    placement: Placement, name: str, preset: str = "edge", parameters: Mapping[str, float] | None = None
) -> Controller:
    """The controller of a `placement/controller` setting. Raises UsageError as `make_chunk_controller` does."""
    if placement is not Placement.LANES:
        return make_chunk_controller(name, preset, parameters)
    if name == "auto":
        name = "dlfp"
    if name not in _LANES:
        raise UsageError(_unknown(name, placement))
    if preset != "edge":
        raise UsageError(f"preset '{preset}' caps tokens, which lanes do not share: use --placement shared with it")
    return _build(_LANES[name], name, parameters or {})


def suitable_placement(
    placement: Placement, name: str, preset: str = "edge", parameters: Mapping[str, float] | None = None
) -> Placement:
    """The placement, once it has such a controller; for `auto`, shared steps where only they have it.

    Raises UsageError as `make_controller` does.
    """
    if placement is Placement.AUTO and (preset != "edge" or name not in ("auto", *controller_names(Placement.LANES))):
        placement = Placement.SHARED
    make_controller(Placement.SHARED if placement is Placement.SHARED else Placement.LANES, name, preset, parameters)
    return placement


def _build(factory: Callable[..., Controller], name: str, parameters: Mapping[str, float]) -> Controller:
    known = [key for key in _parameter_names(factory) if key not in ("name", "resets", "state", "steered")]
    for key in parameters:
        if key not in known:
            raise UsageError(f"controller '{name}' has no parameter '{key}': {hint(key, known, 'it has')}")
        if not (math.isfinite(parameters[key]) and parameters[key] > 0):
            raise UsageError(f"{key}={parameters[key]:g} for controller '{name}': it must be a number above 0")
    lowest, highest = parameters.get("c_min"), parameters.get("c_max")
    if lowest is not None and highest is not None and lowest > highest:
        raise UsageError(f"c_min={lowest:g} is above c_max={highest:g} for controller '{name}': swap them")
    return factory(**parameters)


def _parameter_names(factory: Callable[..., Any]) -> list[str]:
    if factory is Cadence:
        factory = Paper
    return [p.name for p in inspect.signature(factory).parameters.values()]


def _fixed_tokens(name: str) -> int:
    text = name.partition(":")[2]
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"'{name}' needs a whole number of tokens, for example fixed:32") from None


def _unknown(name: str, placement: Placement) -> str:
    elsewhere = Placement.SHARED if placement is Placement.LANES else Placement.LANES
    if name in controller_names(elsewhere) or (placement is Placement.LANES and name.startswith("fixed")):
        return f"controller '{name}' works with --placement {elsewhere.value}, not {placement.value}"
    known = hint(name, controller_names(placement), f"{placement.value} has", cutoff=0.4)
    return f"unknown controller '{name}': {known}"
