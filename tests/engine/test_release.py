"""The thread that shows paced tokens, in real time: what it tells, in which order, and that it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dlfp_edge import Class, Engine, Finish, Sampling, Settings, Task, TaskSpec
from dlfp_edge.clock import SystemClock
from dlfp_edge.playout import Playout
from dlfp_edge.release import Release
from dlfp_edge.runtimes.simulated import CostModel, SimulatedRuntime
from dlfp_edge.runtimes.simulated.tokens import ByteTokenizer
from dlfp_edge.task import TaskRecord
from dlfp_edge.wakeup import KEPT, LONGEST_LEAD_S, Lead

PATIENCE_S = 30.0
ENDLESS = Sampling(ignore_eos=True)
QUICK = CostModel(base_s=0.0005)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(SimulatedRuntime(QUICK, clock=SystemClock()), Settings(foreground_sequences=8)) as engine:
        yield engine
    assert not [thread for thread in threading.enumerate() if thread.name == "dlfp-release"]


class Told:
    """What callbacks were told of a task, and by which threads."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.ends = 0
        self.threads: set[str] = set()
        self.ended = threading.Event()

    def token(self, record: TaskRecord, index: int) -> None:
        assert not self.ends, "a token after the end"
        assert len(record.shown_times) > index
        self.indices.append(index)
        self.threads.add(threading.current_thread().name)

    def finish(self, record: TaskRecord) -> None:
        self.ends += 1
        self.threads.add(threading.current_thread().name)
        self.ended.set()


def ask(engine: Engine, number: int = 0, *, told: Told | None = None, **more: Any) -> tuple[Task, Told]:
    told = told or Told()
    asked = {"pace": 150.0, "max_tokens": 30, "sampling": ENDLESS, **more}
    task = engine.submit(TaskSpec((number, 1, 2), **asked), on_token=told.token, on_finish=told.finish)
    return task, told


def check(task: Task, told: Told) -> None:
    record = task.record
    count = len(record.output_token_ids)
    assert told.indices == list(range(count))
    assert told.ends == 1
    assert count == len(record.token_times) == len(record.shown_times)
    assert len(record.due_times) == (count if task.spec.pace else 0)
    assert all(shown >= there for shown, there in zip(record.shown_times, record.token_times, strict=True))
    assert record.shown_times == sorted(record.shown_times)
    if record.finish is not Finish.ERROR:
        assert [token.id for token in task if token.id is not None] == record.output_token_ids


def test_every_answer_is_told_whole_and_in_order_by_one_thread(engine: Engine) -> None:
    papers = [ask(engine, 50 + n, task_class=Class.BACKGROUND, pace=None, max_tokens=60) for n in range(4)]
    chats = [ask(engine, n, pace=(None, 40.0, 150.0, 2000.0)[n % 4]) for n in range(12)]
    for task, told in [*chats, *papers]:
        assert told.ended.wait(PATIENCE_S)
        check(task, told)
        assert task.record.finish is Finish.LENGTH
        assert told.threads == ({"dlfp-release"} if task.spec.pace else {"dlfp-engine"})


def test_readers_in_other_threads_see_every_token(engine: Engine) -> None:
    tasks = [ask(engine, n)[0] for n in range(4)]
    read: dict[str, list[int | None]] = {}
    readers = [
        threading.Thread(target=lambda task=task: read.update({task.request_id: [token.id for token in task]}))
        for task in tasks
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert read == {task.request_id: task.record.output_token_ids for task in tasks}


def test_callbacks_may_be_slow_or_raise_or_cancel(engine: Engine) -> None:
    class Slow(Told):
        def token(self, record: TaskRecord, index: int) -> None:
            super().token(record, index)
            time.sleep(0.005)

    class Careless(Told):
        def token(self, record: TaskRecord, index: int) -> None:
            super().token(record, index)
            raise RuntimeError("reader's fault")

    class Enough(Told):
        def token(self, record: TaskRecord, index: int) -> None:
            super().token(record, index)
            if index == 4:
                enough.cancel()

    slow = ask(engine, 1, told=Slow())
    careless = ask(engine, 2, told=Careless())
    enough, enough_told = ask(engine, 3, told=Enough(), max_tokens=400)
    for task, told in (slow, careless, (enough, enough_told)):
        assert told.ended.wait(PATIENCE_S)
        check(task, told)
    assert enough.record.finish is Finish.CANCELLED
    assert 5 <= len(enough.record.output_token_ids) < 400
    assert slow[0].record.finish is careless[0].record.finish is Finish.LENGTH
    assert len([message for message in engine.messages if "reader's fault" in message]) == 1


def test_an_engine_cannot_be_closed_in_a_callback(engine: Engine) -> None:
    class Closing(Told):
        def token(self, record: TaskRecord, index: int) -> None:
            super().token(record, index)
            engine.close()

    task, told = ask(engine, told=Closing())
    assert told.ended.wait(PATIENCE_S)
    check(task, told)
    assert any("close it in another thread" in message for message in engine.messages)


def test_cancels_at_any_moment_leave_what_was_shown(engine: Engine) -> None:
    for number in range(40):
        task, told = ask(engine, number, max_tokens=5 + number % 20, pace=1000.0)
        if number % 2:
            engine.submit(TaskSpec((200 + number,), Class.BACKGROUND, 3, ENDLESS))
        time.sleep(0.0007 * (number % 30))
        task.cancel()
        assert told.ended.wait(PATIENCE_S)
        check(task, told)


def test_closing_shows_what_is_there_and_ends_everybody_once(engine: Engine) -> None:
    chats = [ask(engine, n, pace=20.0, max_tokens=2000) for n in range(3)]
    done = ask(engine, 9, pace=8.0, max_tokens=20)
    while done[0].record.finish is None or any(len(task.record.token_times) < 10 for task, _ in chats):
        time.sleep(0.002)
    engine.close()
    for task, told in [*chats, done]:
        check(task, told)
    assert [task.record.finish for task, _ in chats] == [Finish.CANCELLED] * 3
    assert done[0].record.finish is Finish.LENGTH
    assert len(done[0].record.shown_times) == 20


def test_what_ends_the_thread_ends_the_engine_and_every_record(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError("no room for a float")

    monkeypatch.setattr(Playout, "show", broken)
    task, told = ask(engine, max_tokens=2000)
    assert told.ended.wait(PATIENCE_S)
    check(task, told)
    assert task.record.finish is Finish.ERROR


def test_an_answer_that_was_over_does_not_end_between_being_cut_and_being_cancelled() -> None:
    told: list[object] = []
    release = Release(SystemClock(), lambda task, position, last: told.append((position, last)), told.append)
    spec = TaskSpec((1,), pace=10.0)
    task = Task(spec, TaskRecord("f0", Class.FOREGROUND, "", 1, 0.0), ByteTokenizer(), lambda _: None, None, None)
    playout = Playout(10.0)
    release.contend(True)
    for _ in range(3):
        release.add(task, playout, 5.0, 0.0)
    release.serve(5.0)
    assert release.finish(task, lambda: None, at_once=False)
    assert release.drop(task)
    release.serve(100.0)
    assert told == [(0, False)]
    assert release.next_due() is None
    assert release.finish(task, lambda: None, at_once=True)
    release.serve(100.0)
    assert told == [(0, False), task]
    assert not release.drop(task)
    assert not release.finish(task, lambda: told.append("again"), at_once=True)
    assert told == [(0, False), task]


def test_with_nothing_to_show_the_thread_sleeps() -> None:
    class CountingClock(SystemClock):
        reads = 0

        def now(self) -> float:
            self.reads += 1
            return super().now()

    clock = CountingClock()
    release = Release(clock, lambda *_: None, lambda _: None)
    release.start(lambda _: None)
    time.sleep(0.1)
    assert clock.reads <= 1
    release.stop()
    assert release.thread is None


def test_the_lead_is_the_longest_of_the_newest_waits() -> None:
    lead = Lead()
    lead.learn(0.004)
    assert lead.seconds == 0.004
    for _ in range(KEPT):
        lead.learn(0.0001)
    assert lead.seconds == 0.0001
    lead.learn(LONGEST_LEAD_S)
    assert lead.seconds == LONGEST_LEAD_S


def test_a_wait_that_was_held_up_teaches_no_lead() -> None:
    lead = Lead()
    lead.learn(0.004)
    lead.learn(3.0)
    assert lead.seconds == 0.004
