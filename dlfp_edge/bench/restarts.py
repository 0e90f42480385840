"""What becomes of tasks when the worker process is killed at random moments, and how soon there is another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psutil

from dlfp_edge.bench.report import QUANTILE_COLUMNS, Progress, Report, quantile_row
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.handle import Task
from dlfp_edge.runtime import LoadOptions, Sampling
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, Finish, TaskRecord, TaskSpec
from dlfp_edge.worker import WorkerEngine

_STREAMS = 2
_ANSWER_TOKENS = 64
_DOCUMENTS_AHEAD = 12
_DOCUMENT_TOKENS = 8
_PROMPT = 64
_WHILE_UP_S = (0.0, 3.0)
"""How long a worker lives once it has ended a document: one that never gets that far is not what is measured."""

_WHILE_LOADING_S = (0.05, 0.5)
_LOADING_EVERY = 5
_RESTART_S = 2.0
_PATIENCE_S = 120.0


def restarts(
    runtime: str, model: Path | None, runtime_options: Mapping[str, str], kills: int, progress: Progress
) -> Report:
    """Kill the worker `kills` times beside answers and documents, every fifth time while it loads.

    The report's fact "broken" lists what should not have happened: a document that did not complete exactly once, a
    token shown twice, an answer without a clear end, a process left over, restarts that mostly take over 2 s more than
    loading does.
    """
    options = {**({"clock": "real"} if runtime == "simulated" else {}), **runtime_options}
    load = LoadOptions(None if model is None else model.absolute(), (), 0, options=options)
    with WorkerEngine(load, Settings(), runtime=runtime) as engine:
        traffic = _Traffic(engine)
        pids = _kill(engine, kills, progress)
        progress(1.0, "waiting for what is left")
        traffic.finish()
        description, deaths = engine.runtime.describe(), engine.deaths
    left = sorted(pid for pid in pids if psutil.pid_exists(pid))
    whole = [(death.ready - death.at, death.load_s) for death in deaths if death.ready and death.load_s]
    beyond = [total_s - load_s for total_s, load_s in whole]
    broken = traffic.broken()
    broken += [f"processes left over: {left}"] if left else []
    if beyond and median(beyond) > _RESTART_S:
        broken.append(f"restarts took {median(beyond):.1f} s more than loading")
    return Report(
        "restarts",
        f"A worker killed {len(deaths)} times beside answers and documents",
        QUANTILE_COLUMNS,
        [
            quantile_row("death to ready", [total_s for total_s, _ in whole]),
            quantile_row("of that, loading", [load_s for _, load_s in whole]),
            quantile_row("restart less loading", beyond),
            quantile_row("a token's way to the front", traffic.ways_s),
        ],
        notes=[
            "documents: " + _counts(traffic.ends(Class.BACKGROUND)),
            "answers: " + _counts(traffic.ends(Class.FOREGROUND)),
            "not as it should be: " + ("; ".join(broken) or "nothing"),
        ],
        facts={
            "simulated": runtime == "simulated",
            "runtime": description,
            "broken": broken,
            "deaths": [{"how": death.how, "at": death.at, "ready": death.ready} for death in deaths],
            "documents": traffic.ends(Class.BACKGROUND),
            "answers": traffic.ends(Class.FOREGROUND),
        },
    )


def _kill(engine: WorkerEngine, kills: int, progress: Progress) -> list[int]:
    """Kill one worker after another; gives their process ids."""
    random, pids = Random(0), list[int]()
    finished = engine.snapshot().background_finished
    for number in range(kills):
        loading = number % _LOADING_EVERY == _LOADING_EVERY - 1
        progress(number / kills, f"kill {number + 1} of {kills}{', while loading' if loading else ''}")
        if not loading:
            _wait_until(lambda at=finished: engine.is_up and engine.snapshot().background_finished > at)
        time.sleep(random.uniform(*(_WHILE_LOADING_S if loading else _WHILE_UP_S)))
        _wait_until(lambda: engine.worker_pid is not None)
        pid = engine.worker_pid
        assert pid is not None
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
        _wait_until(lambda at=number: len(engine.deaths) > at)
        finished = engine.snapshot().background_finished
    _wait_until(lambda: engine.is_up)
    pids.append(engine.worker_pid or 0)
    return pids


def _wait_until(condition: Any) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > ends:
            raise RuntimeFailure(f"the worker was not there again after {_PATIENCE_S:g} s")
        time.sleep(0.01)


class _Traffic:
    """Answers one after another in some streams, documents ahead of the worker, and what became of each."""

    def __init__(self, engine: WorkerEngine) -> None:
        self._engine = engine
        self._random = Random(1)
        self._lock = threading.Lock()
        self._stopped = False
        self._tasks: list[Task] = []
        self._ends: Counter[str] = Counter()
        self._shown: Counter[tuple[str, int]] = Counter()
        self.ways_s: list[float] = []
        for task_class, count in ((Class.FOREGROUND, _STREAMS), (Class.BACKGROUND, _DOCUMENTS_AHEAD)):
            for _ in range(count):
                self._send(task_class)

    def finish(self) -> None:
        """Send nothing more and wait for what is under way."""
        with self._lock:
            self._stopped = True
            tasks = list(self._tasks)
        for task in tasks:
            task.wait(_PATIENCE_S)

    def ends(self, task_class: Class) -> dict[str, int]:
        """How many tasks of a class ended in which way."""
        return dict(
            Counter(
                "no end" if task.record.finish is None else str(task.record.error or "complete")
                for task in self._tasks
                if task.task_class is task_class
            )
        )

    def broken(self) -> list[str]:
        """What should not have happened."""
        found = [
            f"{task.request_id} ended {self._ends[task.request_id]} times, as {task.record.finish}"
            for task in self._tasks
            if self._ends[task.request_id] != 1 or not self._well(task)
        ]
        return found + [f"token {at} of {name} shown {n} times" for (name, at), n in self._shown.items() if n > 1]

    def _well(self, task: Task) -> bool:
        record = task.record
        if record.finish is Finish.LENGTH:
            return len(record.output_token_ids) == len(list(task)) == task.spec.max_tokens
        return task.task_class is Class.FOREGROUND and "worker died" in str(record.error)

    def _send(self, task_class: Class) -> None:
        foreground = task_class is Class.FOREGROUND
        vocabulary = self._engine.runtime.tokenizer.vocabulary
        spec = TaskSpec(
            prompt=tuple(self._random.randrange(min(vocabulary, 256)) for _ in range(_PROMPT)),
            task_class=task_class,
            max_tokens=_ANSWER_TOKENS if foreground else _DOCUMENT_TOKENS,
            sampling=Sampling(ignore_eos=True),
        )
        task = self._engine.submit(spec, on_token=self._token, on_finish=self._ended)
        with self._lock:
            self._tasks.append(task)

    def _token(self, record: TaskRecord, index: int) -> None:
        self._shown[record.request_id, index] += 1
        if record.task_class is Class.FOREGROUND:
            self.ways_s.append(self._engine.clock.now() - record.shown_times[index])

    def _ended(self, record: TaskRecord) -> None:
        self._ends[record.request_id] += 1
        with self._lock:
            stopped = self._stopped
        if not stopped:
            self._send(record.task_class)


def _counts(ends: dict[str, int]) -> str:
    return ", ".join(f"{count} {how}" for how, count in sorted(ends.items(), key=lambda item: -item[1]))
