"""Every setting that has a name: nothing is lost under it, and what it takes away is away, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import open_engine
from dlfp_edge.controls import CONTROLS, Control, with_control
from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Priority, Sampling
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings, parse_setting
from dlfp_edge.task import Class, Finish, TaskSpec
from dlfp_edge.trace import StepRecord

from .driver import Load, check_everything_ended, check_tokens

ENDLESS = Sampling(ignore_eos=True)
END_PROBABILITY = 0.02
REAL = {"clock": "real"}
EVERY = [pytest.param(control, id=control.setting) for control in CONTROLS]
SHARED = [pytest.param(control, id=control.name) for control in CONTROLS if control.placement is Placement.SHARED]
ONE_CLASS = ["cap-only", "fcfs", "interruption-only"]


PARAMETERS = {"predictor": {"c": 0.0119, "a": 1e-7, "b": 0.0021, "e": 5e-8, "d": 0.0021}}
"""What settings cannot do without: here, the simulated device's own."""


def chosen(setting: str, **more: object) -> Settings:
    placement, controller = parse_setting(setting.replace("fixed:N", "fixed:9"))
    more.setdefault("parameters", PARAMETERS.get(controller, {}))
    return Settings(placement=placement, controller=controller, **more)  # type: ignore[arg-type]


def engine_on(setting: str, mode: str | None = None, **more: object) -> Engine:
    mode = mode or ("lanes" if setting.startswith("lanes") else "batched")
    return Engine(SimulatedRuntime(mode=mode), chosen(setting, **more))


def load(control: Control, seed: int, mode: str | None = None, **more: object) -> Load:
    mode = mode or ("lanes" if control.placement is Placement.LANES else "batched")
    runtime = SimulatedRuntime(mode=mode, noise=0.1, seed=seed, end_probability=END_PROBABILITY)
    return Load(runtime, chosen(control.setting, context=6000), seed, **more)  # type: ignore[arg-type]


def task(salt: int, length: int, task_class: Class = Class.FOREGROUND, output: int = 10) -> TaskSpec:
    prompt = tuple((salt * 37 + i * 7) % 250 for i in range(length))
    return TaskSpec(prompt, task_class, output, ENDLESS)


@pytest.mark.parametrize("control", EVERY)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**16), pace=st.sampled_from([None, 12.0]))
def test_every_task_ends_once_with_its_own_tokens(control: Control, seed: int, pace: float | None) -> None:
    run = load(control, seed, pace=pace, tasks=40)
    engine = run.run()
    assert engine.controller_name == control.setting.replace("N", "9")
    check_everything_ended(run)
    check_tokens(run, seed, END_PROBABILITY)


@pytest.mark.parametrize("mode", ["sequential", "depth2", "fragile"])
@pytest.mark.parametrize("control", SHARED)
def test_every_task_ends_on_runtimes_that_can_do_less(control: Control, mode: str) -> None:
    run = load(control, 7, mode, tasks=60)
    run.run()
    check_everything_ended(run)
    check_tokens(run, 7, END_PROBABILITY)


@pytest.mark.parametrize("control", SHARED)
def test_no_step_exceeds_its_cap(control: Control) -> None:
    run = load(control, 3, tasks=120)
    run.run()
    capped = 0
    for step in run.steps:
        if not step.protected or step.note == "floor":
            continue
        assert (step.budget is None) == (control.law == "unlimited")
        if step.budget is not None:
            capped += 1
            watched = control.name in ONE_CLASS
            decodes = sum(s.kind == "decode" and (watched or s.task_class == "foreground") for s in step.segments)
            assert sum(s.tokens for s in step.segments) - decodes <= step.budget
    assert capped or control.law == "unlimited"


@pytest.mark.parametrize("control", EVERY)
def test_steps_are_interrupted_unless_the_setting_says_never(control: Control) -> None:
    run = load(control, 3, tasks=200)
    engine = run.run()
    cancelled = [t for t in run.submitted if t.record.finish is Finish.CANCELLED]
    assert any(t.record.started is not None for t in cancelled), "nobody was cancelled who ran"
    interrupted = sum(step.interrupted for step in run.steps)
    if control.changes.get("interrupts", True):
        assert interrupted
        assert engine.counters.preemptions
    else:
        assert interrupted == engine.counters.preemptions == engine.counters.backstops == 0


@pytest.mark.parametrize("control", EVERY)
def test_lanes_open_at_the_priority_that_the_setting_gives_them(control: Control) -> None:
    engine = engine_on(control.setting)
    priorities = [spec.priority for spec in engine.lane_specs]
    engine.close()
    lowest = Priority.LOWEST if control.changes.get("priority", True) else Priority.NORMAL
    assert priorities == ([Priority.NORMAL, lowest] if control.placement is Placement.LANES else [Priority.NORMAL])


def test_without_priority_a_reader_shares_the_cores_with_the_background() -> None:
    gaps = {}
    for setting in ("lanes/static", "lanes/no-priority"):
        engine = engine_on(setting)
        engine.submit(task(1, 4000, Class.BACKGROUND))
        reader = engine.submit(task(2, 20, output=40))
        engine.run_until(lambda reader=reader: reader.done)
        times = reader.record.token_times
        gaps[setting] = max(later - earlier for earlier, later in pairwise(times))
        engine.close()
    assert gaps["lanes/no-priority"] > 1.5 * gaps["lanes/static"]


def first_token_s(setting: str, arrives: float, **more: object) -> float:
    """How long somebody waits for a first token who comes while a long document is read in."""
    engine = engine_on(setting, **more)
    engine.submit(task(1, 20_000, Class.BACKGROUND))
    engine.submit(task(3, 20_000, Class.BACKGROUND))
    arrived: list[Task] = []
    engine.call_at(arrives, lambda: arrived.append(engine.submit(task(2, 100))))
    engine.run_until(lambda: bool(arrived) and arrived[0].done)
    engine.close()
    return arrived[0].record.token_times[0] - arrived[0].record.arrived


def test_each_part_of_the_policy_shortens_the_wait_for_a_first_token() -> None:
    everything = first_token_s("shared/dlfp", 3.1, context=60_000)
    classes = first_token_s("shared/classes-only", 3.1, context=60_000)
    nothing = first_token_s("shared/fcfs", 3.1, context=60_000)
    assert everything < 0.4
    assert everything < classes < everything + 0.5, "a document's step is waited for, and no more"
    assert nothing > 20, "the documents go first"
    assert first_token_s("shared/interruption-only", 3.1, context=60_000) > 20, "and again after an interruption"


def test_a_cap_alone_keeps_gaps_short_and_lets_documents_go_first() -> None:
    gaps = {}
    for setting in ("shared/cap-only", "shared/fcfs"):
        engine = engine_on(setting)
        reader = engine.submit(task(2, 20, output=60))
        engine.call_at(0.2, lambda engine=engine: engine.submit(task(1, 3000, Class.BACKGROUND)) and None)
        engine.run_until(lambda reader=reader: reader.done)
        times = reader.record.token_times
        gaps[setting] = max(later - earlier for earlier, later in pairwise(times))
        engine.close()
    assert gaps["shared/cap-only"] < 0.1
    assert gaps["shared/fcfs"] > 3


@pytest.mark.parametrize("name", ONE_CLASS)
def test_where_there_are_no_classes_who_comes_first_starts_first(name: str) -> None:
    engine = engine_on(f"shared/{name}", foreground_sequences=1, background_sequences=1, context=2000)
    tasks = [engine.submit(task(n, 200, Class.FOREGROUND if n % 3 else Class.BACKGROUND)) for n in range(9)]
    order: list[Task] = []

    def note() -> bool:
        order.extend(t for t in tasks if t.record.started is not None and t not in order)
        return all(t.done for t in tasks)

    engine.run_until(note)
    assert order == tasks
    engine.close()


@pytest.mark.parametrize(
    ("name", "times"), [("interruption-only", 1), ("unlimited", 1), ("classes-only", 0), ("fcfs", 0)]
)
def test_an_arrival_interrupts_documents_where_the_setting_lets_it(name: str, times: int) -> None:
    engine = engine_on(f"shared/{name}")
    engine.submit(task(1, 3000, Class.BACKGROUND))
    engine.call_at(1.0, lambda: engine.submit(task(5, 10)) and None)
    engine.run_until(lambda: False)
    assert engine.counters.preemptions == times
    engine.close()


def test_where_there_are_no_classes_who_stands_behind_another_interrupts_nobody() -> None:
    engine = engine_on("shared/interruption-only", context=4000)
    for n in range(2):
        engine.submit(task(n, 3000, Class.BACKGROUND))
    engine.call_at(1.0, lambda: engine.submit(task(5, 10)) and None)
    engine.run_until(lambda: False)
    assert engine.counters.preemptions == 0
    engine.close()


def test_prompts_that_wait_for_a_place_are_pressure_too() -> None:
    engine, steps = engine_on("shared/pressure", foreground_sequences=1, background_sequences=1), list[StepRecord]()
    engine.on_step = steps.append
    engine.submit(task(1, 20, output=100))
    engine.run_until(lambda: bool(steps))
    for n in (2, 3):
        engine.submit(task(n, 3000, Class.BACKGROUND))
    engine.run_until(lambda: False)
    engine.close()
    protected = [step for step in steps if step.protected and any(s.kind == "prefill" for s in step.segments)]
    assert protected[0].budget == 1279, "one is read in and one waits"
    assert protected[-1].budget == 16383, "the last one is alone"


@pytest.mark.parametrize("tile", [1, 16])
def test_a_predictor_that_knows_the_device_fills_its_target_and_keeps_to_it(tile: int) -> None:
    """On a device where context costs much it must know what the decodes read and how far the document is."""
    cost = CostModel(tile=tile, context_s=4e-6)
    cell_s, token_s = 0.525 * cost.context_s, 0.525 * cost.token_s
    constants = {
        "c": 0.85 * cost.base_s,
        "a": cell_s,
        "d": token_s + cell_s,
        "b": token_s + cell_s / 2,
        "e": cell_s / 2,
    }
    engine = Engine(SimulatedRuntime(cost, "batched"), chosen("shared/predictor", parameters={**constants, "T": 0.08}))
    steps = list[StepRecord]()
    engine.on_step = steps.append
    readers = [engine.submit(task(n, 300 * n, output=150)) for n in (1, 2)]
    engine.run_until(lambda: all(reader.record.token_times for reader in readers))
    engine.submit(task(3, 4000, Class.BACKGROUND))
    engine.run_until(lambda: all(reader.done for reader in readers))
    engine.close()
    beside = [s for s in steps if s.protected and len(s.segments) == 3]
    assert len(beside) > 50
    times = [s.completed - s.submitted for s in beside]
    assert max(times) <= 0.08 * (1 + 1e-9)
    if tile == 1:
        assert min(times) > 0.07, "a token more would have been over it"


def test_a_hold_keeps_documents_still_where_there_are_no_classes() -> None:
    """Windows in which a reader is measured alone are the same for every setting."""
    engine, steps = engine_on("shared/fcfs"), list[StepRecord]()
    engine.on_step = steps.append
    reader = engine.submit(task(1, 20, output=200))
    engine.submit(task(2, 300, Class.BACKGROUND, output=2000))
    engine.call_at(1.5, lambda: engine.hold_background(True))
    engine.run_until(lambda: reader.done)
    late = [step for step in steps if step.submitted > 1.5]
    assert late
    assert all(s.task_class == "foreground" for step in late for s in step.segments)
    engine.close()


def test_without_classes_decodes_alone_are_measured_among_documents_too() -> None:
    engine, steps = engine_on("shared/cap-only"), list[StepRecord]()
    engine.on_step = steps.append
    engine.submit(task(1, 20, Class.BACKGROUND, output=400))
    engine.call_at(0.5, lambda: engine.submit(task(2, 3000, Class.BACKGROUND)) and None)
    engine.run_until(lambda: False)
    assert any(step.note == "solo" for step in steps)
    engine.close()


def test_closing_stops_a_step_under_every_setting() -> None:
    engine, steps = engine_on("shared/fcfs"), list[StepRecord]()
    engine.on_step = steps.append
    engine.submit(task(1, 4000, Class.BACKGROUND))
    engine.call_at(1.0, lambda: None)
    engine.run_until(lambda: engine.clock.now() >= 1.0)
    engine.close()
    assert steps[-1].interrupted
    assert engine.clock.now() < 1.1


@pytest.mark.parametrize("placement", ["lanes", "shared"])
def test_without_a_prefix_cache_every_prompt_is_computed_from_its_first_token(placement: str) -> None:
    computed = {}
    for name in ("dlfp", "no-prefix-cache"):
        engine, steps = engine_on(f"{placement}/{name}", context=12_000), list[StepRecord]()
        engine.on_step = steps.append
        first = engine.submit(task(1, 400))
        engine.run_until(lambda first=first: first.done)
        kept = engine.snapshot().kv_used
        said = (*first.spec.prompt, *first.record.output_token_ids)
        again = [engine.submit(TaskSpec((*said, n, 3, 4), Class.FOREGROUND, 10, ENDLESS)) for n in range(2)]
        papers = [engine.submit(TaskSpec((*task(2, 300).prompt, n), Class.BACKGROUND, 5, ENDLESS)) for n in range(4)]
        engine.run_until(lambda: False)
        cached = [each.record.cached_prompt_tokens for each in (*again, *papers)]
        prompts = sum(each.record.prompt_tokens for each in (first, *again, *papers))
        segments = [s for step in steps for s in step.segments if s.kind == "prefill"]
        computed[name] = sum(s.consumed for s in segments)
        if name == "dlfp":
            assert kept > 400
            assert cached == [409, 409, 0, 300, 300, 300]
        else:
            assert kept == engine.snapshot().kv_used == 0, "nothing is kept"
            assert set(cached) == {0}
            assert computed[name] == prompts
        engine.close()
    assert computed["dlfp"] < computed["no-prefix-cache"] / 2


def test_a_prefix_cache_helps_prompts_that_match_and_no_others() -> None:
    def wait_s(name: str, matching: bool) -> float:
        engine = engine_on(f"shared/{name}")
        waits = []
        for n in range(4):
            question = engine.submit(TaskSpec((*task(0 if matching else n, 600).prompt, n), max_tokens=2))
            engine.run_until(lambda question=question: question.done)
            waits.append(question.record.token_times[0] - question.record.arrived)
        engine.close()
        return sum(waits[1:])

    assert wait_s("dlfp", True) < wait_s("no-prefix-cache", True) / 10
    assert wait_s("dlfp", False) == wait_s("no-prefix-cache", False)


def test_a_name_says_all_that_it_changes() -> None:
    assert with_control(chosen("shared/fcfs")).single_class
    assert not with_control(chosen("shared/fcfs", interrupts=True)).interrupts
    assert with_control(chosen("shared/dlfp", single_class=True)).single_class, "what no name sets stays as given"
    assert with_control(Settings(controller="nobody")) == Settings(controller="nobody")
    settings = with_control(chosen("lanes/no-priority"))
    assert with_control(settings) == settings


def test_a_setting_by_name_goes_through_the_api_and_into_a_worker() -> None:
    for isolated in (False, True):
        with open_engine(runtime="simulated", setting="shared/fcfs", isolated=isolated, runtime_options=REAL) as edge:
            assert edge.engine.controller_name == "shared/fcfs"
            tasks = [edge.submit([n] * 50, task_class="background", max_tokens=3) for n in range(14)]
            assert {each.wait(30).finish for each in tasks} <= {Finish.LENGTH, Finish.STOP}


def test_settings_travel_to_a_worker() -> None:
    from dlfp_edge.worker.messages import SETTINGS

    settings = with_control(chosen("shared/fcfs", priority=False, prefix_cache=False))
    assert SETTINGS.decode(SETTINGS.encode(settings)) == settings
    assert (settings.interrupts, settings.priority, settings.prefix_cache) == (False, False, False)
