"""Readers who could keep every CPU busy leave the background what the target allows, and its floor at least."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from dlfp_edge.background import FLOOR_SHARE
from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.measure.latency import late_tokens
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.stopper import Stopper
from dlfp_edge.task import Class, TaskSpec
from dlfp_edge.trace import StepRecord

ENDLESS = Sampling(ignore_eos=True)
READERS = 4
HEAVY = CostModel(base_s=0.002, trickle=0.001)
"""Decodes that two threads halve, so that one is never enough for the target."""


def _run(
    pace: float | None = None, *, counts: tuple[int, ...] = (1, 2), **settings: float
) -> tuple[list[Task], list[StepRecord], float]:
    """The readers, the steps in which all of them decode, and when the document beside them was done."""
    runtime = SimulatedRuntime(HEAVY, mode="lanes")
    times = {threads: runtime.capabilities.decode_s_by_threads[threads] for threads in counts}
    several = {threads: runtime.capabilities.decodes_s[threads] for threads in counts}
    runtime.capabilities = replace(runtime.capabilities, decode_s_by_threads=times, decodes_s=several)
    engine = Engine(runtime, Settings(Placement.LANES, **settings))  # type: ignore[arg-type]
    steps: list[StepRecord] = []
    engine.on_step = steps.append
    readers = [
        engine.submit(TaskSpec(tuple(range(n, n + 20)), Class.FOREGROUND, 2500, ENDLESS, pace=pace))
        for n in range(READERS)
    ]
    document = engine.submit(TaskSpec((1,) * 1000, Class.BACKGROUND, 1, ENDLESS))
    engine.run_until(lambda: document.done)
    done_at = engine.clock.now()
    engine.close()
    assert not document.record.failed
    decodes = [step for step in steps if [segment.kind for segment in step.segments] == ["decode"] * READERS]
    return readers, decodes, done_at


def test_their_decodes_are_spaced_out_to_what_the_target_allows() -> None:
    readers, decodes, done_at = _run(slowdown=1.75)
    steps = [step for step in decodes if step.target_s is not None]
    assert done_at < 20.0, "alone the document takes two seconds"
    assert {step.threads for step in steps[8:]} == {2}
    assert max((step.observed_s or 0.0) / (step.target_s or 1.0) for step in steps[8:]) <= 1.0
    gaps = {later - earlier for earlier, later in pairwise(readers[0].record.token_times)}
    told = max(step.observed_s or 0.0 for step in decodes)
    assert abs(max(gaps) - told) < 0.001, "what a step says of the gap is what its reader saw"


def test_a_step_put_off_starts_though_its_time_has_passed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    next_wake = Stopper.next_wake
    monkeypatch.setattr(Stopper, "next_wake", lambda stopper, now: next_wake(stopper, now + 0.5))  # planning took long
    _, decodes, _ = _run(slowdown=1.75)
    steps = [step for step in decodes[8:] if step.target_s is not None]
    assert max((step.observed_s or 0.0) / (step.target_s or 1.0) for step in steps) <= 1.0


def test_a_target_that_leaves_no_room_leaves_the_floor() -> None:
    _, decodes, done_at = _run(target_itl_s=0.010)
    steps = [step for step in decodes if step.target_s is not None]
    assert done_at < 60.0
    floors = [step for step in steps if step.note == "floor"]
    assert {step.threads for step in floors} == {1}
    assert {step.threads for step in steps if step.note == ""} == {2}
    took_s, floors_s = (sum(step.observed_s or 0.0 for step in some) for some in (steps, floors))
    # On one of two threads they leave half of the device.
    assert floors_s <= 1.1 * 2 * FLOOR_SHARE * took_s


def test_paced_readers_who_would_be_late_are_not_put_off() -> None:
    readers, steps, done_at = _run(pace=80.0)
    spaced = [step for step in steps if step.target_s and (step.observed_s or 0.0) > 0.8 * step.target_s]
    assert spaced, "with enough in reserve they are"
    assert [late_tokens(reader.record) for reader in readers] == [0] * READERS
    assert done_at < 60.0


def test_where_decodes_have_one_count_of_threads_they_wait_for_the_floor() -> None:
    _, decodes, done_at = _run(counts=(2,), target_itl_s=0.0115)
    assert done_at < 90.0
    steps = [step for step in decodes if step.target_s is not None]
    late = [step for step in steps if (step.observed_s or 0.0) > 0.0115]
    assert {step.note for step in late} == {"floor"}
    assert len(late) < len(steps) / 2
