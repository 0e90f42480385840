"""The laws, checked against the paper's figures and against what small devices do to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.control import Controller, Observation, View, controller_names, make_chunk_controller, make_controller
from dlfp_edge.control.edge import quantise
from dlfp_edge.control.share import WINDOW
from dlfp_edge.errors import UsageError
from dlfp_edge.settings import Placement


def view(
    decoders: int = 1,
    target_s: float | None = None,
    most: int = 8192,
    tile: int = 16,
    fits: float | None = None,
    prompts: int = 1,
) -> View:
    return View(decoders, 4096, prompts, target_s, most, tile, fits)


def step(gap_s: float, budget: int, used: int | None = None, target_s: float | None = None) -> Observation:
    return Observation(gap_s, None, target_s, budget, budget if used is None else used)


def test_the_paper_preset_gives_the_papers_update() -> None:
    law = make_chunk_controller("dlfp", "a100")
    assert law.budget(view(), 0.0) == 3072
    assert law.observe(step(0.05751, 3072)).value == 4224


def test_the_paper_preset_floors_to_128_and_stays_within_its_bounds() -> None:
    law = make_chunk_controller("dlfp", "a100")
    assert law.observe(step(0.081, 3072)).value == 2944
    assert law.observe(step(10.0, 2944)).value == 1024
    assert law.observe(step(0.001, 1024)).value == 6144


def test_the_paper_preset_resets_when_nobody_decodes() -> None:
    law = make_chunk_controller("dlfp", "a100")
    law.observe(step(0.05751, 3072))
    assert law.budget(view(decoders=0), 0.0) == 3072
    assert law.resets == 1
    law.budget(view(decoders=0), 0.0)
    assert law.resets == 1, "a state that is initial already was reset"


def test_the_bounded_revision_moves_at_most_its_bound() -> None:
    law = make_chunk_controller("dlfp-bounded", "a100", {"max_change": 0.1})
    assert law.observe(step(0.010, 3072)).value == 3328  # 3072 x 1.1, floored to 128


def test_cadence_follows_the_scheduler_and_not_the_step() -> None:
    law = make_chunk_controller("dlfp-cadence")
    assert not law.observe(Observation(0.4, None, None, 3072, 3072)).changed
    assert law.observe(Observation(0.4, 0.05751, None, 3072, 3072)).value == 4224


def test_a_short_last_chunk_does_not_inflate_the_edge_cap() -> None:
    law = make_chunk_controller("dlfp", parameters={"c_initial": 64})
    update = law.observe(step(0.020, budget=64, used=3, target_s=0.080))
    assert not update.changed
    assert update.value == 64


def test_an_over_target_step_shrinks_the_edge_cap_even_unfilled() -> None:
    law = make_chunk_controller("dlfp", parameters={"c_initial": 64})
    value = law.observe(step(0.100, budget=64, used=40, target_s=0.080)).value
    assert value is not None
    assert value < 64


def test_the_edge_cap_survives_a_pause() -> None:
    law = make_chunk_controller("dlfp", parameters={"c_initial": 64})
    settled = law.observe(step(0.120, 64, target_s=0.080)).value
    law.budget(view(decoders=0), 0.0)
    assert law.state == settled


def test_the_edge_law_settles_on_the_target() -> None:
    law = make_chunk_controller("dlfp")
    target_s, decode_s, per_token_s = 0.080, 0.014, 0.0021
    for _ in range(900):
        cap = law.budget(view(target_s=target_s, tile=1), 0.0)
        assert cap is not None
        law.observe(step(decode_s + per_token_s * cap, cap, target_s=target_s))
    assert law.state == pytest.approx((target_s - decode_s) / per_token_s, rel=0.05)


def test_the_first_edge_cap_is_what_is_predicted_to_fit() -> None:
    law = make_chunk_controller("dlfp")
    assert law.budget(view(target_s=0.040, tile=1, fits=8), 0.0) == 8
    assert law.budget(view(target_s=0.160, tile=1, fits=32), 0.0) == 32
    assert make_chunk_controller("dlfp").budget(view(target_s=0.040, tile=1), 0.0) == 16
    given_cap = make_chunk_controller("dlfp", parameters={"c_initial": 64})
    assert given_cap.budget(view(target_s=0.040, tile=1, fits=8), 0.0) == 64


def test_the_edge_cap_goes_along_with_a_relative_target() -> None:
    """More readers have a longer target, and beside them there is room for more, at once and not after a few steps."""
    law = make_chunk_controller("dlfp", parameters={"c_initial": 10})
    law.observe(step(0.040 * 0.85, 10, target_s=0.040))
    one = law.budget(view(target_s=0.040, tile=1), 0.0)
    eight = law.budget(view(8, target_s=0.160, tile=1), 0.0)
    assert (one, eight) == (10, 40)
    assert law.budget(view(target_s=0.040, tile=1), 0.0) == 10, "asking has changed nothing"
    absolute = make_chunk_controller("dlfp", parameters={"c_initial": 10, "T": 0.040})
    absolute.observe(step(0.040 * 0.85, 10, target_s=0.040))
    assert absolute.budget(view(8, target_s=0.160, tile=1), 0.0) == 10


@given(
    steps=st.lists(st.tuples(st.floats(0.0001, 5), st.integers(0, 4096), st.floats(0.001, 2)), max_size=50),
    fits=st.none() | st.floats(-100, 10_000),
    decoders=st.integers(1, 64),
    tile=st.sampled_from([1, 8, 16, 64]),
    name=st.sampled_from(["dlfp", "dlfp-bounded"]),
)
def test_the_edge_cap_stays_usable(
    steps: list[tuple[float, int, float]], fits: float | None, decoders: int, tile: int, name: str
) -> None:
    law = make_chunk_controller(name)
    learned_at_s = None
    for gap_s, used, target_s in steps:
        cap = law.budget(view(decoders, target_s, most=2048, tile=tile, fits=fits), 0.0)
        assert cap is not None
        assert 1 <= cap <= 2048
        before = law.state
        update = law.observe(step(gap_s, cap, min(used, cap), target_s))
        assert before is not None
        assert update.value is not None
        if gap_s > target_s and used:
            there = before * target_s / (learned_at_s or target_s)
            assert update.value <= max(1.0, there * 1.000001), "a step over its target grew the cap"
        learned_at_s = target_s if used and cap else learned_at_s


@given(cap=st.integers(1, 4096), decoders=st.integers(0, 64), tile=st.sampled_from([1, 16, 64]))
def test_quantising_rounds_the_total_and_never_to_nothing(cap: int, decoders: int, tile: int) -> None:
    out = quantise(cap, decoders, tile)
    assert 1 <= out <= cap
    assert out == cap or (out + decoders) % tile == 0
    assert (cap - out) <= (cap + decoders) / 8


def shares(gap_of: dict[int, float], target_s: float, windows: int, law: Controller | None = None) -> list[int]:
    """The threads a law for lanes gives, window by window, where gaps depend on them as `gap_of` says."""
    law = law or make_controller(Placement.LANES, "dlfp")
    chosen = []
    for _ in range(windows):
        threads = law.budget(view(most=max(gap_of)), 0.0)
        assert threads is not None
        chosen.append(threads)
        for _ in range(WINDOW):
            law.observe(Observation(gap_of[threads], None, target_s, threads, threads))
    return chosen


def test_the_share_shrinks_over_its_target_and_comes_back() -> None:
    law = make_controller(Placement.LANES, "dlfp")
    slow = {1: 0.020, 2: 0.030, 3: 0.045, 4: 0.060}
    assert shares(slow, 0.020, 6, law)[-1] == 1
    fast = {threads: gap_s / 3 for threads, gap_s in slow.items()}
    assert shares(fast, 0.020, 8, law)[-1] == 4


def test_the_share_stays_below_a_count_whose_gaps_were_too_long() -> None:
    chosen = shares({1: 0.010, 2: 0.015, 3: 0.021, 4: 0.030}, 0.020, 90)
    assert chosen[-80:] == [2] * 80


@pytest.mark.parametrize("fewer_s", [0.030, 0.029, 0.040])
def test_a_smaller_share_that_shortens_no_gap_is_given_back(fewer_s: float) -> None:
    """It would cost the background its throughput and gain the reader nothing."""
    chosen = shares({1: fewer_s, 2: 0.030}, 0.020, 200)
    assert chosen.count(1) <= 3
    assert chosen[-1] == 2


@pytest.mark.parametrize(
    ("placement", "name", "says"),
    [
        (Placement.SHARED, "dlpf", "did you mean 'dlfp'"),
        (Placement.SHARED, "fixed:0", "fixed:1 or more"),
        (Placement.SHARED, "fixed:many", "whole number"),
        (Placement.SHARED, "static", "--placement lanes"),
        (Placement.LANES, "fixed:32", "--placement shared"),
        (Placement.LANES, "statik", "did you mean 'static'"),
    ],
)
def test_a_wrong_name_is_met_with_the_nearest(placement: Placement, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_controller(placement, name)


def test_a_wrong_parameter_is_met_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'c_min'"):
        make_chunk_controller("dlfp", parameters={"cmin": 3})
    with pytest.raises(UsageError, match="has no parameter"):
        make_chunk_controller("unlimited", parameters={"c_min": 3})


@pytest.mark.parametrize("placement", [Placement.LANES, Placement.SHARED])
def test_every_listed_name_makes_a_controller(placement: Placement) -> None:
    fitted = {"predictor": {"c": 0.014, "a": 0.0, "b": 0.002, "e": 0.0}}
    for name in controller_names(placement):
        assert make_controller(placement, name.replace("N", "32"), parameters=fitted.get(name)).name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_parameter_must_be_a_number_above_zero(value: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        make_chunk_controller("dlfp", parameters={"T": value})


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(UsageError, match="swap them"):
        make_chunk_controller("dlfp", parameters={"c_min": 100, "c_max": 10})


@pytest.mark.parametrize(("gap_s", "target_s"), [(0.0, 0.1), (0.0, 0.0), (0.1, 0.0)])
def test_a_gap_or_target_of_no_time_teaches_nothing(gap_s: float, target_s: float) -> None:
    for law in (make_chunk_controller("dlfp"), make_controller(Placement.LANES, "dlfp")):
        law.budget(view(target_s=target_s, most=8), 0.0)
        for _ in range(2 * WINDOW):
            assert not law.observe(step(gap_s, 4, target_s=target_s)).changed
