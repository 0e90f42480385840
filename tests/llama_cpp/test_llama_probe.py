"""Thread counts and the effect of priority, from measurements."""

from __future__ import annotations

import pytest
from llama_harness import CPUS

from dlfp_edge.runtime import Lane, LaneSpec
from dlfp_edge.runtimes.llama_cpp.probe import ProbeResult, prefill_counts, probe, thread_counts
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime


def test_counts_worth_trying() -> None:
    assert thread_counts(1, 1) == [1]
    assert thread_counts(2, 1) == [1, 2]
    assert thread_counts(12, 6) == [1, 2, 4, 6, 8, 12]
    assert thread_counts(4, 8) == [1, 2, 4]
    assert prefill_counts(8, 4) == [4, 8]
    assert prefill_counts(2, 1) == [2]
    assert prefill_counts(2, 8) == [2]


def test_decode_takes_the_fewest_threads_within_bounds() -> None:
    found = ProbeResult({1: 0.030, 2: 0.016, 4: 0.012, 8: 0.013}, {}, {4: 300.0, 8: 400.0})
    assert (found.solo_threads, found.decode_threads, found.prefill_threads) == (4, 2, 8)


@pytest.mark.parametrize(("lowest_s", "disjoint_s", "effective"), [(0.02, 0.018, True), (0.04, 0.018, False)])
def test_priority_that_does_nothing_is_seen(lowest_s: float, disjoint_s: float, effective: bool) -> None:
    found = ProbeResult({1: 0.018}, {}, {2: 300.0}, lowest_s, disjoint_s)
    assert found.priority_effective is effective
    assert ProbeResult({1: 0.018}, {}, {1: 300.0}).priority_effective is None


def test_a_probe_of_a_model(tiny_runtime: object) -> None:
    threads = min(2, len(CPUS))
    found = probe(tiny_runtime, tiny_runtime._open, threads, CPUS)  # type: ignore[arg-type,attr-defined]
    assert set(found.decode_s_by_threads) == set(thread_counts(threads, threads))
    assert all(4 in found.decodes_s[count] for count in found.decode_s_by_threads)
    assert all(rate > 0 for rate in found.prefill_rate_by_threads.values())
    assert set(found.decode_s_per_cell) == {1, 4, 8}
    assert (found.priority_effective is None) == (threads < 2)


@pytest.mark.parametrize("cpus", [2, 4, 8])
@pytest.mark.parametrize("cost", [CostModel(base_parallel=0.95), CostModel(token_s=0.0003), CostModel()])
def test_a_probe_ends_on_any_machine(monkeypatch: pytest.MonkeyPatch, cpus: int, cost: CostModel) -> None:
    """Where all CPUs decode fastest, the counts beside are no power of two; where prefill is quick, it ends first."""
    monkeypatch.setattr("dlfp_edge.runtimes.llama_cpp.probe.physical_cores", lambda: cpus)
    runtime = SimulatedRuntime(cost, mode="lanes", cpus=range(cpus))
    found = probe(runtime, runtime.open_lane, cpus, range(cpus))
    assert found.priority_effective is not None
    assert all(stretch > 0 for numbers in found.stretch_beside.values() for stretch in numbers.values())


def test_what_a_cell_costs_is_seen_where_a_step_reads_all_of_them() -> None:
    cost = CostModel(context_s=2e-5)
    runtime = SimulatedRuntime(cost, mode="lanes", cpus=range(2))

    def open_lane(spec: LaneSpec) -> Lane:
        lane = runtime.open_lane(spec)
        lane.reads_all = True
        return lane

    found = probe(runtime, open_lane, 2, range(2)).decode_s_per_cell
    assert found[8] == pytest.approx(cost.pass_s(1, 2, 1) - cost.pass_s(1, 2), rel=0.05)
    assert found[1] == pytest.approx(found[8] / 8, rel=0.05), "this one reads its own alone"
    assert probe(runtime, runtime.open_lane, 2, range(2)).decode_s_per_cell == {}
