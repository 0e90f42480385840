"""Decode-only time is measured while the background waits, however short the answers and long its steps."""

from __future__ import annotations

from dlfp_edge.background import SoloHold
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.targets import SLOWDOWN
from dlfp_edge.task import Class, TaskSpec
from dlfp_edge.trace import StepRecord

ENDLESS = Sampling(ignore_eos=True)
READERS, ANSWER, TURNS = 3, 12, 40


def _ask(engine: Engine, turn: int) -> None:
    """All readers at once, again one second after the last of them has its answer."""
    left = [
        engine.submit(TaskSpec(tuple(range(turn, turn + 20)), Class.FOREGROUND, ANSWER, ENDLESS))
        for _ in range(READERS)
    ]
    tasks = list(left)

    def ended() -> None:
        if not all(task.done for task in tasks):
            engine.call_at(engine.clock.now() + 0.05, ended)
        elif turn < TURNS:
            engine.call_at(engine.clock.now() + 1.0, lambda: _ask(engine, turn + 1))

    engine.call_at(engine.clock.now() + 0.05, ended)


def test_short_answers_beside_long_steps_are_measured_soon() -> None:
    engine, steps = Engine(SimulatedRuntime(mode="lanes"), Settings(placement=Placement.LANES)), list[StepRecord]()
    engine.on_step = steps.append
    for n in range(20):
        engine.submit(TaskSpec((n,) * 3000, Class.BACKGROUND, 1, ENDLESS))
    _ask(engine, 0)
    engine.run_until(lambda: engine.clock.now() > 40.0)
    measured = [step for step in steps if step.note == "solo" and len(step.segments) == READERS]
    alone = [step for step in measured if step.lane == "foreground" and step.target_s is None]
    assert len(alone) >= SoloHold.DECODES
    engine.close()


def test_a_hold_that_never_began_may_come_again_at_once() -> None:
    hold = SoloHold()
    hold.want(1.0)
    hold.stop(3.0)
    hold.want(3.0)
    assert hold.active


def test_the_first_hold_is_free_and_later_ones_cost_from_when_nothing_of_the_background_runs() -> None:
    hold = SoloHold()
    hold.want(0.0)
    hold.begin(0.0)
    for _ in range(SoloHold.FIRST_DECODES):
        assert hold.active
        hold.decoded(1.0)
    assert not hold.active
    for now, again in ((10.9, False), (11.0, True)):
        hold.want(now)
        assert hold.active is again
    hold.begin(13.0)
    for step in range(SoloHold.DECODES):
        hold.decoded(13.0 + 0.05 * (step + 1))
    assert not hold.active
    for now, again in ((33.1, False), (33.3, True)):
        hold.want(now)
        assert hold.active is again


def test_a_step_that_does_not_end_is_interrupted_and_what_it_loses_counts() -> None:
    hold = SoloHold()
    hold.want(0.0, urgent=True)
    assert hold.overdue(1.0)
    hold.begin(1.0)
    assert not hold.overdue(2.0)
    hold.decoded(1.1)
    hold.stop(1.1)
    hold.want(11.1)
    assert not hold.overdue(15.0), "what is known already can wait longer for a boundary"
    assert hold.overdue(17.0)
    hold.interrupted(0.5)
    hold.begin(17.0)
    for _ in range(SoloHold.DECODES):
        hold.decoded(17.0)
    hold.want(17.0 + 49.0)
    assert not hold.active
    hold.want(17.0 + 51.0)
    assert hold.active


def measured(hold: SoloHold, now: float) -> None:
    """Let a hold begin and end at once."""
    hold.begin(now)
    while hold.active:
        hold.decoded(now)


def test_an_urgent_hold_comes_early_and_the_next_one_as_much_later() -> None:
    hold = SoloHold()
    hold.want(0.0)
    measured(hold, 1.0)
    hold.want(3.0)
    assert not hold.active, "the next is at 11"
    hold.want(3.0, urgent=True)
    measured(hold, 3.0)
    for now, urgent, wanted in ((10.9, True, False), (20.9, False, False), (21.1, False, True)):
        hold.want(now, urgent=urgent)
        assert hold.active is wanted


def test_a_hold_nobody_decodes_in_expires() -> None:
    hold = SoloHold()
    hold.want(0.0)
    hold.expire(10.0)
    assert hold.active, "it has not begun"
    hold.begin(10.0)
    hold.expire(13.5)
    assert not hold.active


def test_the_target_goes_along_with_the_cells_that_decodes_read() -> None:
    cost = CostModel(context_s=2e-5)  # 700 cells double a decode
    engine, steps = (
        Engine(SimulatedRuntime(cost, mode="lanes"), Settings(placement=Placement.LANES)),
        list[StepRecord](),
    )
    engine.on_step = steps.append
    for n in range(200):
        engine.submit(TaskSpec((n,) * 1000, Class.BACKGROUND, 1, ENDLESS))
    reader = engine.submit(TaskSpec((1,) * 20, Class.FOREGROUND, 2000, ENDLESS))
    engine.run_until(lambda: reader.done)
    engine.close()
    wrong = [
        step.target_s / (SLOWDOWN[Placement.LANES] * cost.pass_s(1, 2, step.segments[0].start))
        for step in steps
        if step.lane == "foreground" and step.target_s is not None
    ]
    assert len(wrong) > 1500, "beside background work all the time"
    assert 0.9 < min(wrong) <= max(wrong) < 1.1, "between two holds too"
