"""Whatever arrives and is cancelled, in every mode of the simulated runtime: nothing is lost, doubled or starved."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlfp_edge.runtimes.simulated import MODES, CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish

from .driver import Load, check_everything_ended, check_tokens

CASES = [
    ("lanes", Placement.LANES, "dlfp"),
    ("lanes", Placement.LANES, "static"),
    ("rigid", Placement.LANES, "dlfp"),
    ("heavy", Placement.LANES, "dlfp"),
    ("batched", Placement.SHARED, "dlfp"),
    ("batched", Placement.SHARED, "dlfp-bounded"),
    ("batched", Placement.SHARED, "fixed:7"),
    ("batched", Placement.SHARED, "unlimited"),
    ("sequential", Placement.SHARED, "dlfp"),
    ("depth2", Placement.SHARED, "dlfp"),
    ("depth2", Placement.SHARED, "dlfp-cadence"),
    ("fragile", Placement.SHARED, "dlfp"),
    ("chunky", Placement.SHARED, "dlfp"),
    ("chunky", Placement.SHARED, "fixed:9"),
]
CHUNKY = replace(MODES["batched"], min_chunk=8, ubatch=16)
"""A runtime that takes no short chunk, and whose interruptions leave short rests."""

HEAVY = CostModel(base_s=0.002, trickle=0.001)
"""Decodes that need every CPU for their target, so that they are spaced out."""

END_PROBABILITY = 0.02


def _load(case: tuple[str, Placement, str], seed: int, **more: object) -> Load:
    mode, placement, controller = case
    fail_steps = range(5, 4000, 17) if mode == "fragile" else ()
    chosen_mode = {"chunky": CHUNKY, "heavy": MODES["lanes"]}.get(mode, mode)
    cost = HEAVY if mode == "heavy" else None
    runtime = SimulatedRuntime(
        cost, chosen_mode, noise=0.1, seed=seed, end_probability=END_PROBABILITY, fail_steps=fail_steps
    )
    chosen = Settings(placement=placement, controller=controller, context=6000)
    return Load(runtime, chosen, seed, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**16), pace=st.sampled_from([None, 12.0, 60.0]))
@example(seed=4165, pace=None)  # a prompt of three tokens more than its shared prefix
def test_every_task_ends_once_with_its_own_tokens(
    case: tuple[str, Placement, str], seed: int, pace: float | None
) -> None:
    load = _load(case, seed, pace=pace, tasks=40)
    load.run()
    check_everything_ended(load)
    check_tokens(load, seed, END_PROBABILITY)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_thousand_tasks_half_of_them_cancelled(case: tuple[str, Placement, str]) -> None:
    before = threading.active_count()
    load = _load(case, seed=1, tasks=1000, span_s=400.0)
    engine = load.run()
    check_everything_ended(load)
    assert engine.failure is None
    assert threading.active_count() == before
    for task_class in Class:
        finished = [t for t in load.submitted if t.task_class is task_class and t.record.finish is not Finish.CANCELLED]
        assert any(t.record.finish in (Finish.STOP, Finish.LENGTH) for t in finished)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_the_cap_is_never_exceeded_and_no_decode_left_out(case: tuple[str, Placement, str]) -> None:
    load = _load(case, seed=3, tasks=120)
    load.run()
    generated: dict[str, int] = {}
    for step in load.steps:
        decodes = [s for s in step.segments if s.kind == "decode" and s.task_class == "foreground"]
        beside = sum(s.tokens for s in step.segments) - len(decodes)
        if step.protected and step.budget is not None and step.note != "floor":
            assert beside <= (max(step.budget, 15) if case[0] == "chunky" else step.budget)
        if step.protected and not step.interrupted:
            running = {s.request_id for s in decodes}
            assert running, "a protected step without a foreground decode"
        for segment in decodes:
            generated[segment.request_id] = generated.get(segment.request_id, 0) + 1
    assert generated


def test_every_unpaced_decoder_is_in_every_shared_step() -> None:
    load = _load(("batched", Placement.SHARED, "dlfp"), seed=5, tasks=80, cancelled=0.0)
    load.run()
    records = {task.request_id: task.record for task in load.submitted if task.task_class is Class.FOREGROUND}
    for step in load.steps:
        present = {s.request_id for s in step.segments}
        if step.note in ("save", "restore"):
            assert step.observed_s is not None
            assert step.observed_s < 0.025, "a copy is short enough for a gap"
            continue
        for name, record in records.items():
            decoding = bool(record.token_times) and record.token_times[0] <= step.submitted
            if decoding and record.finished is not None and step.submitted < record.finished:
                assert name in present, f"{name} was decoding and left out"
