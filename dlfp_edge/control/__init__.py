"""Controllers by name: the laws, and those that the names in `dlfp_edge.controls` stand for.

In shared steps: `slack`, `unlimited`, `fixed:N`, `dlfp` (preset `edge` or `a100`), `dlfp-bounded`, `dlfp-cadence`,
`stall-cap`, `tick`, `pressure`, `predictor`. In lanes: `static`, `dlfp`.
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
from dlfp_edge.control.predictor import CONSTANTS, Predictor
from dlfp_edge.control.pressure import PrefillPressure
from dlfp_edge.control.share import Share
from dlfp_edge.control.slack import Slack
from dlfp_edge.control.stall_cap import StallCap
from dlfp_edge.control.tick import Tick
from dlfp_edge.controls import DEFAULTS, controller_names, find_control
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

_EITHER: dict[str, Callable[..., Controller]] = {
    "unlimited": Unlimited,
    "dlfp-cadence": Cadence,
    "stall-cap": StallCap,
    "tick": Tick,
    "pressure": PrefillPressure,
    "predictor": Predictor,
}
_CHUNK: dict[str, dict[str, Callable[..., Controller]]] = {
    "edge": {**_EITHER, "slack": Slack, "dlfp": Edge, "dlfp-bounded": partial(Edge, max_change=MAX_CHANGE)},
    "a100": {**_EITHER, "dlfp": Paper, "dlfp-bounded": partial(Paper, max_change=MAX_CHANGE)},
}
_LANES: dict[str, Callable[..., Controller]] = {"static": Static, "dlfp": Share}


def make_chunk_controller(name: str, preset: str = "edge", parameters: Mapping[str, float] | None = None) -> Controller:
    """A controller for shared steps. Raises UsageError naming the nearest controller, preset or parameter."""
    if name.startswith("fixed:"):
        return Fixed(_fixed_tokens(name))
    if preset not in _CHUNK:
        raise UsageError(f"unknown preset '{preset}': presets are edge and a100")
    laws = _CHUNK[preset]
    if name == "auto":
        default = DEFAULTS[Placement.SHARED]
        name = default if default in laws else "dlfp"
    law = _law(Placement.SHARED, name)
    if law not in laws:
        raise UsageError(f"preset '{preset}' has no controller '{name}': leave --preset out")
    return _build(laws[law], name, parameters or {})


def make_controller(
    placement: Placement, name: str, preset: str = "edge", parameters: Mapping[str, float] | None = None
) -> Controller:
    """The controller of a `placement/controller` setting. Raises UsageError as `make_chunk_controller` does."""
    if placement is not Placement.LANES:
        return make_chunk_controller(name, preset, parameters)
    if name == "auto":
        name = DEFAULTS[placement]
    law = _law(placement, name)
    if preset != "edge":
        raise UsageError(f"preset '{preset}' caps tokens, which lanes do not share: use --placement shared with it")
    return _build(_LANES[law], name, parameters or {})


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


def _law(placement: Placement, name: str) -> str:
    control = find_control(placement, name)
    if control is None:
        raise UsageError(_unknown(name, placement))
    return control.law


def _build(factory: Callable[..., Controller], name: str, parameters: Mapping[str, float]) -> Controller:
    known = _parameters(factory)
    for key in parameters:
        if key not in known:
            raise UsageError(f"controller '{name}' has no parameter '{key}': {hint(key, known, 'it has')}")
        fitted = key in CONSTANTS  # a fit may leave one at 0
        if not (math.isfinite(parameters[key]) and (parameters[key] > 0 or (fitted and parameters[key] == 0))):
            least = "from 0 on" if fitted else "above 0"
            raise UsageError(f"{key}={parameters[key]:g} for controller '{name}': it must be a number {least}")
    bounds = {key: parameters.get(key, known[key]) for key in ("c_min", "c_max") if key in known}
    if bounds and bounds["c_min"] > bounds["c_max"]:
        mend = "swap them" if all(key in parameters for key in bounds) else "set both"
        raise UsageError(
            f"c_min={bounds['c_min']:g} is above c_max={bounds['c_max']:g} for controller '{name}': {mend}"
        )
    controller = factory(**parameters)
    controller.name = name
    return controller


def _parameters(factory: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a law that people may set, with their values where they do not."""
    if factory is Cadence:
        factory = Paper
    named = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in named if p.name not in ("name", "resets", "state", "steered")}


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
