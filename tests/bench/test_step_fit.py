"""A latency model from timed steps: it finds what they were made of, and says how far it is off where it cannot."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.step_fit import fit_steps
from dlfp_edge.bench.step_grid import CHUNKS, CONTEXTS, STARTS, Point, grid, timed_points
from dlfp_edge.control.predictor import CONSTANTS, step_s
from dlfp_edge.errors import UsageError
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime

TRUE = {"c": 0.008, "a": 1e-6, "d": 0.006, "g": 2e-6, "b": 0.002, "e": 5e-7}


def measured(constants: dict[str, float], noise: float = 0.0) -> list[Point]:
    """The grid, with times by the formula."""
    random = Random(1)
    points = list(grid(load_runtime("simulated").capabilities, CONTEXTS, CHUNKS, STARTS, random))
    for point in points:
        point.cells = sum(point.contexts)
        exact_s = step_s([constants[name] for name in CONSTANTS], point.decoders, point.cells, point.chunk, point.start)
        point.times_s = [exact_s * random.lognormvariate(0, noise) for _ in range(3)]
    return points


@settings(max_examples=20)
@given(
    st.fixed_dictionaries(
        {name: st.floats(0.3, 3).map(lambda times, usual=usual: times * usual) for name, usual in TRUE.items()}
    )
)
def test_a_fit_finds_the_constants(constants: dict[str, float]) -> None:
    fit = fit_steps(measured(constants))
    assert fit.constants == pytest.approx(constants, rel=1e-4)
    assert fit.bad < 1e-6


def test_a_fit_of_noisy_steps_comes_close_and_says_how_close() -> None:
    fit = fit_steps(measured(TRUE, noise=0.05))
    for name in "cdb":
        assert fit.constants[name] == pytest.approx(TRUE[name], rel=0.15)
    assert 0.01 < fit.typical < fit.bad < 0.15


def test_a_fit_without_a_term_is_no_better_and_leaves_it_at_nothing() -> None:
    points = measured(TRUE)
    fit = fit_steps(points, without=["d"])
    assert fit.constants["d"] == 0
    assert fit.typical > 0.02 > fit_steps(points).typical


def test_no_constant_is_below_zero() -> None:
    points = measured({**TRUE, "a": 0.0, "g": 0.0})
    for point in points:
        point.times_s = [seconds - 2e-7 * point.cells for seconds in point.times_s]
    assert min(fit_steps(points).constants.values()) == 0


def test_steps_of_a_device_give_its_constants() -> None:
    """Without tiles the simulated device takes a time that the model can say exactly."""
    cost = CostModel(tile=1, context_s=1e-6, sampling_s=0.001)
    points = timed_points(SimulatedRuntime(cost), 512, 1.0, lambda done, what: None)
    token_s, cell_s = 0.525 * cost.token_s, 0.525 * cost.context_s  # 95% of it on two cores
    assert fit_steps(points).constants == pytest.approx(
        {
            "c": 0.85 * cost.base_s,
            "a": cell_s,
            "d": token_s + cell_s + cost.sampling_s,
            "g": 0,
            "b": token_s + cell_s / 2,
            "e": cell_s / 2,
        },
        rel=1e-6,
        abs=1e-12,
    )


@pytest.mark.parametrize("mode", ["batched", "sequential", "depth2", "rigid"])
def test_every_point_is_timed_and_none_is_larger_than_asked(mode: str) -> None:
    told: list[float] = []
    points = timed_points(SimulatedRuntime(mode=mode), 64, 30.0, lambda done, what: told.append(done))
    counts = {len(point.times_s) for point in points}
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 1
    assert {point.decoders for point in points} == {1, 2, 4}
    assert max(point.chunk for point in points) <= 64
    assert told == sorted(told)
    assert told[-1] <= 1


def test_chunks_make_whole_tiles_as_laws_do() -> None:
    points = [point for point in measured(TRUE) if point.chunk >= 100]
    assert points
    assert all((point.chunk + point.decoders) % 16 == 0 for point in points)


@pytest.mark.parametrize(("mode", "said"), [("windowed", "drop"), ("fragile", "drop")])
def test_a_runtime_that_cannot_repeat_a_step_is_refused(mode: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        timed_points(SimulatedRuntime(mode=mode), 512, 1.0, lambda done, what: None)
