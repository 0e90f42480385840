"""Readers who could keep every CPU busy leave the background its floor, and no more gaps than that are late."""

from __future__ import annotations

from dlfp_edge.background import FLOOR_SHARE
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, TaskSpec
from dlfp_edge.trace import StepRecord

ENDLESS = Sampling(ignore_eos=True)
READERS = 4
HEAVY = CostModel(base_s=0.002, trickle=0.001)
"""Decodes that two threads halve, so that one is never enough for the target."""


def test_a_document_gets_on_beside_readers_who_need_every_cpu() -> None:
    engine = Engine(SimulatedRuntime(HEAVY, mode="lanes"), Settings(placement=Placement.LANES))
    steps: list[StepRecord] = []
    engine.on_step = steps.append
    for n in range(READERS):
        engine.submit(TaskSpec(tuple(range(n, n + 20)), Class.FOREGROUND, 2500, ENDLESS))
    document = engine.submit(TaskSpec((1,) * 1000, Class.BACKGROUND, 1, ENDLESS))
    engine.run_until(lambda: document.done)
    engine.close()
    decodes = [step for step in steps if step.lane == "foreground" and len(step.segments) == READERS]
    floors = [step for step in decodes if step.note == "floor"]
    assert document.record.failed is False
    assert floors
    assert {step.threads for step in floors} == {1}
    assert {step.threads for step in decodes if step.note == "" and step.target_s is not None} == {2}
    took_s, floors_s = (sum(step.observed_s or 0.0 for step in some) for some in (decodes, floors))
    # On one of two threads they leave half of the device.
    assert floors_s <= 1.1 * 2 * FLOOR_SHARE * took_s
