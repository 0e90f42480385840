"""When KV cells run short: tasks leave and return, everybody gets the whole answer, and nobody's gap grows past T."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling, Transfer
from dlfp_edge.runtimes.simulated import MODES, Mode, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

from .driver import Load, check_everything_ended, check_tokens

ENDLESS = Sampling(ignore_eos=True)
CASES: dict[str, tuple[Mode, Placement]] = {
    "lanes": (MODES["lanes"], Placement.LANES),
    "lanes that cannot save": (replace(MODES["lanes"], save=False), Placement.LANES),
    "windowed": (MODES["windowed"], Placement.LANES),
    "batched": (MODES["batched"], Placement.SHARED),
    "cannot save": (replace(MODES["batched"], save=False), Placement.SHARED),
    "sequential": (MODES["sequential"], Placement.SHARED),
    "depth2": (MODES["depth2"], Placement.SHARED),
    "fragile": (MODES["fragile"], Placement.SHARED),
    "chunky": (replace(MODES["batched"], min_chunk=8, ubatch=16), Placement.SHARED),
}


def _load(case: str, seed: int, tasks: int = 40) -> Load:
    mode, placement = CASES[case]
    runtime = SimulatedRuntime(mode=mode, noise=0.1, seed=seed, end_probability=0.001)
    chosen = Settings(placement=placement, context=2400, foreground_share=0.5)
    return Load(runtime, chosen, seed, tasks=tasks, longest_prompt=500, longest_output=500)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_everybody_gets_the_whole_answer(case: str, seed: int) -> None:
    load = _load(case, seed)
    load.run()
    check_everything_ended(load)
    check_tokens(load, seed, 0.001)
    assert not [step.error for step in load.steps if step.error], "a step did not fit the KV cache"


@pytest.mark.parametrize("case", CASES)
def test_the_load_of_these_tests_is_more_than_the_cells(case: str) -> None:
    load = _load(case, seed=3, tasks=80)
    load.cancelled = 0.0
    engine = load.run()
    assert engine.counters.pauses > 0
    saves = [step for step in load.steps if step.note == "save"]
    restores = [step for step in load.steps if step.note == "restore"]
    assert bool(saves) == bool(restores) == CASES[case][0].save
    assert engine.counters.recomputed or CASES[case][0].save


def _engine(mode: str, placement: Placement, **more: object) -> Engine:
    return Engine(SimulatedRuntime(mode=mode), Settings(placement=placement, **more))  # type: ignore[arg-type]


def _task(salt: int, task_class: Class, prompt: int, output: int) -> TaskSpec:
    return TaskSpec(tuple((salt * 31 + i) % 250 for i in range(prompt)), task_class, output, ENDLESS)


def test_background_leaves_for_the_foreground_and_returns() -> None:
    engine = _engine("batched", Placement.SHARED, context=2000)
    papers = [engine.submit(_task(n, Class.BACKGROUND, 600, 200)) for n in range(2)]
    engine.run_until(lambda: all(paper.record.output_token_ids for paper in papers))
    chat = engine.submit(_task(9, Class.FOREGROUND, 900, 100))
    asked = engine.clock.now()
    engine.run_until(lambda: bool(chat.record.output_token_ids))
    assert engine.snapshot().paused >= 1
    assert [paper.record.pauses for paper in papers] == [0, 1], "the newest leaves, and no more than must"
    assert engine.clock.now() - asked < 3.0, "the foreground waited for a document"
    engine.run_until(lambda: False)
    assert all(task.record.finish is Finish.LENGTH for task in (*papers, chat))
    assert engine.counters.recomputed == 0
    engine.close()


def test_the_oldest_reader_goes_on_while_the_newest_waits() -> None:
    engine = _engine("lanes", Placement.LANES, context=2000, foreground_share=0.5)
    readers = [engine.submit(_task(n, Class.FOREGROUND, 100, 800)) for n in range(3)]
    engine.run_until(lambda: False)
    assert [task.record.finish for task in readers] == [Finish.LENGTH] * 3
    assert readers[0].record.pauses == 0
    assert readers[2].record.pauses > 0
    ends = [task.record.finished for task in readers]
    assert ends == sorted(ends, key=lambda end: end or 0.0)
    engine.close()


@pytest.mark.parametrize("mode", ["lanes", "batched"])
def test_gaps_stay_within_the_target_while_cells_are_saved_and_put_back(mode: str) -> None:
    placement = Placement.LANES if mode == "lanes" else Placement.SHARED
    engine = _engine(mode, placement, context=3600, foreground_share=0.4, target_itl_s=0.040)
    reader = engine.submit(_task(1, Class.FOREGROUND, 100, 1000))
    papers = [engine.submit(_task(n, Class.BACKGROUND, 700, 700)) for n in range(2, 6)]
    engine.run_until(lambda: reader.done)
    assert engine.counters.pauses > 0
    times = reader.record.token_times
    assert max(after - before for before, after in pairwise(times)) <= 1.4 * 0.040, "the backstop's bound"
    engine.run_until(lambda: False)
    assert all(paper.record.finish is Finish.LENGTH for paper in papers)
    engine.close()


def test_a_task_that_is_paused_can_be_cancelled_and_expires() -> None:
    engine = _engine("lanes", Placement.LANES, context=2000, foreground_share=0.5)
    specs = [_task(n, Class.BACKGROUND, 60, 700) for n in range(3)]
    first, second, third = (
        engine.submit(spec if n < 2 else replace(spec, deadline_s=60.0)) for n, spec in enumerate(specs)
    )
    engine.run_until(lambda: engine.snapshot().paused == 2 and not any(r.in_flight for r in _running(engine)))
    second.cancel()
    engine.run_until(lambda: False)
    assert first.record.finish is Finish.LENGTH
    assert second.record.finish is Finish.CANCELLED
    assert third.record.finish in (Finish.LENGTH, Finish.DEADLINE)
    engine.forget_prefixes()
    engine.run_until(lambda: engine.snapshot().kv_used == 0)
    assert engine.snapshot().kv_used == 0
    engine.close()


def _running(engine: Engine) -> list[object]:
    return [r for lane in engine._lanes.all for r in lane.running if not r.active]  # type: ignore[misc]


def test_saved_cells_have_a_bound() -> None:
    engine = _engine("lanes", Placement.LANES, context=3000, foreground_share=0.1)
    most = 0
    tasks = [engine.submit(_task(n, Class.BACKGROUND, 200, 1500)) for n in range(8)]

    def ended() -> bool:
        nonlocal most
        lane = engine._lanes.background
        most = max(most, sum(piece.end - piece.start for r in lane.running for piece in r.saved))
        return all(task.done for task in tasks)

    engine.run_until(ended)
    assert 0 < most <= engine._lanes.background.cells / 2
    engine.close()


def test_of_two_that_leave_at_once_the_one_that_can_be_saved_is() -> None:
    engine = _engine("depth2", Placement.SHARED, context=2400)
    papers = [engine.submit(_task(n, Class.BACKGROUND, 800, 100)) for n in range(2)]
    engine.run_until(lambda: all(paper.record.output_token_ids for paper in papers))
    engine._lanes.background.copy_speed.observe(Transfer(0, 0, 1000), 1e-4)  # so fast that one slice holds them all
    chat = engine.submit(_task(9, Class.FOREGROUND, 1900, 50))
    most = 0

    def ended() -> bool:
        nonlocal most
        lane = engine._lanes.background
        most = max(most, sum(piece.end - piece.start for r in lane.running for piece in r.saved))
        return all(task.done for task in (*papers, chat))

    engine.run_until(ended)
    assert [paper.record.pauses for paper in papers] == [1, 1]
    assert 800 <= most <= 1200, "half of the lane's cells"
    assert engine.counters.recomputed == 1
    engine.close()
