"""Tasks that wait: asked again only when something has changed, and nothing is given up for one that stays out."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.engine import Engine
from dlfp_edge.lane_state import LaneState
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, TaskSpec

from .driver import Load

ENDLESS = Sampling(ignore_eos=True)


def _task(salt: int, prompt: int, output: int, task_class: Class = Class.FOREGROUND) -> TaskSpec:
    return TaskSpec(tuple((salt * 31 + i) % 250 for i in range(prompt)), task_class, output, ENDLESS)


def test_while_others_decode_nobody_who_waits_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, place = count(), LaneState.place
    monkeypatch.setattr(LaneState, "place", lambda lane, task: (next(asked), place(lane, task))[1])
    engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED, context=1000))
    tasks = [engine.submit(_task(salt, 500, 400)) for salt in range(4)]
    engine.run_until(lambda: tasks[0].done)
    assert engine.counters.steps >= 400
    assert next(asked) < 40
    engine.run_until(lambda: all(task.done for task in tasks))
    engine.close()


@pytest.mark.parametrize("mode", ["batched", "lanes", "depth2", "sequential"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_nobody_starts_later_for_not_being_asked_at_every_turn(mode: str, seed: int) -> None:
    def started() -> list[float | None]:
        placement = Placement.LANES if mode == "lanes" else Placement.SHARED
        chosen = Settings(placement=placement, context=2400, foreground_share=0.5)
        load = Load(SimulatedRuntime(mode=mode, seed=seed), chosen, seed, tasks=40, longest_prompt=500)
        load.run()
        return [task.record.started for task in load.submitted]

    turns = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaneState, "outlook", lambda lane, task_class: (next(turns),))
        always = started()
    assert started() == always
