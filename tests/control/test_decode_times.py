"""What decodes take alone, and how many threads they get, from times that change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.control.estimate import SHIFT
from dlfp_edge.decode_times import LEAST_BESIDE, SAMPLES, SHIFTED, DecodeTimes
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import Capabilities, LoadOptions

TARGET_S = 0.0175


def _by_threads(flat: dict[tuple[int, int], float]) -> dict[int, dict[int, float]]:
    nested: dict[int, dict[int, float]] = {}
    for (threads, number), value in flat.items():
        nested.setdefault(threads, {})[number] = value
    return nested


def capabilities(
    times: dict[int, float],
    several: dict[tuple[int, int], float] | None = None,
    *,
    invariant: bool = True,
    batched: bool = True,
    stretch: dict[tuple[int, int], float] | None = None,
    per_cell: dict[int, float] | None = None,
) -> Capabilities:
    runtime = runtime_provider("simulated").load(LoadOptions(None, cpus=(0, 1), cpu_limit=2))
    return replace(
        runtime.capabilities,
        decode_threads=2,
        decode_s_by_threads=times,
        decodes_s=_by_threads(several or {}),
        decode_s_per_cell=per_cell or {},
        stretch_beside=_by_threads(stretch or {}),
        threads_invariant=invariant,
        batched=batched,
    )


@pytest.mark.parametrize(
    ("times", "fewest"),
    [
        ({1: 0.014, 2: 0.010}, 1),
        ({1: 0.0165, 2: 0.010}, 1),
        ({1: 0.0185, 2: 0.010}, 2),
        ({1: 0.030, 2: 0.015, 4: 0.010, 8: 0.012}, 2),
        ({1: 0.010}, 1),
    ],
)
def test_beside_background_the_fewest_that_keep_the_target(times: dict[int, float], fewest: int) -> None:
    decodes = DecodeTimes(capabilities(times))
    assert decodes.beside(1, TARGET_S, 0.0) == fewest
    assert decodes.fastest(1) == min(times, key=lambda threads: times[threads])


def test_a_target_nothing_meets_gets_the_fastest() -> None:
    decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    assert decodes.beside(1, 0.005, 0.0) == 2
    assert decodes.beside(1, 0.1, 0.0) == 1


def test_several_decodes_have_threads_and_times_of_their_own() -> None:
    decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}, {(1, 4): 0.080, (2, 4): 0.040}))
    assert decodes.alone_s(4) == pytest.approx(0.040)
    assert decodes.beside(1, 1.75 * 0.010, 0.0) == 1
    assert decodes.beside(4, 1.75 * 0.040, 0.0) == 2


@pytest.mark.parametrize(("batched", "eight_s"), [(True, 0.010), (False, 0.080)])
def test_a_number_nobody_measured_follows_what_the_runtime_says_of_batches(batched: bool, eight_s: float) -> None:
    decodes = DecodeTimes(capabilities({2: 0.010}, batched=batched))
    assert decodes.alone_s(8) == pytest.approx(eight_s)


def test_a_measured_number_moves_the_others_by_as_much() -> None:
    decodes = DecodeTimes(capabilities({1: 0.020, 2: 0.010}, {(2, 4): 0.030, (1, 4): 0.060, (2, 8): 0.040}))
    assert decodes.alone_s(3) == pytest.approx(0.070 / 3)
    assert decodes.alone_s(8, threads=1) == pytest.approx(0.080)
    assert decodes.alone_s(16) == pytest.approx(0.080)
    decodes.observe(2, 4, 100, 0.045, 0.0)
    assert decodes.alone_s(4) == pytest.approx(0.045)
    assert decodes.alone_s(8) == pytest.approx(0.060)
    assert decodes.alone_s(1, threads=1) == pytest.approx(0.030)
    for step in range(16):
        decodes.observe(2, 8, 100, 0.080, float(step))
    assert decodes.alone_s(4) == pytest.approx(0.060), "measured, and since then everything takes longer"


def test_gaps_beside_the_background_decide_on_threads() -> None:
    decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}, stretch={(1, 1): 1.1}))
    assert decodes.beside(1, TARGET_S, 0.0) == 1
    decodes.observe(1, 1, 10, 0.014, 0.0)
    for step in range(2):
        decodes.observe_beside(1, 1, 0, 0.021, 0.1 * step)
    assert decodes.beside(1, TARGET_S, 1.0) == 1, "a few slow gaps are no matter"
    for _ in range(8):
        decodes.observe_beside(1, 1, 0, 0.021, 1.0)
    assert decodes.beside(1, TARGET_S, 1.0) == 2
    assert decodes.beside_s(1, 1, 1.0) == pytest.approx(0.021)
    assert decodes.beside_s(1, 1, 1.0, slow=True) == pytest.approx(0.021)
    assert decodes.beside(1, TARGET_S, 100.0) == 1, "tried again after a while"


def test_more_readers_than_were_probed_say_nothing_of_fewer() -> None:
    decodes = DecodeTimes(capabilities({2: 0.010}, {(2, 2): 0.012}))
    decodes.observe(2, 1, 100, 0.010, 0.0)
    for step in range(16):
        decodes.observe(2, 24, 100, 0.040, float(step))
    assert decodes.alone_s(1) == pytest.approx(0.010)
    assert decodes.alone_s(24) == pytest.approx(0.040)
    unprobed = DecodeTimes(capabilities({}))
    unprobed.observe(2, 1, 100, 0.020, 0.0)
    for step in range(16):
        unprobed.observe(2, 8, 100, 0.060, float(step))
    assert unprobed.alone_s(1) == pytest.approx(0.020)
    assert unprobed.alone_s(7) == pytest.approx(0.060)


def test_a_context_twice_as_long_is_learned_anew() -> None:
    decodes = DecodeTimes(capabilities({2: 0.010}))
    for step in range(20):
        decodes.observe(2, 1, 100, 0.010, float(step))
    decodes.observe(2, 1, 201, 0.015, 20.0)
    assert decodes.alone_s(1) == pytest.approx(0.015)


def test_a_machine_that_slows_down_slows_every_count_by_as_much() -> None:
    decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    for step in range(16):
        decodes.observe(2, 1, 10, 0.015, float(step))
    assert decodes.alone_s(1, 1) == pytest.approx(0.021)
    assert decodes.beside(1, 1.75 * 0.015, 0.0) == 1


def test_measurements_age() -> None:
    decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    assert decodes.stale(1, 10, 0.0)
    decodes.observe(2, 1, 10, 0.010, 0.0)
    assert not decodes.stale(1, 20, 10.0)
    assert decodes.stale(1, 10, 10.5)
    assert decodes.stale(1, 21, 1.0)
    assert decodes.stale(2, 10, 1.0)


@pytest.mark.parametrize("invariant", [True, False])
def test_without_times_or_where_words_depend_on_the_count_it_stays(invariant: bool) -> None:
    decodes = DecodeTimes(capabilities({} if invariant else {1: 0.012, 2: 0.010}, invariant=invariant))
    assert {decodes.fastest(1), decodes.beside(1, TARGET_S, 0.0)} == {2}
    decodes.observe(2, 1, 10, 0.001, 0.0)
    assert {decodes.fastest(1), decodes.beside(1, TARGET_S, 0.0)} == {2}
    assert decodes.alone_s(1) == pytest.approx(0.001)


def test_times_go_along_with_the_cells_that_are_read() -> None:
    growing = capabilities({1: 0.020, 2: 0.010}, {(2, 8): 0.040}, per_cell={1: 2e-6, 8: 4e-6})
    decodes = DecodeTimes(growing)
    assert decodes.alone_s(1) == pytest.approx(0.010)
    decodes.reading(5000)
    assert decodes.alone_s(1) == pytest.approx(0.020)
    assert decodes.alone_s(1, threads=1) == pytest.approx(0.040), "on one thread a cell costs more, as all else does"
    assert decodes.alone_s(8) == pytest.approx(0.060)
    decodes.observe(2, 8, 5000, 0.090, 0.0)
    assert decodes.alone_s(8) == pytest.approx(0.090)
    assert decodes.alone_s(1) == pytest.approx(0.030), "the machine is slower than it was probed"
    decodes.reading(0)
    assert decodes.alone_s(8) == pytest.approx(0.060)


def test_beside_the_background_what_cells_cost_is_no_stretch() -> None:
    growing = capabilities({1: 0.010}, per_cell={1: 1e-6})
    decodes = DecodeTimes(growing)
    decodes.observe(1, 1, 0, 0.010, 0.0)
    for cells in range(0, 20_000, 1000):
        decodes.observe_beside(1, 1, cells, 1.2 * (0.010 + 1e-6 * cells), 1.0)
    decodes.reading(10_000)
    assert decodes.beside_s(1, 1, 1.0) == pytest.approx(1.2 * 0.020)


def test_slow_decodes_are_no_faster_than_usual_ones() -> None:
    decodes = DecodeTimes(capabilities({1: 0.010}, stretch={(1, 1): 1.7}))
    assert decodes.beside_s(1, 1, 0.0) == pytest.approx(0.017)
    assert decodes.beside_s(1, 1, 0.0, slow=True) == pytest.approx(0.017)


def test_a_target_nobody_asked_for_has_leeway_before_a_thread_more_is_taken() -> None:
    close = capabilities({1: 0.015, 2: 0.010}, stretch={(1, 1): 1.3})
    far = capabilities({1: 0.0195, 2: 0.010}, stretch={(1, 1): 1.1})
    assert DecodeTimes(close).beside(1, TARGET_S, 0.0) == 2
    assert DecodeTimes(close, leeway=1.25).beside(1, TARGET_S, 0.0) == 1
    assert DecodeTimes(close, leeway=1.25).beside(1, TARGET_S / 1.25, 0.0) == 2
    assert DecodeTimes(far, leeway=1.25).beside(1, TARGET_S, 0.0) == 2, "it does not decode nearly as fast alone"


def test_spare_cpus_are_left_by_decodes_beside_the_background_only() -> None:
    decodes = DecodeTimes(capabilities({1: 0.030, 2: 0.010}), spare=1)
    assert decodes.beside(1, TARGET_S, 0.0) == 1, "though it misses the target"
    assert decodes.fastest(1) == 2
    assert DecodeTimes(capabilities({2: 0.010}), spare=1).beside(1, TARGET_S, 0.0) == 2, "there is no smaller count"


def test_slow_gaps_keep_an_absolute_target_and_usual_ones_a_relative_one() -> None:
    chosen = {}
    for absolute in (False, True):
        decodes = DecodeTimes(capabilities({1: 0.014, 2: 0.010}), absolute=absolute)
        decodes.observe(1, 1, 0, 0.014, 0.0)
        for step in range(40):
            decodes.observe_beside(1, 1, 0, 0.020 if step % 8 == 0 else 0.015, 0.0)
        chosen[absolute] = decodes.beside(1, TARGET_S, 1.0)
    assert chosen == {False: 1, True: 2}


def test_decodes_beside_the_background_are_never_faster_than_alone() -> None:
    """What was known of them alone is from a slower machine then. Readers at a pace are never measured alone."""
    times = DecodeTimes(capabilities({1: 0.060, 2: 0.040}))
    for step in range(LEAST_BESIDE):
        assert times.alone_s(1) == 0.040
        times.observe_beside(1, 1, 0, 0.021, now=float(step))
    assert times.alone_s(1, 1) == pytest.approx(0.021)
    assert times.alone_s(1) == pytest.approx(0.014)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_four_decodes_alone_are_enough_to_follow_a_change_of_speed(factor: float) -> None:
    times = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    for step in range(SAMPLES):
        times.observe(2, 1, 0, 0.010, now=float(step))
    for step in range(SHIFTED):
        times.observe(2, 1, 0, 0.010 * factor, now=100.0 + step)
    changed = not 1 / SHIFT < factor < SHIFT
    assert times.alone_s(1) == pytest.approx(0.010 * factor if changed else 0.010, rel=0.001)
    assert times.alone_s(1, 1) == pytest.approx(1.4 * (times.alone_s(1) or 0.0))


@pytest.mark.parametrize("factor", [0.6, 1.1, 1.6])
def test_gaps_beside_the_background_that_change_ask_for_a_hold(factor: float) -> None:
    times = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    times.observe(2, 1, 0, 0.010, now=0.0)
    for step in range(40):
        times.observe_beside(1, 1, 0, 0.022, now=step / 40)
    assert not times.shifted(1, 1, 1.0)
    for step in range(LEAST_BESIDE):
        times.observe_beside(1, 1, 0, 0.022 * factor, now=1.0 + step / 40)
    assert times.shifted(1, 1, 2.0) == (factor != 1.1)


def test_gaps_from_long_ago_say_nothing_of_today() -> None:
    times = DecodeTimes(capabilities({1: 0.014, 2: 0.010}))
    for step in range(LEAST_BESIDE):
        times.observe_beside(1, 1, 0, 0.016, now=float(step))
    for step in range(SAMPLES):
        times.observe(2, 1, 0, 0.030, now=100.0 + step)
    times.observe_beside(1, 1, 0, 0.048, now=120.0)
    assert times.alone_s(1) == pytest.approx(0.030)
