"""The law that trusts a latency model fitted beforehand: the largest chunk predicted to fit, and never more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.control import Observation, View, make_chunk_controller
from dlfp_edge.control.edge import UNKNOWN_CAP
from dlfp_edge.control.predictor import CONSTANTS, step_s
from dlfp_edge.errors import UsageError

FITTED = {"c": 0.008, "a": 1e-6, "d": 0.006, "g": 1e-6, "b": 0.002, "e": 5e-7}
CLOSE = 1 + 1e-9


def view(
    decoders: int = 1,
    target_s: float | None = None,
    cells: int = 0,
    start: int = 0,
    most: int = 2048,
    tile: int = 1,
) -> View:
    return View(decoders, 4096, 1, target_s, most, tile, None, cells, start)


def chunk(beside: View, constants: dict[str, float] | None = None, **more: float) -> int:
    tokens = make_chunk_controller("predictor", parameters={**(constants or FITTED), **more}).budget(beside, 0.0)
    assert tokens is not None
    return tokens


def predicted_s(beside: View, tokens: int, constants: dict[str, float]) -> float:
    in_order = [constants[name] for name in CONSTANTS]
    return step_s(in_order, beside.decoders, beside.cells, tokens, beside.prefill_start)


constant = st.just(0.0) | st.floats(1e-9, 0.05)
all_constants = st.fixed_dictionaries({name: st.floats(0, 1e-4) if name in "age" else constant for name in CONSTANTS})
views = st.builds(
    view,
    decoders=st.integers(1, 16),
    target_s=st.floats(1e-4, 2),
    cells=st.integers(0, 1 << 17),
    start=st.integers(0, 1 << 17),
    most=st.integers(1, 8192),
    tile=st.sampled_from([1, 8, 16, 64]),
)


def test_the_chunk_is_what_the_formula_leaves_of_the_target() -> None:
    # 0.008 + 2 x 0.006 + 1e-6 x 1000 = 21 ms of 61; 20 tokens of 2 ms each, none of it for cells
    linear = {**FITTED, "g": 0.0, "e": 0.0}
    assert chunk(view(2, 0.0611, cells=1000), linear) == 20
    assert chunk(view(2, 0.0611, cells=1000), linear, margin=0.5) == 4
    # each also reads 2 x 1000 cells of its prompt, at 1 ms for 2000, and others of its own chunk
    assert chunk(view(2, 0.0611, cells=1000, start=1000), {**FITTED, "g": 0.0}) == 13


@given(beside=views, constants=all_constants, margin=st.floats(0.1, 2))
def test_no_step_is_planned_that_is_predicted_above_the_target(
    beside: View, constants: dict[str, float], margin: float
) -> None:
    tokens = chunk(beside, constants, margin=margin)
    assert 1 <= tokens <= beside.most
    assert beside.target_s is not None
    fits = predicted_s(beside, tokens, constants) <= beside.target_s * margin * CLOSE
    assert fits or tokens == 1


@given(beside=views, constants=all_constants)
def test_no_larger_chunk_would_fit_where_there_are_no_tiles(beside: View, constants: dict[str, float]) -> None:
    tokens = chunk(replace(beside, tile=1), constants)
    assert beside.target_s is not None
    assert tokens == beside.most or predicted_s(beside, tokens + 1, constants) * CLOSE >= beside.target_s


@given(beside=views, constants=all_constants, more=st.integers(1, 4096), factor=st.floats(1, 4))
def test_a_longer_target_allows_no_less_and_more_context_no_more(
    beside: View, constants: dict[str, float], more: int, factor: float
) -> None:
    assert beside.target_s is not None
    tokens = chunk(beside, constants)
    assert chunk(replace(beside, target_s=beside.target_s * factor), constants) >= tokens
    assert chunk(replace(beside, cells=beside.cells + more), constants) <= tokens
    assert chunk(replace(beside, prefill_start=beside.prefill_start + more), constants) <= tokens


def test_totals_are_whole_tiles() -> None:
    assert chunk(view(1, 0.060, tile=1)) == 22
    assert chunk(view(1, 0.050, tile=1)) == 17
    assert chunk(view(1, 0.050, tile=16)) == 15


def test_it_follows_the_engines_target_unless_it_has_its_own() -> None:
    followed = make_chunk_controller("predictor", parameters=FITTED)
    assert followed.steered, "the backstop enforces the target that it plans for"
    assert followed.budget(view(target_s=0.060), 0.0) == 22
    assert followed.budget(view(target_s=None), 0.0) == UNKNOWN_CAP
    own = make_chunk_controller("predictor", parameters={**FITTED, "T": 0.060})
    assert not own.steered, "the backstop would enforce another target"
    assert own.budget(view(target_s=None), 0.0) == own.budget(view(target_s=9.0), 0.0) == 22


def test_it_learns_nothing() -> None:
    law = make_chunk_controller("predictor", parameters=FITTED)
    before = law.budget(view(target_s=0.060), 0.0)
    for _ in range(100):
        update = law.observe(Observation(1.0, 1.0, 0.060, 22, 22))
        assert not update.changed
        assert update.reason
        assert update.value == law.state == before
    assert law.budget(view(target_s=0.060), 0.0) == before


@pytest.mark.parametrize("missing", ["c", "a", "b", "e"])
def test_without_constants_it_says_what_fits_them(missing: str) -> None:
    given = {name: value for name, value in FITTED.items() if name != missing}
    with pytest.raises(UsageError, match="`dlfp-edge bench predictor`") as refused:
        make_chunk_controller("predictor", parameters=given)
    assert "\n" not in str(refused.value)


def test_a_constant_may_be_nothing_and_not_less() -> None:
    nothing = dict.fromkeys(CONSTANTS, 0.0)
    assert chunk(view(target_s=0.060), nothing) == 2048, "no step takes any time"
    for name in CONSTANTS:
        with pytest.raises(UsageError, match=f"{name}=-1.*from 0 on"):
            make_chunk_controller("predictor", parameters={**FITTED, name: -1.0})
        with pytest.raises(UsageError, match="from 0 on"):
            make_chunk_controller("predictor", parameters={**FITTED, name: float("nan")})
    for name in ("T", "margin"):
        with pytest.raises(UsageError, match=f"{name}=0.*above 0"):
            make_chunk_controller("predictor", parameters={**FITTED, name: 0.0})
