"""GPUs as devices of the simulated runtime: what their steps take, and how they are asked for by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import LaneSpec, LoadOptions, Output, Priority, Runtime, Sampling, Segment, Step, StepResult
from dlfp_edge.runtimes.simulated import Mode, SimulatedRuntime
from dlfp_edge.runtimes.simulated.gpu import GpuCost, device_names, gpu_device

COST = GpuCost(
    device="test",
    step_s=0.002,
    weights_s=0.001,
    token_s=1e-5,
    output_s=1e-6,
    score_s=1e-9,
    cell_s=1e-7,
    exchange_s=2e-6,
    host_s=0.003,
    copy_s=0.0,
)


def load(**options: str) -> Runtime:
    return runtime_provider("simulated").load(LoadOptions(None, cpus=(0, 1), cpu_limit=2, options=options))


def test_decodes_read_weights_and_cells_and_prefill_computes() -> None:
    decode = COST.step_time_s([(10_000, 1)], outputs=1)
    assert decode == pytest.approx(0.002 + 0.001 + 2e-6 + 1e-7 * 10_001)
    prefill = COST.step_time_s([(4000, 8000)], outputs=0)
    assert prefill == pytest.approx(0.002 + 8000 * (1e-5 + 2e-6) + 1e-9 * 8000 * (4000 + 4000.5))


def test_a_decode_beside_a_prefill_waits_for_all_of_it() -> None:
    together = COST.step_time_s([(10_000, 1), (0, 8000)], outputs=1)
    assert together > COST.step_time_s([(0, 8000)], outputs=0)


def test_two_gpus_halve_the_work_and_add_what_they_tell_each_other() -> None:
    one, two = gpu_device("a100-qwen3-06b").cost, gpu_device("a100x2-qwen3-06b").cost
    assert two.token_s == pytest.approx(one.token_s / 2)
    assert two.weights_s == pytest.approx(one.weights_s / 2)
    assert (one.exchange_s, two.exchange_s > 0) == (0.0, True)
    assert two.step_s > one.step_s


def test_larger_models_take_longer() -> None:
    costs = [gpu_device(f"a100x2-qwen3-{size}").cost.step_time_s([(0, 8192)], 1) for size in ("06b", "8b", "32b")]
    assert costs == sorted(costs)


def steps(depth: int) -> tuple[StepResult, StepResult, float]:
    """Two decodes, each submitted as soon as the scheduler may, and when it heard of the first."""
    runtime = SimulatedRuntime(COST, replace(Mode(), depth=depth), cpus=(0,))
    lane = runtime.open_lane(LaneSpec("shared", Priority.NORMAL, 2, 64))
    for sequence in range(2):
        lane.open(sequence, Sampling())
    decodes = [Step((Segment(sequence, 0, (7,), {0: Output.TOKEN}),), 1) for sequence in range(2)]
    for step in decodes[:depth]:
        lane.submit(step)
    [first] = runtime.wait(None)
    heard = runtime.clock.now()
    for step in decodes[depth:]:
        lane.submit(step)
    [second] = runtime.wait(None)
    return first, second, heard


def test_a_synchronous_device_idles_while_the_host_works() -> None:
    first, second, heard = steps(depth=1)
    assert heard == pytest.approx(first.completed + COST.host_s)
    assert second.submitted == pytest.approx(first.completed + COST.host_s)
    assert first.sampling_s == COST.host_s  # its reader waits for it at every token


def test_a_queued_step_runs_while_the_host_works() -> None:
    first, second, heard = steps(depth=2)
    assert heard == pytest.approx(first.completed + COST.host_s)
    duration_s = COST.step_time_s([(0, 1)], 1)
    assert second.completed - first.completed == pytest.approx(duration_s)
    assert first.sampling_s == 0.0


def test_every_device_loads_and_has_room_for_the_papers_requests() -> None:
    for name in device_names():
        caps = load(device=name).capabilities
        assert (caps.lanes, caps.largest_step, caps.sequences) == (1, 8192, 64)
        assert caps.context > 12 * 16_640
        assert caps.depth == (1 if name.endswith("sync") else 2)


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UsageError, match=r"no device 'a100-qwen3-6b': did you mean 'a100-qwen3-06b'"):
        load(device="a100-qwen3-6b")


@pytest.mark.parametrize("option", ["mode", "token_s"])
def test_a_device_goes_with_no_costs_of_its_own(option: str) -> None:
    with pytest.raises(UsageError, match=f"option '{option}' does not go with 'device'"):
        load(device="a100-qwen3-06b", **{option: "1"})
