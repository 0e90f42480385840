"""The engine's interface in front of a worker, and what becomes of tasks when the worker dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dlfp_edge import (
    Class,
    DlfpError,
    Edge,
    EngineClosed,
    Finish,
    QueueFull,
    Sampling,
    TaskSpec,
    UsageError,
    open_engine,
)
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.handle import Task
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import LoadOptions
from dlfp_edge.settings import Settings
from dlfp_edge.worker import WorkerEngine, supervisor

from .conftest import ENDLESS, OpenWorker, pid_of, until
from .plugin import unruly

DEATHS = {
    unruly.SEGFAULT: "SIGSEGV",
    unruly.ABORT: "SIGABRT",
    unruly.EXIT: "exit code 7",
    unruly.RAISE: "cache is gone",
}


def documents(edge: Edge, count: int, max_tokens: int = 5) -> list[Task]:
    return [
        edge.submit([number, 1, 2], task_class="background", max_tokens=max_tokens, sampling=ENDLESS)
        for number in range(count)
    ]


def chat(edge: Edge, max_tokens: int = 2000) -> Task:
    """An answer that is under way."""
    task = edge.submit([1, 2, 3], max_tokens=max_tokens, sampling=ENDLESS)
    until(lambda: task.record.shown_times)
    return task


def kill(edge: Edge, number: signal.Signals = signal.SIGKILL) -> int:
    """Send the worker a signal and wait until the front knows."""
    pid, before = pid_of(edge), len(edge.engine.deaths)  # type: ignore[attr-defined]
    os.kill(pid, number)
    until(lambda: len(edge.engine.deaths) > before)  # type: ignore[attr-defined]
    return pid


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that keeps a worker loading for as long as it is there."""
    return tmp_path / "gate"


# --- as an engine


def test_answers_are_those_of_an_engine_in_this_process(worker: OpenWorker) -> None:
    asked = {"max_tokens": 20, "sampling": ENDLESS}
    with open_engine(runtime="simulated") as here:
        expected = [token.id for token in here.submit("Where is the harbour?", **asked)]  # type: ignore[arg-type]
    edge = worker()
    answer = edge.submit("Where is the harbour?", **asked)  # type: ignore[arg-type]
    document = edge.submit("Where is the harbour?", task_class="background", **asked)  # type: ignore[arg-type]

    async def collect() -> list[int]:
        return [token.id for token in [token async for token in document]]

    assert [token.id for token in answer] == expected
    assert asyncio.run(collect()) == expected
    assert "".join(token.text for token in answer).startswith(" w")
    for record in (answer.record, document.record):
        assert record.finish is Finish.LENGTH
        assert record.prompt_tokens == len("Where is the harbour?")
        assert record.started is not None
        times = [record.arrived, record.started, *record.token_times, record.finished, edge.engine.clock.now()]
        assert times == sorted(times), "all on the clock of this process"
    assert edge.engine.placement.value == "lanes"
    assert edge.engine.controller_name == "lanes/dlfp"
    assert edge.runtime.describe()["runtime"] == "simulated"


def test_a_paced_answer_that_is_cancelled_ends_where_its_reader_is(worker: OpenWorker) -> None:
    edge = worker()
    edge.submit([9, 9], task_class="background", max_tokens=3000, sampling=ENDLESS)
    whole = edge.submit([1, 2, 3], max_tokens=12, sampling=ENDLESS, pace=40.0)
    task = edge.submit([1, 2, 3], max_tokens=12, sampling=ENDLESS, pace=2.0)
    until(lambda: len(task.record.shown_times) >= 2)
    task.cancel()
    record = task.wait(60)
    assert record.finish is Finish.CANCELLED
    count = len(record.shown_times)
    assert 2 <= count < 12
    assert count == len(record.due_times) == len(record.output_token_ids) == len(record.pieces)
    assert record.output_token_ids == whole.wait(60).output_token_ids[:count]
    assert whole.record.shown_times == sorted(whole.record.shown_times)
    assert len(whole.record.due_times) == 12


def test_tokens_reach_callbacks_in_order_and_a_callback_may_submit(worker: OpenWorker) -> None:
    edge, seen, followed = worker(), list[int](), list[Task]()

    def finished(record: object) -> None:
        followed.append(edge.engine.submit(TaskSpec(tuple(edge.runtime.tokenizer.encode("more")), max_tokens=2)))

    task = edge.engine.submit(
        TaskSpec((1, 2), max_tokens=10, sampling=ENDLESS),
        on_token=lambda record, index: seen.append(index),
        on_finish=finished,
    )
    assert len(task.wait(60).output_token_ids) == 10
    until(lambda: followed)
    assert followed[0].wait(60).finish is Finish.LENGTH
    assert seen == list(range(10))


def test_stop_strings_and_log_probabilities_travel(worker: OpenWorker) -> None:
    asked = TaskSpec((1, 2, 3), max_tokens=12, sampling=Sampling(ignore_eos=True, logprobs=2))
    edge = worker()
    whole = edge.engine.submit(asked)
    assert len(whole.wait(60).logprobs) == 12
    stop = whole.record.pieces[5].strip()
    for task_class in Class:
        cut = edge.engine.submit(replace(asked, task_class=task_class, stop=(stop,)))
        assert (cut.wait(60).finish, cut.record.stop_string) == (Finish.STOP, stop)
        assert cut.text == whole.text.partition(stop)[0] == "".join(token.text for token in cut)
        assert cut.record.logprobs == whole.record.logprobs[:6]


def test_answers_keep_to_a_schema(worker: OpenWorker) -> None:
    edge = worker()
    schema = {"const": "größe"}
    task = edge.submit("x", json_schema=schema, max_tokens=9)
    assert (task.wait(30).finish, task.text) == (Finish.STOP, '"größe"')
    with pytest.raises(UsageError, match="the shortest text of the grammar takes 9"):
        edge.submit("x", json_schema=schema, max_tokens=8)
    assert edge.runtime.tokenizer.spell("größe".encode()) == list("größe".encode())


def test_a_callback_that_raises_is_said_and_stops_nobody(worker: OpenWorker) -> None:
    edge = worker()
    bad = edge.engine.submit(TaskSpec((1, 2), max_tokens=3, sampling=ENDLESS), on_token=lambda record, index: 1 / 0)  # type: ignore[arg-type, func-returns-value]
    assert bad.wait(60).finish is Finish.LENGTH
    assert edge.submit([1, 2], max_tokens=3).wait(60).finish is Finish.LENGTH
    assert any("ZeroDivisionError" in message for message in edge.engine.snapshot().messages)


def test_an_action_that_raises_is_said_and_stops_nobody(worker: OpenWorker) -> None:
    edge = worker()
    edge.engine.call_at(0.0, lambda: 1 / 0)  # type: ignore[attr-defined, arg-type, return-value]
    assert edge.submit([1, 2], max_tokens=3).wait(60).finish is Finish.LENGTH
    assert any("ZeroDivisionError" in message for message in edge.engine.messages)


@pytest.mark.parametrize("isolated", [False, True])
def test_closing_in_a_callback_is_refused_in_words(isolated: bool) -> None:
    caught: list[str] = []
    options = {"clock": "real"}
    with open_engine(runtime="simulated", runtime_options=options, isolated=isolated) as edge:

        def close(record: object) -> None:
            with pytest.raises(UsageError, match=r"in a callback.* another thread") as refused:
                edge.close()
            caught.append(str(refused.value))

        edge.engine.submit(TaskSpec((1, 2), max_tokens=3, sampling=ENDLESS), on_finish=close).wait(60)
        until(lambda: caught)
        assert edge.submit([1, 2], max_tokens=3, sampling=ENDLESS).wait(60).finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TaskSpec(()), "empty"),
        (TaskSpec((1, 5000)), "outside 0..999"),
        (TaskSpec((1, 2**40)), "outside 0..999"),
        (TaskSpec((1, 2), stop=("",)), "stop string"),
        (TaskSpec((1, 2), sampling=Sampling(logit_bias={5000: 1})), "logit_bias holds a token id outside"),
        (TaskSpec((1,) * 50_000), "--ctx"),
        (TaskSpec((1, 2), max_tokens="many"), "max_tokens is 'many'"),  # type: ignore[arg-type]
        (TaskSpec((1, 2), "chat"), "task_class is 'chat'"),  # type: ignore[arg-type]
        (TaskSpec((1, 2), pace=float("nan")), "pace"),
    ],
)
def test_a_task_that_can_never_run_is_refused_at_once(worker: OpenWorker, spec: TaskSpec, says: str) -> None:
    edge = worker()
    with pytest.raises(UsageError, match=says):
        edge.engine.submit(spec)
    with pytest.raises(UsageError, match=says):
        edge.engine.check(spec)
    assert edge.submit([1, 2], max_tokens=3).wait(60).finish is Finish.LENGTH


def test_cancels_and_deadlines_end_tasks_wherever_they_are(worker: OpenWorker) -> None:
    edge = worker()
    running, cancelled = chat(edge), documents(edge, 20, max_tokens=1000)
    late = edge.submit([1], max_tokens=2000, sampling=ENDLESS, deadline_s=0.2)
    for task in [running, *cancelled]:
        task.cancel()
    assert running.wait(60).finish is Finish.CANCELLED
    assert running.record.output_token_ids, "what there was stays"
    assert all(task.wait(60).finish is Finish.CANCELLED for task in cancelled)
    assert late.wait(60).finish is Finish.DEADLINE


def test_held_background_waits_in_the_next_worker_too(worker: OpenWorker) -> None:
    edge = worker()
    edge.engine.hold_background(True)
    held = documents(edge, 2)
    kill(edge)
    assert edge.submit([1, 2], max_tokens=20, sampling=ENDLESS).wait(60).finish is Finish.LENGTH
    assert not any(task.done for task in held)
    edge.engine.hold_background(False)
    assert all(task.wait(60).finish is Finish.LENGTH for task in held)


def test_a_full_queue_refuses_clearly() -> None:
    options = LoadOptions(None, (), 0)
    with WorkerEngine(options, Settings(queue_limit=2, background_sequences=1), runtime="unruly") as engine:
        engine.hold_background(True)
        held = [engine.submit(TaskSpec((1,), Class.BACKGROUND, 2)) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 background tasks"):
            engine.submit(TaskSpec((1,), Class.BACKGROUND, 2))
        assert engine.submit(TaskSpec((1,), max_tokens=2)).wait(60).finish is Finish.LENGTH
        assert engine.snapshot().background_queued == 2
        engine.hold_background(False)
        assert all(task.wait(60).finish is Finish.LENGTH for task in held)
        assert engine.snapshot().background_finished == 3


def test_closing_ends_what_is_left_and_answers_stay_readable() -> None:
    edge = open_engine(runtime="unruly", isolated=True)
    done = edge.submit([1, 2], max_tokens=4, sampling=ENDLESS)
    done.wait(60)
    left = [chat(edge), *documents(edge, 20, max_tokens=1000)]
    pid = pid_of(edge)
    edge.close()
    edge.close()
    assert all(task.record.finish is Finish.CANCELLED for task in left)
    assert len("".join(token.text for token in done).split()) == 4
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineClosed):
        edge.submit([1, 2])
    with pytest.raises(EngineClosed):
        edge.submit("text")
    with pytest.raises(EngineClosed):
        edge.runtime.describe()


# --- deaths


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_documents_survive_the_worker_and_complete_once(worker: OpenWorker, number: signal.Signals) -> None:
    edge = worker()
    ends: list[str] = []
    shown: dict[str, list[int]] = {}
    tasks = [
        edge.engine.submit(
            TaskSpec((item, 1, 2), Class.BACKGROUND, 5, ENDLESS),
            on_token=lambda record, index: shown.setdefault(record.request_id, []).append(index),
            on_finish=lambda record: ends.append(record.request_id),
        )
        for item in range(20)
    ]
    until(lambda: edge.engine.snapshot().background_finished)
    kill(edge, number)
    with open_engine(runtime="simulated") as here:
        expected = [task.wait(60).output_token_ids for task in documents(here, 20)]
    assert [task.wait(60).output_token_ids for task in tasks] == expected
    assert sorted(ends) == sorted(task.request_id for task in tasks)
    assert all(indices == list(range(5)) for indices in shown.values())
    assert all(len(list(task)) == 5 for task in tasks)
    assert edge.engine.snapshot().background_finished == 20
    [death] = edge.engine.deaths  # type: ignore[attr-defined]
    assert number.name in death.how
    assert death.ready > death.at


def test_an_answer_under_way_ends_with_an_error_and_keeps_what_it_had(worker: OpenWorker) -> None:
    edge = worker()
    task = chat(edge)
    kill(edge)
    seen = []
    with pytest.raises(DlfpError, match=r"worker died during this answer \(SIGKILL: .*ask again"):
        seen += [token.id for token in task]  # pragma: no branch
    assert task.record.finish is Finish.ERROR
    assert task.record.output_token_ids
    assert edge.submit([1, 2, 3], max_tokens=3).wait(60).finish is Finish.LENGTH
    assert any("1 answers lost" in message for message in edge.engine.messages)


@pytest.mark.parametrize("poison", DEATHS)
@pytest.mark.parametrize("task_class", Class)
def test_a_task_that_kills_every_worker_is_ended_and_the_others_complete(
    worker: OpenWorker, poison: int, task_class: Class
) -> None:
    edge = worker()
    good = documents(edge, 2)
    bad = edge.submit([poison, 1], task_class=task_class, max_tokens=3)
    good += documents(edge, 3)
    record = bad.wait(60)
    assert record.finish is Finish.ERROR
    assert DEATHS[poison] in str(record.error)
    assert "died 3 times while this task ran" in str(record.error)
    assert all(task.wait(60).finish is Finish.LENGTH for task in good)
    assert edge.submit([1, 2, 3], max_tokens=3).wait(60).finish is Finish.LENGTH
    assert len(edge.engine.deaths) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", [unruly.JUNK, *unruly.NONSENSE])
def test_a_worker_that_sends_nonsense_is_replaced_and_said_in_one_line(worker: OpenWorker, token: int) -> None:
    edge = worker()
    edge.engine.hold_background(True)
    good, bad = documents(edge, 2), edge.submit([token, 1], max_tokens=3)
    until(lambda: edge.engine.deaths)  # type: ignore[attr-defined]
    bad.cancel()
    edge.engine.hold_background(False)
    assert all(task.wait(60).finish is Finish.LENGTH for task in good)
    assert bad.wait(60).finish in (Finish.CANCELLED, Finish.ERROR)
    assert edge.engine.failure is None
    assert "it sent" in edge.engine.deaths[0].how  # type: ignore[attr-defined]
    assert "\n" not in edge.engine.deaths[0].how  # type: ignore[attr-defined]


def test_the_next_worker_is_told_what_the_first_one_measured(worker: OpenWorker) -> None:
    edge = worker()
    assert edge.runtime.describe()["known"] is False
    kill(edge)
    assert edge.runtime.describe()["known"] is True


def test_a_crash_leaves_its_last_words(worker: OpenWorker) -> None:
    edge = worker()
    edge.submit([unruly.SEGFAULT], max_tokens=3).wait(60)
    assert any("Segmentation fault" in line for line in edge.engine.last_lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize("stops", ["process", "engine"])
def test_a_worker_that_hangs_is_killed_and_replaced(
    worker: OpenWorker, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    edge = worker()
    good = documents(edge, 3)
    monkeypatch.setattr(supervisor, "BEAT_S", 0.05)
    monkeypatch.setattr(supervisor, "SILENT_BEATS", 40)
    if stops == "process":
        os.kill(pid_of(edge), signal.SIGSTOP)
    else:
        edge.submit([unruly.HANG], max_tokens=3, deadline_s=1)
    until(lambda: edge.engine.deaths)  # type: ignore[attr-defined]
    monkeypatch.undo()
    assert all(task.wait(60).finish is Finish.LENGTH for task in good)
    assert "no sign of life" in edge.engine.deaths[0].how  # type: ignore[attr-defined]


def test_what_native_code_prints_disturbs_nothing(worker: OpenWorker, capfd: pytest.CaptureFixture[str]) -> None:
    edge = worker()
    record = edge.submit([unruly.NOISE, 1], max_tokens=50, sampling=ENDLESS).wait(60)
    assert len(record.output_token_ids) == 50
    assert edge.engine.deaths == ()  # type: ignore[attr-defined]
    kill(edge)
    lines = edge.engine.last_lines  # type: ignore[attr-defined]
    assert {"noise of native code", "more noise", "noise of Python"} <= set(lines)
    assert "noise" not in capfd.readouterr().out


# --- while the worker is being started again


def test_requests_wait_for_the_next_worker(worker: OpenWorker, gate: Path) -> None:
    edge = worker(runtime_options={"gate": str(gate)})
    gate.touch()
    kill(edge)
    early = [edge.submit([1, 2, 3], max_tokens=3), *documents(edge, 3)]
    dropped, late = edge.submit([1, 2, 3], max_tokens=3), edge.submit([1, 2, 3], deadline_s=0.01)
    wrong = edge.submit([1, 2], max_tokens=3, json_schema={"const": "much longer"})
    with pytest.raises(UsageError, match=r"outside 0\.\.999"):
        edge.submit([1, 5000], max_tokens=3)
    dropped.cancel()
    assert dropped.wait(60).finish is Finish.CANCELLED
    assert late.wait(60).finish is Finish.DEADLINE
    snapshot = edge.engine.snapshot()
    assert (snapshot.foreground_queued, snapshot.background_queued, snapshot.foreground_running) == (2, 3, 0)
    assert not any(task.done for task in early)
    gate.unlink()
    assert all(task.wait(60).finish is Finish.LENGTH for task in early)
    assert wrong.wait(60).finish is Finish.ERROR
    assert "the shortest text of the grammar takes" in str(wrong.record.error)


def test_text_is_encoded_by_the_next_worker(worker: OpenWorker, gate: Path) -> None:
    edge = worker(runtime_options={"gate": str(gate)})
    gate.touch()
    kill(edge)
    found: list[list[int]] = []
    asking = threading.Thread(target=lambda: found.append(edge.runtime.tokenizer.encode("abc")))
    asking.start()
    gate.unlink()
    asking.join(60)
    assert found == [list(b"abc")]


def test_a_question_the_dead_worker_had_goes_to_the_next(worker: OpenWorker) -> None:
    edge = worker()
    os.kill(pid_of(edge), signal.SIGSTOP)
    found: list[list[int]] = []
    asking = threading.Thread(target=lambda: found.append(edge.runtime.tokenizer.encode("abc")))
    asking.start()
    until(lambda: edge.engine._questions._replies._waiting)  # type: ignore[attr-defined]
    kill(edge)
    asking.join(60)
    assert found == [list(b"abc")]


def test_cancels_and_deadlines_of_what_the_dead_worker_had(worker: OpenWorker, gate: Path) -> None:
    edge = worker(runtime_options={"gate": str(gate)})
    edge.engine.hold_background(True)
    cancelled, late, other = (
        edge.submit([1, 2], task_class="background", max_tokens=3, deadline_s=deadline_s)
        for deadline_s in (None, 0.5, None)
    )
    gate.touch()
    kill(edge)
    cancelled.cancel()
    assert cancelled.wait(60).finish is Finish.CANCELLED
    assert late.wait(60).finish is Finish.DEADLINE
    gate.unlink()
    edge.engine.hold_background(False)
    assert other.wait(60).finish is Finish.LENGTH


def test_closing_while_a_worker_is_started_ends_both(gate: Path) -> None:
    edge = open_engine(runtime="unruly", runtime_options={"gate": str(gate)}, isolated=True)
    tasks = [chat(edge), *documents(edge, 3, max_tokens=1000)]
    gate.touch()
    kill(edge)
    pid = pid_of(edge)
    edge.close()
    assert [task.wait(0).finish for task in tasks] == [Finish.ERROR, *[Finish.CANCELLED] * 3]
    assert not psutil.pid_exists(pid)


def test_a_worker_that_dies_over_loading_fails_the_engine_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "dies").touch()
    with pytest.raises(RuntimeFailure, match=r"SIGABRT.* its last words: .*[Ee]rror") as failure:
        open_engine(runtime="unruly", runtime_options={"dies": str(tmp_path / "dies")}, isolated=True)
    assert "\n" not in str(failure.value)


def test_an_engine_that_no_worker_survives_ends_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    with open_engine(runtime="unruly", runtime_options={"dies": str(tmp_path / "dies")}, isolated=True) as edge:
        tasks = documents(edge, 5, max_tokens=1000)
        (tmp_path / "dies").touch()
        kill(edge)
        for task in tasks:
            assert "no worker stays alive" in str(task.wait(60).error)
        with pytest.raises(EngineClosed, match="SIGABRT"):
            edge.submit([1, 2])
        with pytest.raises(EngineClosed, match="SIGABRT"):
            edge.submit("text")
        assert isinstance(edge.engine.failure, RuntimeFailure)


def test_what_cannot_be_loaded_is_said_as_ever(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown runtime 'nothing'"):
        open_engine(runtime="nothing", isolated=True)
    with pytest.raises(UsageError, match="clock=real"):
        open_engine(runtime="simulated", isolated=True)
    with pytest.raises(UsageError, match="lower --ctx"):
        open_engine(runtime="unruly", context=2**30, isolated=True)


# --- the front's own end


FRONT = """
import sys, time
from dlfp_edge import open_engine, Sampling
edge = open_engine(runtime="unruly", isolated=True)
task = edge.submit([1, 2], max_tokens=5000, sampling=Sampling(ignore_eos=True))
next(iter(task))
print(edge.engine.worker_pid, flush=True)
if sys.argv[1] == "leaves":
    sys.exit()
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "leaves"])
def test_a_busy_worker_ends_with_its_front(how: str) -> None:
    front = subprocess.Popen([sys.executable, "-c", FRONT, how], stdout=subprocess.PIPE, text=True)
    with front:
        assert front.stdout is not None
        worker = psutil.Process(int(front.stdout.readline()))
        if how == "killed":
            front.kill()
        front.wait(60)
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


FORKED = """
import os
from dlfp_edge import DlfpError, TaskSpec, open_engine
edge = open_engine(runtime="unruly", isolated=True)
engine = edge.engine
task = edge.submit("inherited", max_tokens=3)
child = os.fork()
if child == 0:
    for ask in (
        lambda: edge.submit("text"), lambda: edge.submit([1]), lambda: engine.submit(TaskSpec((1,))),
        lambda: engine.check(TaskSpec((1,))), lambda: engine.hold_background(True), engine.forget_prefixes,
        lambda: engine.call_at(0.0, print), engine.snapshot, edge.runtime.describe, task.wait, lambda: list(task),
    ):
        try:
            ask()
        except DlfpError as error:
            print(error, flush=True)
    edge.close()
    os._exit(0)
assert os.waitpid(child, 0) == (child, 0)
print(edge.submit("text", max_tokens=3).wait(60).finish.value)
edge.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_a_process_made_by_fork_is_told_that_it_has_no_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120, check=False
    )
    *refused, here = done.stdout.splitlines()
    assert (done.returncode, done.stderr, here) == (0, "", "length")
    assert len(refused) == 11
    assert all("made by fork(): open one here" in line for line in refused)


def test_many_threads_share_one_front(worker: OpenWorker) -> None:
    edge, found = worker(), list[Finish | None]()
    threads = [
        threading.Thread(target=lambda at=at: found.append(edge.submit([at, 1], max_tokens=4).wait(60).finish))
        for at in range(20)
    ]
    for thread in threads:
        thread.start()
    kill(edge)
    for thread in threads:
        thread.join()
    assert set(found) <= {Finish.LENGTH, Finish.ERROR}
    assert len(found) == 20


def test_threads_and_descriptors_do_not_grow_with_restarts(worker: OpenWorker) -> None:
    edge, process = worker(), psutil.Process()

    def held() -> tuple[int, int]:
        edge.submit([1, 2], max_tokens=3, sampling=Sampling(ignore_eos=True)).wait(60)
        return threading.active_count(), process.num_fds()

    kill(edge)
    before = held()
    for _ in range(4):
        kill(edge)
        held()
    until(lambda: held() <= before)  # what the last one held may still be closing
    assert detect_device().cpu().limit >= 1


def test_a_text_embedded_by_a_worker(worker: OpenWorker) -> None:
    edge = worker("simulated", runtime_options={"clock": "real"})
    record = edge.embed([5] * 100).wait(30)
    assert record.finish is Finish.STOP, record.error
    assert record.embedding is not None
    assert sum(value * value for value in record.embedding) == pytest.approx(1.0, abs=1e-5)
    assert edge.submit([1, 2, 3], max_tokens=4, sampling=ENDLESS).wait(30).finish is Finish.LENGTH


def test_a_worker_forgets_what_was_said(worker: OpenWorker) -> None:
    edge = worker("simulated", runtime_options={"clock": "real"})
    cached = []
    for forget in (False, False, True):
        if forget:
            edge.engine.forget_prefixes()
        cached.append(edge.submit([7] * 60, max_tokens=4, sampling=ENDLESS).wait(30).cached_prompt_tokens)
    assert cached == [0, 59, 0]
