"""What callers of the engine rely on, on virtual time where time matters and in threads where it does not."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise

import pytest

from dlfp_edge import Class, DlfpError, EngineClosed, Finish, QueueFull, Sampling, UsageError, open_engine
from dlfp_edge.device import CpuTopology
from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.placement import background_cores
from dlfp_edge.queues import AGE_LIMIT_S, Queues, Refusal
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.runtimes.simulated.cost import CostModel, Slowdown
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import TaskRecord, TaskSpec
from dlfp_edge.trace import StepRecord

ENDLESS = Sampling(ignore_eos=True)


def spec(length: int = 64, task_class: Class = Class.FOREGROUND, max_tokens: int = 16, **more: object) -> TaskSpec:
    return TaskSpec(tuple(i % 200 for i in range(length)), task_class, max_tokens, ENDLESS, **more)  # type: ignore[arg-type]


def engine_on(mode: str, controller: str = "auto", **settings: object) -> Engine:
    placement = Placement.LANES if mode in ("lanes", "rigid") else Placement.SHARED
    return Engine(SimulatedRuntime(mode=mode), Settings(placement=placement, controller=controller, **settings))  # type: ignore[arg-type]


def test_iterating_in_threads_and_coroutines_gives_the_record() -> None:
    with open_engine(runtime="simulated") as edge:
        task = edge.submit([1, 2, 3], max_tokens=20, sampling=ENDLESS)
        other = edge.submit([1, 2, 3], task_class="background", max_tokens=20, sampling=ENDLESS)

        async def collect() -> list[int]:
            return [token.id async for token in other]

        assert [token.id for token in task] == task.record.output_token_ids
        assert asyncio.run(collect()) == other.record.output_token_ids
        assert task.record.output_token_ids == other.record.output_token_ids
        assert [token.id for token in task] == task.record.output_token_ids, "a second reader sees the whole answer"


def test_many_threads_can_submit_at_once() -> None:
    with open_engine(runtime="simulated") as edge:
        found = []
        threads = [
            threading.Thread(
                target=lambda i=i: found.append(edge.submit([i, 1], max_tokens=5, sampling=ENDLESS).wait(30))
            )
            for i in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({record.request_id for record in found}) == 20
    assert all(record.finish is Finish.LENGTH for record in found)


def test_closing_ends_what_is_left_and_refuses_more() -> None:
    engine = engine_on("lanes")
    tasks = [engine.submit(spec(task_class=member, max_tokens=100)) for member in Class for _ in range(20)]
    engine.run_until(lambda: engine.clock.now() > 0.2)
    engine.close()
    assert all(task.record.finish is Finish.CANCELLED for task in tasks if task.record.finish is not Finish.LENGTH)
    assert all(task.done for task in tasks)
    with pytest.raises(EngineClosed):
        engine.submit(spec())


def test_a_full_queue_refuses_clearly_and_loses_nothing() -> None:
    engine = engine_on("batched", queue_limit=3)
    accepted = [engine.submit(spec(task_class=Class.BACKGROUND)) for _ in range(3)]
    with pytest.raises(QueueFull, match="3 background tasks wait"):
        engine.submit(spec(task_class=Class.BACKGROUND))
    assert engine.submit(spec()).request_id, "the other class still has room"
    engine.run_until(lambda: False)
    assert all(task.record.finish is Finish.LENGTH for task in accepted)
    engine.close()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (TaskSpec(()), "empty"),
        (TaskSpec((1,), max_tokens=0), "max_tokens"),
        (TaskSpec((1,) * 50_000), "--ctx"),
        (TaskSpec((1, 2), pace=-1.0), "pace"),
    ],
)
def test_a_task_that_can_never_run_is_refused_at_once(bad: TaskSpec, says: str) -> None:
    engine = engine_on("batched")
    with pytest.raises(UsageError, match=says):
        engine.submit(bad)
    engine.close()


def test_a_deadline_ends_a_task_wherever_it_is() -> None:
    engine = engine_on("batched", foreground_sequences=1)
    running = engine.submit(spec(max_tokens=1000, deadline_s=1.0))
    waiting = engine.submit(spec(max_tokens=1000, deadline_s=1.0))
    engine.run_until(lambda: False)
    for task in (running, waiting):
        assert task.record.finish is Finish.DEADLINE
        assert task.record.failed
        assert task.record.finished == pytest.approx(1.0, abs=0.1)
    assert running.record.output_token_ids, "what was produced in time is kept"
    engine.close()


def test_a_far_deadline_does_not_keep_a_task_that_has_ended() -> None:
    engine = engine_on("batched")
    task = engine.submit(spec(max_tokens=4, deadline_s=3600.0))
    later = engine.submit(spec(max_tokens=8))
    engine.run_until(lambda: later.done)
    gone = weakref.ref(task)
    del task
    gc.collect()
    assert gone() is None
    engine.close()


def test_deadlines_of_tasks_that_have_ended_are_not_kept() -> None:
    engine = engine_on("batched")
    late = engine.submit(spec(max_tokens=8, deadline_s=0.05), arrived=0.0)
    for _ in range(500):
        task = engine.submit(spec(8, max_tokens=1, deadline_s=3600.0))
        engine.run_until(lambda task=task: task.done)
    assert len(engine._timers._heap) < 100
    assert late.record.finish is Finish.DEADLINE, "one that is still due stays"
    engine.run_until(lambda: False)
    assert engine.clock.now() < 3600.0, "and nobody waits for them"
    engine.close()


def test_steps_are_longer_while_nobody_interrupts_than_once_somebody_does() -> None:
    engine, steps = engine_on("batched"), list[StepRecord]()
    engine.on_step = steps.append
    for _ in range(4):
        engine.submit(spec(2000, Class.BACKGROUND, 1))
    engine.call_at(2.0, lambda: engine.submit(spec(16, max_tokens=1)) and None)
    engine.run_until(lambda: False)
    engine.close()
    before = max(sum(s.consumed for s in step.segments) for step in steps if step.completed < 2.0)
    after = max(sum(s.consumed for s in step.segments) for step in steps if 2.1 < step.completed < 2.6)
    assert before > 2 * after


def test_an_arrival_interrupts_background_work_in_shared_steps() -> None:
    engine = engine_on("batched")
    engine.submit(spec(2000, Class.BACKGROUND))
    chat: list[object] = []
    engine.call_at(0.3, lambda: chat.append(engine.submit(spec(16))))
    engine.run_until(lambda: False)
    assert engine.counters.preemptions == 1
    assert engine.counters.aborted_tokens > 0
    engine.close()


def test_in_single_class_mode_who_comes_first_starts_first() -> None:
    engine = engine_on("batched", single_class=True, foreground_sequences=1, background_sequences=2, context=600)
    kinds = [Class.BACKGROUND, Class.FOREGROUND, Class.BACKGROUND, Class.BACKGROUND, Class.FOREGROUND] * 3
    sizes = [100, 300, 20, 400, 50]
    tasks = [
        engine.submit(spec(sizes[n % 5], kind, 20 + 3 * n), arrived=-2.0 * AGE_LIMIT_S * (n == 4))
        for n, kind in enumerate(kinds)
    ]
    assert engine.snapshot().background_queued == 9
    assert engine.snapshot().foreground_queued == 6
    order: list[Task] = []

    def note() -> bool:
        order.extend(t for t in tasks if t.record.started is not None and t not in order)
        return all(t.done for t in tasks)

    engine.run_until(note)
    assert order == tasks
    engine.close()


@pytest.mark.parametrize("how", ["a timer", "a callback"])
def test_whoever_is_submitted_in_the_engine_thread_does_not_wait_for_a_background_step(how: str) -> None:
    """There a task is let in before the engine has heard that it arrived."""
    engine = engine_on("batched")
    engine.submit(spec(4000, Class.BACKGROUND))
    arrived: list[Task] = []

    def ask(*_: object) -> None:
        arrived.append(engine.submit(spec(200, max_tokens=2)))

    if how == "a timer":
        engine.call_at(3.05, ask)
    else:
        engine.submit(spec(20, max_tokens=2), on_finish=ask)
    engine.run_until(lambda: bool(arrived) and arrived[0].done)
    record = arrived[0].record
    alone_s = engine.runtime.capabilities.prefill_tokens_per_s
    assert alone_s is not None
    assert record.token_times[0] - record.arrived < 0.1 + 200 / alone_s
    engine.close()


def test_first_come_first_served_interrupts_nobody_and_keeps_arrival_order() -> None:
    engine = engine_on("batched", "fcfs")
    document = engine.submit(spec(2000, Class.BACKGROUND))
    engine.call_at(0.3, lambda: engine.submit(spec(16)) and None)
    engine.run_until(lambda: False)
    assert engine.counters.preemptions == 0
    assert document.record.finish is Finish.LENGTH
    engine.close()


def test_a_single_session_is_the_same_under_every_controller() -> None:
    def steps(mode: str, controller: str) -> list[tuple[int, ...]]:
        engine, seen = engine_on(mode, controller), list[StepRecord]()
        engine.on_step = seen.append
        engine.submit(spec(300, max_tokens=40))
        engine.run_until(lambda: False)
        engine.close()
        return [tuple(segment.tokens for segment in step.segments) for step in seen]

    plain = steps("batched", "unlimited")
    for mode, controller in [("batched", "fixed:4"), ("batched", "dlfp"), ("lanes", "dlfp"), ("lanes", "static")]:
        assert steps(mode, controller) == plain


def test_a_shared_instruction_is_computed_once() -> None:
    engine = engine_on("lanes")
    instruction = tuple(range(100))
    tasks = [engine.submit(TaskSpec((*instruction, i, 5, 6), Class.BACKGROUND, 4, ENDLESS)) for i in range(6)]
    engine.run_until(lambda: False)
    cached = [task.record.cached_prompt_tokens for task in tasks]
    assert sorted(cached) == [0, 100, 100, 100, 100, 100]
    engine.close()


def test_the_floor_holds_when_the_target_leaves_nothing() -> None:
    engine = engine_on("batched", "dlfp", target_itl_s=0.001, foreground_sequences=4)
    seen: list[StepRecord] = []
    engine.on_step = seen.append
    for _ in range(4):
        engine.submit(spec(64, max_tokens=2000))
    engine.submit(spec(20_000 // 4, Class.BACKGROUND))
    engine.run_until(lambda: engine.clock.now() > 45)
    background = sum(s.consumed for step in seen for s in step.segments if s.task_class == "background")
    engine.close()
    assert background * 0.0021 >= 0.04 * 45
    assert any("infeasible" in message for message in engine.messages)


def test_a_runtime_that_breaks_ends_every_task_with_the_reason() -> None:
    runtime = SimulatedRuntime(mode="batched")
    engine = Engine(runtime, Settings(placement=Placement.SHARED))

    def broken(until: float | None) -> list[object]:
        raise OSError("the device is gone")

    runtime.wait = broken  # type: ignore[assignment,method-assign]
    task = engine.submit(spec())
    engine.start()
    assert task.wait(10).finish is Finish.ERROR
    assert "the device is gone" in str(task.record.error)
    with pytest.raises(DlfpError, match="the device is gone"):
        list(task)
    engine.close()


def test_a_reader_that_fails_does_not_stop_the_others() -> None:
    engine = engine_on("lanes")

    def careless(*_: object) -> None:
        raise RuntimeError("reader's fault")

    bad = engine.submit(spec(), on_token=careless)
    good = engine.submit(spec())
    engine.run_until(lambda: False)
    assert good.record.finish is Finish.LENGTH
    assert bad.record.finish is not None
    engine.close()


def test_a_paced_stream_is_shown_on_its_schedule() -> None:
    engine = engine_on("lanes")
    task = engine.submit(spec(max_tokens=60, pace=12.0))
    for _ in range(4):
        engine.submit(spec(1500, Class.BACKGROUND))
    engine.run_until(lambda: False)
    gaps = [b - a for a, b in zip(task.record.shown_times, task.record.shown_times[1:], strict=False)]
    assert max(gaps) <= 1 / 12 + 0.015
    assert min(gaps) >= 1 / 12 - 0.001
    engine.close()


@pytest.mark.parametrize(
    ("topology", "decoding", "apart", "expected"),
    [
        (CpuTopology((0, 1), None, ((0,), (1,)), (0, 1)), 1, False, None),
        (CpuTopology((0, 1), None, ((0,), (1,)), (0, 1)), 1, True, (1,)),
        (CpuTopology((0, 1), None, (), (0, 1)), 1, True, (1,)),
        (CpuTopology((0, 1), None, ((0,), (1,)), (0, 1)), 2, True, None),
        (CpuTopology((0, 1, 2, 3), None, ((0, 2), (1, 3)), (0, 1, 2, 3)), 1, False, (1, 3)),
        (CpuTopology((0, 1, 2, 3), None, ((0,), (1,), (2,), (3,)), (0, 1)), 1, False, (2, 3)),
        (CpuTopology((0, 1), None, ((0, 1),), (0, 1)), 1, False, None),
    ],
)
def test_background_keeps_off_the_cores_that_decode(
    topology: CpuTopology, decoding: int, apart: bool, expected: tuple[int, ...] | None
) -> None:
    assert background_cores(topology, decoding, apart=apart) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"pace": float("nan")},
        {"pace": "12"},
        {"deadline_s": float("nan")},
        {"deadline_s": "5"},
        {"max_tokens": 1.5},
        {"max_tokens": "many"},
        {"max_tokens": True},
        {"pace": 1e-320},
        {"deadline_s": 1e10},
        {"deadline_s": 10**400},
        {"sampling": "greedy"},
        {"sampling": {"temperature": 1.0}},
        {"temperature": "hot"},
        {"temperature": float("inf")},
        {"temperature": 0.5, "seed": "abc"},
        {"temperature": 0.5, "seed": 1.5},
        {"seed": [1]},
        {"prompt": b"bytes"},
        {"prompt": "\ud800"},
        {"prompt": [5000]},
        {"task_class": "urgent"},
        {"task_class": None},
    ],
)
def test_a_wrong_argument_is_refused_and_stops_nobody_else(wrong: dict[str, object]) -> None:
    with open_engine(runtime="simulated") as edge:
        with pytest.raises(UsageError):
            edge.submit(**{"prompt": [1, 2, 3], **wrong})  # type: ignore[arg-type]
        assert edge.submit([1, 2, 3], max_tokens=5, sampling=ENDLESS).wait(30).finish is Finish.LENGTH


@pytest.mark.parametrize("prompt", [123, None, [1.5], ["a"]])
def test_a_prompt_that_is_neither_text_nor_ids_is_refused(prompt: object) -> None:
    with open_engine(runtime="simulated") as edge, pytest.raises(UsageError, match="neither text nor"):
        edge.submit(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 1.5}, {"top_k": -3}, {"top_p": 0.0}, {"top_p": 1.5}, {"min_p": 5}, {"repeat_penalty": 1e-300}],
)
def test_a_filter_that_no_sampler_can_apply_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Sampling(temperature=0.5, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"slowdown": "x"},
        {"slowdown": 0.5},
        {"target_itl_s": "80ms"},
        {"target_itl_s": 0.0},
        {"context": "a"},
        {"context": 0},
        {"slowdown": 2.0, "target_itl_s": 0.08},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        open_engine(runtime="simulated", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_a_callback_raises_the_others_go_on(error: type[BaseException]) -> None:
    def careless(record: TaskRecord, index: int = 0) -> None:
        raise error("not mine")

    with open_engine(runtime="simulated") as edge:
        bad = edge.engine.submit(spec(), on_token=careless, on_finish=careless)
        good = edge.engine.submit(spec())
        assert good.wait(30).finish is Finish.LENGTH
        assert bad.wait(30).finish is Finish.LENGTH
    assert any("callback" in message for message in edge.engine.messages)


def test_a_task_that_the_runtime_refuses_to_start_ends_alone() -> None:
    engine = engine_on("lanes")
    lane = engine._lanes.foreground
    opens, refused = lane.lane.open, []

    def open_once(sequence: int, sampling: Sampling) -> None:
        if not refused:
            refused.append(sequence)
            raise ValueError("no such sampler")
        opens(sequence, sampling)

    lane.lane.open = open_once  # type: ignore[method-assign]
    bad, good = engine.submit(spec()), engine.submit(spec())
    engine.run_until(lambda: False)
    assert bad.record.finish is Finish.ERROR
    assert "no such sampler" in str(bad.record.error)
    assert good.record.finish is Finish.LENGTH
    lane.sequences.forget_all()
    assert len(lane.sequences._free) == lane.lane.spec.sequences
    engine.close()


def test_an_engine_that_fails_in_any_way_ends_every_task() -> None:
    engine = engine_on("lanes")
    task = engine.submit(spec())

    def stop(record: StepRecord) -> None:
        raise SystemExit(1)

    engine.on_step = stop
    engine.start()
    assert task.wait(30).finish is Finish.ERROR
    assert engine.failure is not None
    with pytest.raises(EngineClosed):
        engine.submit(spec())
    engine.close()


def test_two_engines_cannot_share_a_runtime_and_one_can_follow_another() -> None:
    runtime = SimulatedRuntime(mode="lanes")
    first = Engine(runtime, Settings(placement=Placement.LANES))
    with pytest.raises(UsageError, match="close the engine"):
        Engine(runtime, Settings(placement=Placement.LANES))
    with pytest.raises(UsageError, match="close the engine"):
        Engine(runtime, Settings(placement=Placement.SHARED))
    first.close()
    Engine(runtime, Settings(placement=Placement.LANES)).close()


def test_a_cancelled_document_is_not_counted_as_done() -> None:
    engine = engine_on("lanes")
    whole = engine.submit(spec(64, Class.BACKGROUND, max_tokens=4))
    cut = engine.submit(spec(64, Class.BACKGROUND, max_tokens=4000))
    engine.call_at(2.0, cut.cancel)
    engine.run_until(lambda: whole.done and cut.done)
    assert cut.record.finish is Finish.CANCELLED
    assert engine.snapshot().background_finished == 1
    engine.close()


def test_a_reader_whose_loop_has_closed_keeps_nobody_waiting() -> None:
    engine = engine_on("lanes")
    ended: list[str] = []
    task = engine.submit(spec(max_tokens=4), on_finish=lambda record: ended.append(record.request_id))
    loop = asyncio.new_event_loop()
    reader = task.__aiter__()
    waiting = loop.create_task(reader.__anext__())  # type: ignore[arg-type]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    engine.run_until(lambda: task.done)
    engine.close()
    assert ended == [task.request_id]
    assert engine.messages == []
    del waiting


def test_an_infeasible_target_is_said_once() -> None:
    engine = engine_on("batched", "dlfp", target_itl_s=0.001)
    for _ in range(3):
        engine.submit(spec(2000, max_tokens=300))
    engine.run_until(lambda: False)
    engine.close()
    assert sum("infeasible" in message for message in engine.messages) == 1


def test_a_task_waits_for_cells_that_forks_of_a_dropped_prefix_still_hold() -> None:
    engine = engine_on("lanes", context=3000, foreground_share=1 / 3)
    prefix = tuple(i % 200 for i in range(800))
    first, fork = (
        engine.submit(TaskSpec((*prefix, *(n,) * 50), Class.BACKGROUND, tokens, ENDLESS))
        for n, tokens in ((1, 50), (2, 150))
    )
    engine.run_until(lambda: first.done and bool(fork.record.output_token_ids))
    large = engine.submit(TaskSpec((9,) * 1500, Class.BACKGROUND, 200, ENDLESS))
    engine.run_until(lambda: large.done)
    assert fork.record.cached_prompt_tokens == 800
    assert large.record.finish is Finish.LENGTH, large.record.error
    assert large.record.started is not None
    assert fork.record.finished is not None
    assert large.record.started >= fork.record.finished
    engine.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_itl_s": -1.0},
        {"target_itl_s": float("nan")},
        {"slowdown": 0.5},
        {"context": 0},
        {"queue_limit": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Settings(**wrong)  # type: ignore[arg-type]


def test_sampling_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="temperature"):
        Sampling(temperature=-1.0)


def test_a_prefix_in_use_is_not_dropped_to_make_room() -> None:
    engine = engine_on("lanes", context=900, foreground_share=0.1)
    head = tuple(range(100))
    first = [engine.submit(TaskSpec((*head, i), Class.BACKGROUND, 200, ENDLESS)) for i in range(2)]
    big = engine.submit(spec(600, Class.BACKGROUND, 50))
    engine.run_until(lambda: False)
    assert [task.record.finish for task in (*first, big)] == [Finish.LENGTH] * 3
    assert [task.record.cached_prompt_tokens for task in first] == [0, 100]
    engine.close()


def test_a_law_without_a_target_reports_none() -> None:
    engine = engine_on("batched", "unlimited")
    assert engine.snapshot().target_s is None
    engine.close()


def test_threads_in_lanes_follow_what_runs_beside() -> None:
    """Alone a class has what is fastest for it; together each decodes on CPUs of its own, prompts take turns on all."""
    engine, seen = engine_on("lanes"), list[StepRecord]()
    engine.on_step = seen.append
    engine.submit(spec(64, max_tokens=600))
    engine.call_at(2.0, lambda: engine.submit(spec(900, Class.BACKGROUND, max_tokens=40)) and None)
    engine.call_at(14.0, lambda: engine.submit(spec(900, Class.BACKGROUND, max_tokens=40)) and None)
    engine.run_until(lambda: False)
    engine.close()

    def threads(lane: str, kind: str, since: float, until: float) -> set[int]:
        return {
            step.threads
            for step in seen
            if step.lane == lane
            and since <= step.submitted < until
            and all(segment.kind == kind for segment in step.segments)
            and (step.note != "solo" or step.target_s is not None)
        }

    assert threads("foreground", "prefill", 0, 1) == {2}
    assert threads("foreground", "decode", 0, 2) == {2}
    both = [s.submitted for s in seen if s.lane == "background" and s.submitted < 8]
    assert threads("foreground", "decode", both[0] + 0.1, both[-1]) == {1}
    assert threads("background", "prefill", 2, 8) == {1}
    assert threads("background", "decode", 2, 8) == {1}
    assert threads("background", "decode", 14, 99) == {2}


def test_the_backstop_stops_background_that_priority_does_not_hold_back() -> None:
    runtime = SimulatedRuntime(CostModel(bandwidth=8.0), mode="lanes", cpus=range(8))
    engine, steps = Engine(runtime, Settings(placement=Placement.LANES)), list[StepRecord]()
    engine.on_step = steps.append
    for _ in range(6):
        engine.submit(spec(3000, Class.BACKGROUND, 1))
    chat = engine.submit(spec(16, max_tokens=400))
    engine.run_until(lambda: chat.done)
    background = [step for step in steps if step.lane == "background"]
    engine.close()
    assert engine.counters.backstops >= 3
    assert any(step.interrupted for step in background)
    assert any(step.budget and step.threads < int(step.budget) for step in background), "later steps get fewer threads"


def test_the_backstop_frees_a_shared_step_that_takes_too_long() -> None:
    slow = Slowdown(2.0, 6.0, 4.0)
    engine = Engine(SimulatedRuntime(mode="batched", slowdowns=[slow]), Settings(placement=Placement.SHARED))
    steps: list[StepRecord] = []
    engine.on_step = steps.append
    for _ in range(4):
        engine.submit(spec(3000, Class.BACKGROUND, 1))
    chat = engine.submit(spec(16, max_tokens=300))
    engine.run_until(lambda: chat.done)
    engine.close()
    assert engine.counters.backstops >= 1
    freed = [after for step, after in pairwise(steps) if step.interrupted and step.protected]
    assert freed
    assert all({s.kind for s in step.segments} == {"decode"} and step.note == "backstop" for step in freed)


def test_the_background_keeps_off_the_cores_of_a_reader_while_there_is_one() -> None:
    topology = CpuTopology((0, 1, 2, 3), None, ((0, 2), (1, 3)), (0, 1, 2, 3))
    engine = Engine(SimulatedRuntime(mode="lanes", cpus=range(4)), Settings(placement=Placement.LANES), topology)
    pinned: list[object] = []
    lane = engine._lanes.background.lane
    lane.pin = pinned.append  # type: ignore[method-assign]
    engine.submit(spec(3000, Class.BACKGROUND, 1))
    chat = engine.submit(spec(max_tokens=20))
    engine.run_until(lambda: chat.done)
    engine.run_until(lambda: False)
    engine.close()
    assert pinned == [background_cores(topology, engine.runtime.capabilities.decode_threads, apart=True), None]


def test_a_cancelled_reader_leaves_nothing_and_its_task_goes_on() -> None:
    with open_engine(runtime="simulated") as edge:
        task = edge.submit([1, 2, 3], max_tokens=2000, sampling=ENDLESS)

        async def read_a_little() -> None:
            async for _ in task:
                await asyncio.sleep(3600)

        async def give_up() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(read_a_little(), 0.05)

        asyncio.run(give_up())
        assert task._watchers == []
        assert task.wait(30).finish is Finish.LENGTH


def test_background_that_gets_nowhere_is_said() -> None:
    runtime = SimulatedRuntime(CostModel(trickle=1e-9), mode="lanes", cpus=(0,))
    engine = Engine(runtime, Settings(placement=Placement.LANES, context=60_000, foreground_share=0.9))
    engine.submit(spec(1000, Class.BACKGROUND))
    book = engine.submit(spec(40_000, max_tokens=1))
    engine.call_at(90.0, lambda: None)
    engine.run_until(lambda: engine.clock.now() > 100 or book.done)
    assert any("no progress for 60 s" in message for message in engine.messages)
    engine.close()


def test_a_cancelled_document_stops_its_step() -> None:
    engine = engine_on("batched")
    document = engine.submit(spec(2000, Class.BACKGROUND))
    engine.call_at(0.1, document.cancel)
    engine.run_until(lambda: False)
    assert engine.counters.preemptions == 1
    assert engine.clock.now() < 0.2, "the step was let run to its end"
    engine.close()


def _unless(large: Task) -> Callable[[Task], bool | Refusal]:
    """A place for every task but one."""
    return lambda task: task is not large or Refusal.NO_ROOM


def test_a_large_task_is_overtaken_for_a_while_only() -> None:
    queues: Queues[Task] = Queues(10)
    engine = engine_on("batched")
    large, small, later = engine.submit(spec(900)), engine.submit(spec(9)), engine.submit(spec(9))
    for task in (large, small, later):
        queues.put(task)
    assert queues.take(Class.FOREGROUND, AGE_LIMIT_S - 1, _unless(large)) == (small, True)
    assert queues.take(Class.FOREGROUND, AGE_LIMIT_S + 1, _unless(large)) is None
    assert queues.take(Class.FOREGROUND, AGE_LIMIT_S + 1, lambda task: True) == (large, True)
    engine.close()


def test_a_short_prompt_does_not_wait_for_a_long_one_of_another_reader() -> None:
    engine = engine_on("batched")
    reading = engine.submit(spec(20, max_tokens=400))
    long = engine.submit(spec(2000, max_tokens=4), arrived=0.0)
    short: list[Task] = []
    engine.call_at(0.3, lambda: short.append(engine.submit(spec(64, max_tokens=4))))
    engine.run_until(lambda: bool(short) and short[0].done and long.done and reading.done)
    engine.close()
    assert short[0].record.token_times[0] < long.record.token_times[0]
    assert short[0].record.token_times[0] - 0.3 < 2.0


def test_short_prompts_do_not_keep_a_long_one_out_for_ever() -> None:
    engine = engine_on("batched", foreground_sequences=8)
    long = engine.submit(spec(1500, max_tokens=4))
    for n in range(200):
        engine.call_at(0.1 * n, lambda: engine.submit(spec(48, max_tokens=1)) and None)
    engine.run_until(lambda: long.done)
    at = long.record.token_times[0]
    engine.close()
    assert at < 20.0, "while short ones still came"


@pytest.mark.parametrize(("slowdown", "said"), [(1.01, True), (3.0, False)])
def test_a_slowdown_that_cannot_be_reached_is_said_once(slowdown: float, said: bool) -> None:
    engine = engine_on("lanes", slowdown=slowdown)
    reader = engine.submit(spec(20, max_tokens=600))
    engine.submit(spec(9_000, Class.BACKGROUND, max_tokens=4))
    engine.run_until(lambda: reader.done)
    engine.close()
    told = [message for message in engine.messages if "infeasible" in message]
    assert len(told) == said, engine.messages
    assert all(message.startswith("a slowdown of 1.01 is infeasible: beside background work") for message in told)
