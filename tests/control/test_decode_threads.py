"""How many threads foreground decodes get, from times that change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.decode_threads import DecodeThreads
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import Capabilities, LoadOptions

ALONE_S, TARGET_S = 0.010, 0.0175


def capabilities(times: dict[int, float], *, invariant: bool = True) -> Capabilities:
    runtime = runtime_provider("simulated").load(LoadOptions(None, cpus=(0, 1), cpu_limit=2))
    return replace(runtime.capabilities, decode_threads=2, decode_s_by_threads=times, threads_invariant=invariant)


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
    choice = DecodeThreads(capabilities(times))
    assert choice.beside(TARGET_S, ALONE_S) == fewest
    assert choice.fastest == min(times, key=lambda threads: times[threads])


def test_a_target_nothing_meets_gets_the_fastest() -> None:
    choice = DecodeThreads(capabilities({1: 0.014, 2: 0.010}))
    assert choice.beside(0.005, ALONE_S) == 2
    assert choice.beside(0.1, ALONE_S) == 1


def test_a_probe_that_a_busy_machine_spoilt_is_corrected() -> None:
    choice = DecodeThreads(capabilities({1: 0.025, 2: 0.010}))
    assert choice.beside(TARGET_S, ALONE_S) == 2
    for step in range(16):
        threads = choice.in_turn()
        choice.observe(threads, {1: 0.014, 2: 0.010}[threads], float(step))
    assert choice.beside(TARGET_S, ALONE_S) == 1


def test_holds_measure_every_count_and_the_fastest_most() -> None:
    choice = DecodeThreads(capabilities({1: 0.030, 2: 0.015, 4: 0.010, 8: 0.012}))
    turns = [choice.in_turn() for _ in range(12)]
    assert [turns.count(threads) for threads in (1, 2, 4, 8)] == [2, 2, 6, 2]


def test_measurements_age() -> None:
    choice = DecodeThreads(capabilities({1: 0.014, 2: 0.010}))
    assert choice.stale(0.0)
    choice.observe(1, 0.014, 0.0)
    assert not choice.stale(10.0)
    assert choice.stale(10.5)
    assert not DecodeThreads(capabilities({1: 0.014})).stale(0.0)


@pytest.mark.parametrize("invariant", [True, False])
def test_without_times_or_where_words_depend_on_the_count_it_stays(invariant: bool) -> None:
    choice = DecodeThreads(capabilities({} if invariant else {1: 0.012, 2: 0.010}, invariant=invariant))
    choice.observe(1, 0.001, 0.0)
    assert {choice.fastest, choice.in_turn(), choice.beside(TARGET_S, ALONE_S)} == {2}
