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

from .cost import FREE, Cost, CostModel
from .gpu import gpu_device
from .mode import MODES, Mode
from .runtime import SimulatedRuntime

_COST_FIELDS = {field.name: int if field.name == "tile" else float for field in fields(CostModel)}
_CLOCKS = {"virtual": VirtualClock, "real": SystemClock}
_OTHERS = ("mode", "clock", "noise", "end_probability", "fail_steps", "device")


class SimulatedProvider:
    """Takes the options `mode`, `clock` (virtual or real), `noise`, `end_probability`, `fail_steps` (numbers with
    commas), each cost constant; or, in place of mode and costs, the `device` of a name in `gpu/devices.toml`.
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
        clock = given.get("clock", "virtual")
        if clock not in _CLOCKS:
            raise UsageError(f"the simulated runtime has no clock '{clock}'; its clocks are {', '.join(_CLOCKS)}")
        cost, mode, cores, noise = _device(options)
        return SimulatedRuntime(
            cost,
            mode,
            cpus=cores,
            fail_steps=[
                int(_number("fail_steps", number)) for number in given.get("fail_steps", "").split(",") if number
            ],
            noise=_number("noise", given["noise"]) if "noise" in given else noise,
            end_probability=_number("end_probability", given.get("end_probability", "0")),
            seed=options.seed,
            clock=_CLOCKS[clock](),
        )


def _no_model() -> UsageError:
    return UsageError("the simulated runtime has no model: leave --model out, or use the runtime llama_cpp")


def _device(options: LoadOptions) -> tuple[Cost, Mode | str, tuple[int, ...], float]:
    """Costs, mode, cores and noise: those of a named device, or of this machine's cores."""
    given = options.options
    if "device" in given:
        fixed = next((key for key in given if key == "mode" or key in _COST_FIELDS), None)
        if fixed is not None:
            raise UsageError(f"option '{fixed}' does not go with 'device', which sets it: leave one of them out")
        device = gpu_device(given["device"])
        return device.cost, device.mode, (0,), device.noise
    mode = given.get("mode", "lanes")
    if mode not in MODES:
        raise UsageError(f"the simulated runtime has no mode '{mode}'; its modes are {', '.join(MODES)}")
    cores = options.cpus[: options.cpu_limit] or (0,)
    costs = _cost(given, FREE if mode == "null" else CostModel())
    return costs, mode, cores[: options.threads] if options.threads else cores, 0.0


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
