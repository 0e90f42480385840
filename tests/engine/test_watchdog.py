"""A step that does not end is reported, once and with its likely cause, on virtual time."""

from __future__ import annotations

import logging
from itertools import count

import pytest

from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.runtimes.simulated.cost import CostModel, Slowdown
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, TaskSpec
from dlfp_edge.watchdog import likely_cause, limit


def _spec(task_class: Class, prompt: int = 64, max_tokens: int = 4, begin: int = 0) -> TaskSpec:
    tokens = tuple((begin + i) % 200 for i in range(prompt))
    return TaskSpec(tokens, task_class, max_tokens, Sampling(ignore_eos=True))


def _stalled(mode: str = "batched", from_s: float = 0.0, to_s: float = 60.0, cost: CostModel | None = None) -> Engine:
    """An engine on a device that all but stands still for a while."""
    runtime = SimulatedRuntime(cost, mode, slowdowns=[Slowdown(from_s, to_s, 1e6)])
    return Engine(runtime, Settings(placement=Placement.LANES if mode == "lanes" else Placement.SHARED))


def _stuck(engine: Engine) -> list[str]:
    return [message for message in engine.messages if "is stuck" in message]


@pytest.mark.parametrize("task_class", list(Class))
def test_a_stuck_step_is_said_once_at_its_moment(task_class: Class, caplog: pytest.LogCaptureFixture) -> None:
    engine = _stalled()
    engine.submit(_spec(task_class))
    engine.call_at(15.0, lambda: None)
    with caplog.at_level(logging.WARNING, "dlfp_edge"):
        engine.run_until(lambda: bool(engine.messages))
        said_at = engine.clock.now()
        engine.run_until(lambda: False)
    assert said_at == limit(0.0)
    [message] = _stuck(engine)
    for words in ("shared lane", "10 s", "1 segment", "64 tokens", "its threads compute"):
        assert words in message
    [record] = [record for record in caplog.records if record.name == "dlfp_edge.engine"]
    assert record.fields["segments"] == [[0, 64]]  # type: ignore[attr-defined]
    engine.close()


def test_what_was_predicted_to_take_long_gets_ten_times_as_long() -> None:
    engine = _stalled(cost=CostModel(token_s=0.1), to_s=200.0)
    engine.submit(_spec(Class.FOREGROUND))
    engine.run_until(lambda: bool(_stuck(engine)))
    predicted_s = engine.snapshot().stuck[0].predicted_s
    assert predicted_s > 2
    assert engine.clock.now() == limit(predicted_s) == 10 * predicted_s
    engine.close()


def test_the_next_step_that_is_stuck_is_said_again() -> None:
    runtime = SimulatedRuntime(mode="batched", slowdowns=[Slowdown(0.0, 20.0, 1e6), Slowdown(40.1, 400.0, 1e6)])
    engine = Engine(runtime, Settings(placement=Placement.SHARED))
    engine.submit(_spec(Class.FOREGROUND))
    engine.call_at(40.05, lambda: engine.submit(_spec(Class.FOREGROUND)) and None)
    engine.run_until(lambda: False)
    assert len(_stuck(engine)) == 2
    engine.close()


def test_the_snapshot_has_it_while_it_lasts() -> None:
    engine = _stalled()
    task = engine.submit(_spec(Class.BACKGROUND))
    engine.run_until(lambda: bool(engine.messages))
    [step] = engine.snapshot().stuck
    assert (step.lane, step.ran_s) == ("shared", 10.0)
    engine.run_until(lambda: task.done)
    assert engine.snapshot().stuck == ()
    engine.close()


def test_a_starved_lane_is_told_from_a_hung_one() -> None:
    """Foreground prefill on every core leaves the background's step nothing."""
    runtime = SimulatedRuntime(CostModel(trickle=1e-6), "lanes")
    engine = Engine(runtime, Settings(placement=Placement.LANES, controller="static", context=60_000))
    engine.submit(_spec(Class.BACKGROUND, prompt=2000))
    numbers = count()

    def ask() -> None:
        number = next(numbers)
        if number < 30:
            question = _spec(Class.FOREGROUND, prompt=3000, max_tokens=1, begin=1 + number)
            engine.submit(question, on_finish=lambda record: ask())

    ask()
    engine.run_until(lambda: bool(_stuck(engine)))
    [message] = _stuck(engine)
    assert "background lane" in message
    assert "no CPU, probably because the lane has the lowest priority" in message
    engine.close()


def test_a_step_that_does_not_stop_is_said() -> None:
    engine = _stalled(cost=CostModel(interrupt_s=5.0))
    task = engine.submit(_spec(Class.BACKGROUND))
    engine.call_at(0.1, task.cancel)
    engine.run_until(lambda: False)
    [message] = [message for message in engine.messages if "told to stop" in message]
    assert "told to stop 1.0 s ago" in message
    engine.close()


def test_ordinary_work_says_nothing() -> None:
    engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED))
    task = engine.submit(_spec(Class.BACKGROUND, prompt=4000, max_tokens=40))
    engine.call_at(0.2, lambda: engine.submit(_spec(Class.FOREGROUND)) and None)
    engine.run_until(lambda: task.done)
    assert engine.messages == []
    engine.close()


@pytest.mark.parametrize(
    ("cpus", "states", "low", "says"),
    [
        (1.5, {"ready": 2}, True, "slow rather than hung"),
        (0.0, {"ready": 2}, True, "lowest priority"),
        (0.0, {"ready": 1}, False, "other programs"),
        (0.0, {"asleep": 3}, True, "likely hung"),
        (0.0, {"asleep": 1, "disk": 2}, True, "memory is short"),
        (0.0, None, True, "lowest priority"),
        (None, None, False, "not known"),
    ],
)
def test_likely_causes(cpus: float | None, states: dict[str, int] | None, low: bool, says: str) -> None:
    assert says in likely_cause(cpus, states, low=low)
