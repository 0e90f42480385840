"""The laws of others: what they give for the figures that were published with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.control import Observation, View, make_chunk_controller
from dlfp_edge.errors import UsageError

LAWS = ["stall-cap", "tick", "pressure"]


def view(decoders: int = 1, prompts: int = 1, most: int = 1 << 16) -> View:
    return View(decoders, 4096, prompts, None, most, tile=16)


def step(gap_s: float, used: int, budget: int | None = None) -> Observation:
    return Observation(gap_s, None, None, used if budget is None else budget, used)


def test_the_stall_cap_is_what_the_best_rate_computes_in_the_stall() -> None:
    law = make_chunk_controller("stall-cap")
    assert law.budget(view(), 0.0) == 512, "before anything is measured"
    assert law.observe(step(0.512, 512)).value == 448  # 1000 tokens/s for 500 ms, on a grid of 64
    assert law.observe(step(0.224, 448)).value == 960  # 2000 tokens/s
    assert not law.observe(step(0.960, 960)).changed, "a slow chunk must not shrink the cap it was measured at"
    assert law.observe(step(0.05, 960)).value == 2048
    assert law.budget(view(), 0.0) == 2048


def test_the_stall_cap_has_a_floor_on_slow_devices() -> None:
    law = make_chunk_controller("stall-cap")
    law.observe(step(5.12, 512))
    assert law.budget(view(), 0.0) == 256
    tuned = make_chunk_controller("stall-cap", parameters={"T": 0.08, "c_min": 16})
    tuned.observe(step(0.512, 512))
    assert tuned.budget(view(), 0.0) == 80, "a grid of 64 would leave nothing to choose"


def test_the_stall_cap_learns_nothing_from_the_end_of_a_prompt() -> None:
    law = make_chunk_controller("stall-cap")
    assert not law.observe(step(0.0001, used=20, budget=512)).changed
    small = make_chunk_controller("stall-cap")
    assert small.budget(view(most=64), 0.0) == 64
    assert small.observe(step(0.128, used=64, budget=64)).changed, "all that this runtime can take in a step"


@pytest.mark.parametrize(("tick_s", "tokens"), [(0.5, 512), (0.499, 256), (1.1, 1024), (5.0, 2048), (0.01, 256)])
def test_a_tick_halves_the_chunk_until_it_fits(tick_s: float, tokens: int) -> None:
    law = make_chunk_controller("tick", parameters={"T": tick_s})
    assert law.budget(view(), 0.0) == 2048, "before anything is measured"
    law.observe(step(2.0, 2048))
    assert law.budget(view(), 0.0) == tokens


def test_a_tick_follows_the_last_chunk_in_both_directions() -> None:
    law = make_chunk_controller("tick")
    law.observe(step(2.0, 2048))
    law.observe(step(0.05, 512))
    assert law.state == 2048
    law.observe(step(20.0, 2048))
    assert law.state == 256
    assert not law.observe(step(0.02, used=10, budget=256)).changed, "the end of a prompt says nothing of the rate"


def test_pressure_is_two_prompts_beside_a_decode() -> None:
    law = make_chunk_controller("pressure")
    assert law.budget(view(decoders=1, prompts=1), 0.0) == 16384 - 1
    assert law.budget(view(decoders=0, prompts=9), 0.0) == 16384
    assert law.budget(view(decoders=1, prompts=2), 0.0) == 1280 - 1
    assert law.budget(view(decoders=8, prompts=3), 0.0) == 1280 - 8, "budgets are of the whole step"
    assert law.state == 1280
    tuned = make_chunk_controller("pressure", parameters={"c_min": 32, "c_max": 512})
    assert tuned.budget(view(decoders=64, prompts=2), 0.0) == 1
    assert not law.observe(step(1.0, 100)).changed


@given(
    name=st.sampled_from(LAWS),
    steps=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 4096)), max_size=40),
    decoders=st.integers(0, 64),
    prompts=st.integers(0, 64),
    most=st.integers(1, 4096),
)
def test_a_cap_stays_usable(name: str, steps: list[tuple[float, int]], decoders: int, prompts: int, most: int) -> None:
    law = make_chunk_controller(name)
    assert law.name == name
    for gap_s, used in [*steps, (0.0, 0)]:
        cap = law.budget(view(decoders, prompts, most), 0.0)
        assert cap is not None
        assert 1 <= cap <= most
        update = law.observe(step(gap_s, min(used, cap), cap))
        assert update.value == law.state
        assert update.changed == (update.reason is None)


@given(rates=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_the_stall_cap_never_shrinks_once_it_was_measured(rates: list[float]) -> None:
    law = make_chunk_controller("stall-cap")
    caps = [law.observe(step(512 / rate, 512)).value or 0.0 for rate in rates]
    assert caps == sorted(caps)
    assert all(cap % 64 == 0 and 256 <= cap <= 2048 for cap in caps)


@given(each_s=st.floats(1e-6, 1.0), decoders=st.integers(1, 8))
def test_a_tick_is_the_largest_half_that_fits(each_s: float, decoders: int) -> None:
    law = make_chunk_controller("tick")
    law.observe(step(2048 * each_s, 2048))
    cap = law.budget(view(decoders), 0.0)
    assert cap in (2048, 1024, 512, 256)
    assert cap * each_s <= 0.5 * 1.000001 or cap == 256
    assert cap == 2048 or 2 * cap * each_s > 0.5 * 0.999999


@pytest.mark.parametrize("name", LAWS)
def test_a_bound_beyond_the_others_default_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"above c_max=100 .*set both"):
        make_chunk_controller(name, parameters={"c_max": 100})
    assert make_chunk_controller(name, "a100").budget(view(), 0.0) is not None
