"""Load a simulated runtime from options, as the command line gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dlfp_edge.clock import SystemClock, VirtualClock
from dlfp_edge.errors import UsageError, hint
from dlfp_edge.model_reference import HubModel
from dlfp_edge.runtime import LoadOptions, Runtime, Tell

from .cost import FREE, CostModel
from .mode import MODES
from .runtime import SimulatedRuntime

_COST_FIELDS = {field.name: int if field.name == "tile" else float for field in fields(CostModel)}
_CLOCKS = {"virtual": VirtualClock, "real": SystemClock}
_OTHERS = ("mode", "clock", "noise", "end_probability", "fail_steps")


class SimulatedProvider:
    """Takes the options `mode`, `clock` (virtual or real), `noise`, `end_probability`, `fail_steps` (numbers with
    commas), each cost constant.
    """

    name = "simulated"

    def fetch(self, model: HubModel, tell: Tell | None = None) -> Path:
        """There is nothing to fetch. Raises UsageError."""
        raise _no_model()

    def load(self, options: LoadOptions) -> Runtime:
        """Set up the runtime. Raises UsageError for an option it does not know or a value it cannot read."""
        if options.model is not None:
            raise _no_model()
        given = options.options
        for key in given:
            if key not in _OTHERS and key not in _COST_FIELDS:
                known = hint(key, (*_OTHERS, *_COST_FIELDS), "its options are")
                raise UsageError(f"the simulated runtime has no option '{key}'; {known}")
        mode = given.get("mode", "lanes")
        if mode not in MODES:
            raise UsageError(f"the simulated runtime has no mode '{mode}'; its modes are {', '.join(MODES)}")
        clock = given.get("clock", "virtual")
        if clock not in _CLOCKS:
            raise UsageError(f"the simulated runtime has no clock '{clock}'; its clocks are {', '.join(_CLOCKS)}")
        cores = options.cpus[: options.cpu_limit] or (0,)
        return SimulatedRuntime(
            _cost(given, FREE if mode == "null" else CostModel()),
            mode,
            cpus=cores[: options.threads] if options.threads else cores,
            fail_steps=[
                int(_number("fail_steps", number)) for number in given.get("fail_steps", "").split(",") if number
            ],
            noise=_number("noise", given.get("noise", "0")),
            end_probability=_number("end_probability", given.get("end_probability", "0")),
            seed=options.seed,
            clock=_CLOCKS[clock](),
        )


def _no_model() -> UsageError:
    return UsageError("the simulated runtime has no model: leave --model out, or use the runtime llama_cpp")


def _cost(given: Mapping[str, str], base: CostModel) -> CostModel:
    values: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(CostModel)}
    for name, kind in _COST_FIELDS.items():
        if name in given:
            values[name] = kind(_number(name, given[name]))
    return CostModel(**values)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"option '{name}' of the simulated runtime is no number: '{text}'") from None
    if value < 0:
        raise UsageError(f"option '{name}' of the simulated runtime is negative: '{text}'")
    return value


provider = SimulatedProvider()
