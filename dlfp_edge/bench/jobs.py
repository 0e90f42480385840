"""Requests for benches that need an engine: random prompts, sent and waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dlfp_edge.bench.steps import random_tokens
from dlfp_edge.engine import Engine
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.handle import Task
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, Finish, TaskRecord, TaskSpec


@contextmanager
def running(runtime: Runtime, settings: Settings) -> Iterator[Engine]:
    """An engine that runs during the block and leaves the runtime loaded."""
    with Engine(runtime, settings, detect_device().cpu()) as engine:
        yield engine


def foreground(runtime: Runtime, prompt: int, output: int, seed: int = 0) -> TaskSpec:
    """A greedy foreground request of exact lengths."""
    return _spec(runtime, Class.FOREGROUND, prompt, output, seed)


def background(runtime: Runtime, prompt: int, output: int = 1, seed: int = 0) -> TaskSpec:
    """A greedy background request of exact lengths."""
    return _spec(runtime, Class.BACKGROUND, prompt, output, seed)


def wait_all(tasks: Iterable[Task]) -> list[TaskRecord]:
    """The records of tasks once each has ended. Raises RuntimeFailure for one that failed."""
    records = [task.wait() for task in tasks]
    for record in records:
        if record.failed:
            raise RuntimeFailure(f"request {record.label} failed: {record.error or record.finish}")
    return records


class EndlessBackground:
    """Keeps the engine supplied with background documents until told to stop."""

    def __init__(self, engine: Engine, prompt: int, ahead: int = 2) -> None:
        self._engine, self._prompt = engine, prompt
        self._stopped = False
        self._sent = 0
        self._live: dict[str, Task] = {}
        for _ in range(ahead):
            self._send()

    def stop(self) -> None:
        """Send nothing more and cancel what is under way."""
        self._stopped = True
        for task in list(self._live.values()):
            task.cancel()
            task.wait()

    def _send(self) -> None:
        self._sent += 1
        spec = background(self._engine.runtime, self._prompt, seed=1000 + self._sent)
        task = self._engine.submit(spec, on_finish=self._next)
        self._live[task.request_id] = task

    def _next(self, record: TaskRecord) -> None:
        self._live.pop(record.request_id, None)
        if not self._stopped and record.finish is not Finish.CANCELLED:
            self._send()


def _spec(runtime: Runtime, task_class: Class, prompt: int, output: int, seed: int) -> TaskSpec:
    return TaskSpec(
        prompt=random_tokens(runtime, prompt, seed),
        task_class=task_class,
        max_tokens=output,
        sampling=Sampling(ignore_eos=True),
        label=f"{task_class.value}-{prompt}-{seed}",
    )
