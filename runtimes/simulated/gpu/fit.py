"""How the constants in `fitted.toml` were found: `python -m dlfp_edge.runtimes.simulated.gpu.fit` prints that file.

Six constants, the same for every device, are fitted to the figures that the paper gives of vLLM's own scheduler, and to
no other: `Baseline` has no field for them. When the paper's requests arrived is not known, and the percentiles of a
trial depend on that more than on anything else. So each point is replayed with many draws of arrivals. A figure of one
trial is held against the median of the draws, the i-th lowest of k trials against their quantile (i - 1/2) / k, a share
of requests that met the SLO against the mean. The sum of the squared differences is minimised, each (of logarithms, but
for shares) in units of the spread over draws that there is with the values the fit begins with. So a figure that hangs
on a few arrivals weighs little.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt

from dlfp_edge.measure.slo import Slo
from dlfp_edge.prove.gpu_points import Baseline, Load, baselines

from .devices import Constants, gpu_device
from .replay import Replayed, Shape, replay

SHAPE = Shape(prompt=16384, answer=256)

START = Constants(dense=0.55, attention=0.45, memory=0.85, step_s=0.0025, exchange_s=70e-6, exchange_bytes_per_s=3.6e9)
"""Ordinary values of such machines; the fit begins here."""

LEAST = Constants(dense=0.2, attention=0.1, memory=0.5, step_s=5e-4, exchange_s=5e-6, exchange_bytes_per_s=5e8)
MOST = Constants(dense=0.85, attention=0.75, memory=0.95, step_s=0.01, exchange_s=3e-4, exchange_bytes_per_s=2.5e10)
"""Beyond these a constant would say nothing of the machine."""

DRAWN_REQUESTS = 900
"""Of every point, in draws as long as a trial."""

EVALUATIONS = 160
_LEAST_SPREAD, _LEAST_SHARE_SPREAD = 0.05, 0.03
_QUARTILES = 1.349
"""Between the quartiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A figure of the paper and what the constants give: durations in ms, shares from 0 to 1.

    `difference` is of logarithms (or of shares), `spread` what it varies by from one draw of arrivals to another: the
    standard deviation of a normal distribution with the same quartiles.
    """

    point: str
    figure: str
    paper: float
    simulated: float
    difference: float
    spread: float


@dataclass(frozen=True, slots=True)
class _Draws:
    """What every draw of a point gave; durations in ms."""

    itl_p99_ms: npt.NDArray[np.float64]
    ttft_p99_ms: npt.NDArray[np.float64]
    e2el_p99_ms: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]


def fit(evaluations: int = EVALUATIONS) -> Constants:
    """The constants that come nearest to the baselines; some ten minutes."""
    from scipy.optimize import minimize

    weights = [residual.spread for residual in residuals(START)]

    def loss(logarithms: npt.NDArray[np.float64]) -> float:
        found = residuals(_constants(logarithms))
        return sum((one.difference / weight) ** 2 for one, weight in zip(found, weights, strict=True))

    start, least, most = (np.log(astuple(each)) for each in (START, LEAST, MOST))
    simplex = np.vstack([start, start + 0.15 * np.eye(len(start))])
    best = minimize(
        loss,
        start,
        method="Nelder-Mead",
        bounds=list(zip(least, most, strict=True)),
        options={
            "maxfev": evaluations,
            "initial_simplex": np.clip(simplex, least, most),
            "xatol": 0.005,
            "fatol": 0.005,
        },
    )
    return _rounded(_constants(best.x))


def residuals(constants: Constants) -> list[Residual]:
    """What is left between the paper's baselines and these constants, figure by figure."""
    found: list[Residual] = []
    for load, baseline in baselines():
        draws = _replayed(load, constants)
        for name in ("itl_p99_ms", "ttft_p99_ms", "e2el_p99_ms"):
            found += _of_percentiles(load.name, name, getattr(baseline, name), getattr(draws, name))
        if load.objectives is not None:
            found.append(_of_share(load.name, baseline, draws.share))
    return found


def _of_percentiles(
    point: str, name: str, figures: Sequence[float], drawn: npt.NDArray[np.float64]
) -> Iterator[Residual]:
    logarithms = np.log(drawn)
    spread = max(_LEAST_SPREAD, _spread(logarithms))
    for index, figure in enumerate(sorted(figures)):
        middle = float(np.quantile(logarithms, (index + 0.5) / len(figures)))
        difference = middle - math.log(figure)
        trial = f" {index + 1} of {len(figures)}" if len(figures) > 1 else ""
        yield Residual(point, name + trial, figure, math.exp(middle), difference, spread)


def _of_share(point: str, baseline: Baseline, drawn: npt.NDArray[np.float64]) -> Residual:
    mean = float(np.mean(drawn))
    spread = max(_LEAST_SHARE_SPREAD, _spread(drawn) / math.sqrt(baseline.trials))
    return Residual(point, "passes", baseline.share, mean, mean - baseline.share, spread)


def _spread(drawn: npt.NDArray[np.float64]) -> float:
    low, high = np.quantile(drawn, (0.25, 0.75))
    return float(high - low) / _QUARTILES


def _replayed(load: Load, constants: Constants) -> _Draws:
    """Each draw has arrivals and noise of its own, the same for all constants."""
    device = gpu_device(load.device, constants)
    rows = []
    for seed in range(DRAWN_REQUESTS // load.requests):
        served = replay(device, _arrivals(load.rate, load.requests, seed), SHAPE, Random(seed))
        rows.append(_figures(served, load.objectives))
    return _Draws(*np.array(rows).T)


@cache
def _arrivals(rate: float, requests: int, seed: int) -> tuple[float, ...]:
    gaps = np.random.default_rng(seed).exponential(1 / rate, requests)
    return tuple(float(moment) for moment in np.cumsum(gaps))


def _figures(served: Sequence[Replayed], slo: Slo | None) -> tuple[float, float, float, float]:
    times = np.array([request.times for request in served])
    arrived = np.array([request.arrived for request in served])
    gaps = np.diff(times, axis=1)
    first, whole = times[:, 0] - arrived, times[:, -1] - arrived
    p99 = [1e3 * float(np.percentile(values, 99)) for values in (gaps, first, whole)]
    met = [slo.met(*each) for each in zip(first, gaps.mean(axis=1), whole, strict=True)] if slo else [False]
    return p99[0], p99[1], p99[2], float(np.mean(met))


def _constants(logarithms: npt.NDArray[np.float64]) -> Constants:
    return Constants(*(float(value) for value in np.exp(logarithms)))


def _rounded(constants: Constants) -> Constants:
    """To four digits: the figures know no more."""
    return Constants(**{name: float(f"{value:.4g}") for name, value in asdict(constants).items()})


def toml(constants: Constants) -> str:
    """The constants, and what they leave, as the content of `fitted.toml`."""
    lines = [
        "# Written by `python -m dlfp_edge.runtimes.simulated.gpu.fit`: from the paper's baselines, from no candidate.",
        "",
        "[constants]",
        *(f"{field.name} = {getattr(constants, field.name):.4g}" for field in fields(Constants)),
        "",
        "# What was fitted to: durations in ms, passes as shares. Differences are in spreads over draws of arrivals.",
    ]
    for one in residuals(constants):
        lines += [
            "[[residual]]",
            f'point = "{one.point}"',
            f'figure = "{one.figure}"',
            f"paper = {one.paper:.4g}",
            f"simulated = {one.simulated:.4g}",
            f"spreads = {one.difference / one.spread:.2f}",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(toml(fit()))
