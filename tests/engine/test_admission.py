"""Tasks that wait: asked again only when something has changed, and nothing is given up for one that stays out."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.lane_state import LaneState
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

from .driver import Load

ENDLESS = Sampling(ignore_eos=True)


def _task(salt: int, prompt: int, output: int, task_class: Class = Class.FOREGROUND) -> TaskSpec:
    return TaskSpec(tuple((salt * 31 + i) % 250 for i in range(prompt)), task_class, output, ENDLESS)


@pytest.mark.parametrize("call", ["open", "fork", "adopt", "truncate"])
def test_a_runtime_that_refuses_a_task_costs_no_sequence(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    chosen = Settings(placement=Placement.SHARED, foreground_sequences=1, background_sequences=1)
    engine = Engine(SimulatedRuntime(mode="batched"), chosen)
    lane = engine._lanes.foreground

    def ask(prompt: tuple[int, ...]) -> Task:
        task = engine.submit(TaskSpec(prompt, max_tokens=5, sampling=ENDLESS))
        engine.run_until(lambda: task.done)
        return task

    def refuse_once(*_: object) -> None:
        monkeypatch.undo()
        raise ValueError("not today")

    first = ask(_task(1, 300, 5).prompt)
    said = (*first.spec.prompt, *first.record.output_token_ids, 1)
    monkeypatch.setattr(lane.lane, call, refuse_once)
    # The first goes on from what rests, the second shares a part of it: between them they make every call.
    assert Finish.ERROR in [ask(said).record.finish, ask(said[:200]).record.finish]
    sequences = lane.sequences
    held = [*sequences._free, *(rest.sequence for rest in sequences._rests)]
    assert sorted(held) == list(range(lane.lane.spec.sequences)), "each is free or at rest, and once"
    assert ask((*said, 2)).record.finish is Finish.LENGTH
    engine.forget_prefixes()
    engine.run_until(lambda: engine.snapshot().kv_used == 0)
    assert engine.snapshot().kv_used == 0
    engine.close()


def test_nothing_at_rest_is_given_up_for_a_document_that_does_not_fit_after_all() -> None:
    engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED, context=2000))
    reader = engine.submit(_task(1, 900, 20))
    engine.run_until(lambda: reader.done)
    note = engine.submit(_task(2, 100, 5, Class.BACKGROUND))
    engine.run_until(lambda: note.done)
    running = engine.submit(_task(3, 300, 100, Class.BACKGROUND))
    engine.run_until(lambda: bool(running.record.output_token_ids))
    waiting = engine.submit(_task(4, 800, 100, Class.BACKGROUND))
    engine.run_until(lambda: len(running.record.output_token_ids) > 10)
    assert waiting.record.started is None, "what the reader left is spared beside another document"
    assert len(engine._lanes.foreground.sequences._rests) == 2
    engine.run_until(lambda: waiting.done)
    engine.close()


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
@example(seed=86)
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
