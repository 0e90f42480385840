"""A prompt that had better not be split goes by beside a decode, and is not stopped for it by the backstop."""

from __future__ import annotations

import pytest

from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, TaskSpec
from dlfp_edge.trace import StepRecord


@pytest.mark.parametrize("target_s", [0.0145, 0.017, 0.021])
def test_a_prompt_no_piece_of_which_ends_in_time_is_read_in_few_steps(target_s: float) -> None:
    runtime = SimulatedRuntime(CostModel(tile=1), mode="batched")
    engine, steps = Engine(runtime, Settings(placement=Placement.SHARED, target_itl_s=target_s)), list[StepRecord]()
    engine.on_step = steps.append
    reader = engine.submit(TaskSpec((1, 2, 3), Class.FOREGROUND, 3000, Sampling(ignore_eos=True)))
    second = []
    engine.call_at(1.0, lambda: second.append(engine.submit(TaskSpec((4,) * 500, Class.FOREGROUND, 2))))
    engine.run_until(lambda: bool(second) and second[0].done)
    engine.close()
    assert not reader.record.failed
    pieces = [step for step in steps if any(s.kind == "prefill" and s.request_id == "f1" for s in step.segments)]
    assert not any(step.interrupted for step in pieces)
    assert len(pieces) <= 12
