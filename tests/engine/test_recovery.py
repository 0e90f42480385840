"""After steps that fail and cells that are lost, everybody goes on; and nobody waits for what cannot come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import MODES, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

from .driver import answer_alone

ENDLESS = Sampling(ignore_eos=True)
LOSING = replace(MODES["batched"], loses_on_failure=True)


def _engine(mode: Any, fail_steps: tuple[int, ...] = (), **more: Any) -> Engine:
    placement = Placement.LANES if mode == "lanes" else Placement.SHARED
    return Engine(SimulatedRuntime(mode=mode, fail_steps=fail_steps), Settings(placement=placement, **more))


def _task(salt: int, task_class: Class, prompt: int, output: int, **more: Any) -> TaskSpec:
    return TaskSpec(tuple((salt * 31 + i) % 250 for i in range(prompt)), task_class, output, ENDLESS, **more)


def _until(engine: Engine, moment: float) -> None:
    engine.call_at(moment, lambda: None)
    engine.run_until(lambda: engine.clock.now() >= moment)


def test_a_reader_goes_on_while_the_suspect_of_a_failed_step_is_held() -> None:
    engine = _engine(LOSING, (20,))
    reader = engine.submit(_task(1, Class.FOREGROUND, 50, 200))
    engine.submit(_task(2, Class.BACKGROUND, 3000, 50))
    engine.on_step = lambda step: engine.hold_background(True) if step.error else None
    _until(engine, 30.0)
    assert reader.record.finish is Finish.LENGTH
    engine.close()


def test_a_reader_goes_on_while_the_suspects_are_paused() -> None:
    engine = _engine(LOSING, (6,), context=3000)
    papers = [engine.submit(_task(n, Class.BACKGROUND, 1000, 100)) for n in range(2)]
    chats: list[Any] = []
    engine.on_step = lambda step: (
        chats.append(engine.submit(_task(9, Class.FOREGROUND, 2000, 100))) if step.error else None
    )
    engine.run_until(lambda: False)
    assert [task.record.finish for task in (*papers, *chats)] == [Finish.LENGTH] * 3
    engine.close()


def test_failures_far_apart_are_not_counted_together() -> None:
    engine = _engine(LOSING, (50, 400, 700))
    task = engine.submit(_task(1, Class.FOREGROUND, 50, 1000))
    engine.run_until(lambda: task.done)
    assert task.record.finish is Finish.LENGTH
    assert task.record.output_token_ids == answer_alone(task.spec, 0, 0.0)
    engine.close()


def test_a_shared_beginning_that_is_lost_is_computed_by_each_as_there_is_room() -> None:
    engine = _engine(replace(LOSING, save=False), (8,), context=2400)
    prefix = tuple(i % 200 for i in range(1000))
    specs = [TaskSpec((*prefix, *(n,) * 100), Class.BACKGROUND, 100, ENDLESS) for n in range(5)]
    tasks = [engine.submit(spec) for spec in specs]
    engine.run_until(lambda: False)
    assert [task.record.error for task in tasks] == [None] * 5
    assert all(task.record.output_token_ids == answer_alone(task.spec, 0, 0.0) for task in tasks)
    engine.close()


def test_a_step_behind_one_that_lost_its_cells() -> None:
    engine = _engine(replace(MODES["depth2"], loses_on_failure=True), (30,))
    tasks = [engine.submit(_task(n, Class.FOREGROUND, 60, 60)) for n in range(2)]
    engine.run_until(lambda: False)
    assert all(task.record.output_token_ids == answer_alone(task.spec, 0, 0.0) for task in tasks)
    engine.close()


def test_nobody_waits_for_a_text_that_is_embedded() -> None:
    engine = _engine("lanes", context=30_000)
    engine.submit(_task(1, Class.FOREGROUND, 3000, 1, embed=True))
    _until(engine, 0.05)
    chat = engine.submit(TaskSpec((*_task(1, Class.FOREGROUND, 3000, 1).prompt, 1, 2), max_tokens=4, sampling=ENDLESS))
    _until(engine, 0.10)
    assert chat.record.started is not None
    engine.close()


def test_the_last_sequence_at_rest_is_taken_over() -> None:
    engine = _engine(replace(MODES["batched"], sequences=2), foreground_sequences=1, background_sequences=1)
    first = engine.submit(_task(1, Class.FOREGROUND, 200, 10))
    engine.run_until(lambda: first.done)
    engine.submit(_task(5, Class.BACKGROUND, 2000, 100))
    again = engine.submit(TaskSpec((*first.spec.prompt[:150], 3, 4, 5), max_tokens=10, sampling=ENDLESS))
    engine.run_until(lambda: again.done)
    assert again.record.finish is Finish.LENGTH, again.record.error
    assert again.record.output_token_ids == answer_alone(again.spec, 0, 0.0)
    engine.close()


def test_one_class_runs_no_more_tasks_than_two_together() -> None:
    engine = _engine("batched", single_class=True, foreground_sequences=2, background_sequences=2)
    for n in range(16):
        engine.submit(_task(n, Class.BACKGROUND if n < 8 else Class.FOREGROUND, 100, 50))
    most = 0

    def ended() -> bool:
        nonlocal most
        most = max(most, len(engine._lanes.foreground.running))
        return False

    engine.run_until(ended)
    assert most == 4
    engine.close()


@pytest.mark.parametrize("leaver", [True, False])
def test_a_hold_to_measure_ends_whoever_stays(leaver: bool) -> None:
    engine = _engine("lanes")
    engine.submit(_task(2, Class.BACKGROUND, 5000, 500))
    reader = engine.submit(_task(1, Class.FOREGROUND, 50, 2000))
    engine.submit(_task(3, Class.FOREGROUND, 50, 400, pace=0.2))
    engine.run_until(lambda: engine._state.solo.active)
    if leaver:
        reader.cancel()
    held_since = engine.clock.now()
    engine.run_until(lambda: not engine._state.solo.active)
    assert engine.clock.now() - held_since < 8.0
    engine.close()
