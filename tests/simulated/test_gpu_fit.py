"""The constants of simulated GPUs: what they were fitted to, and what they leave."""

from __future__ import annotations

import importlib.resources
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest

from dlfp_edge.prove.gpu_points import Baseline, Figures, Load, baselines, gpu_plan
from dlfp_edge.runtimes.simulated.gpu import fit, gpu_device
from dlfp_edge.runtimes.simulated.gpu.devices import Constants, frozen_constants
from dlfp_edge.runtimes.simulated.gpu.replay import Shape, replay

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = importlib.resources.files("dlfp_edge.runtimes.simulated.gpu") / "fitted.toml"


@pytest.fixture(scope="module")
def residuals() -> list[fit.Residual]:
    return fit.residuals(frozen_constants())


def test_the_frozen_constants_leave_what_their_file_says(residuals: list[fit.Residual]) -> None:
    stated = tomllib.loads(FILE.read_text())["residual"]
    assert [(one.point, one.figure) for one in residuals] == [(row["point"], row["figure"]) for row in stated]
    for one, row in zip(residuals, stated, strict=True):
        assert one.paper == pytest.approx(row["paper"], rel=1e-3)
        assert one.simulated == pytest.approx(row["simulated"], rel=0.01)
        assert one.difference / one.spread == pytest.approx(row["spreads"], abs=0.02)


def test_every_baseline_is_met_within_two_spreads(residuals: list[fit.Residual]) -> None:
    for one in residuals:
        assert abs(one.difference) < 2 * one.spread, one


def test_the_constants_are_physical() -> None:
    values = zip(astuple(fit.LEAST), astuple(frozen_constants()), astuple(fit.MOST), strict=True)
    assert all(least < value < most for least, value, most in values)


def test_a_fit_sees_no_candidate() -> None:
    """What it is given has no field for one: neither the points' loads nor their baselines."""
    candidates = set(Figures.model_fields) - set(Baseline.model_fields)
    assert candidates == {"itl_change", "ttft_change", "e2el_change"}
    for given in (Load, Baseline):
        assert not {"paper", "candidates", *candidates} & set(given.model_fields)
    assert all(type(load) is Load and type(baseline) is Baseline for load, baseline in baselines())


def test_candidates_figures_change_no_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    short = [point for point in gpu_plan().points if point.name == "qwen3-32b"]
    plan = gpu_plan().model_copy(update={"points": tuple(short)})
    bare = plan.model_copy(update={"points": tuple(point.model_copy(update={"paper": {}}) for point in short)})
    found = []
    for points in (plan, bare):
        monkeypatch.setattr("dlfp_edge.prove.gpu_points.gpu_plan", lambda points=points: points)
        found.append(fit.residuals(fit.START))
    assert found[0] == found[1]


def test_a_fit_finds_constants_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the figures that known constants give, it comes nearer to them than where it begins."""
    load = Load(name="a", title="a", device="a100x2-qwen3-8b", rate=0.25, requests=20)
    monkeypatch.setattr(fit, "DRAWN_REQUESTS", 100)
    true = replace(fit.START, dense=0.45, step_s=0.004)
    draws = fit._replayed(load, true)
    baseline = Baseline(
        itl_p99_ms=(float(np.median(draws.itl_p99_ms)),),
        ttft_p99_ms=(float(np.median(draws.ttft_p99_ms)),),
        e2el_p99_ms=(float(np.median(draws.e2el_p99_ms)),),
        passes=(0, 20),
    )
    monkeypatch.setattr(fit, "baselines", lambda: [(load, baseline)])

    def loss(constants: Constants) -> float:
        return sum((one.difference / one.spread) ** 2 for one in fit.residuals(constants))

    assert loss(fit.fit(evaluations=40)) < 0.2 * loss(fit.START)


def test_the_replay_serves_every_request_in_order() -> None:
    device = gpu_device("a100-qwen3-06b")
    arrivals = [0.0, 0.1, 0.1, 5.0]
    served = replay(device, arrivals, Shape(prompt=1000, answer=20))
    assert [request.arrived for request in served] == arrivals
    for request in served:
        assert len(request.times) == 20
        assert request.times == sorted(request.times)
        assert request.times[0] > request.arrived
