"""Random load on an engine over the simulated runtime, on virtual time, and the checks every run must pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskRecord, TaskSpec
from dlfp_edge.trace import StepRecord

from .stop_oracle import cut

STOPS = [(), (), ("5 w6",), ("7", " w777"), ("1 w1 w1", "21 w")]
"""Strings that the simulated model's words make up now and then."""


@dataclass
class Load:
    """A run that can be replayed: tasks at random times, some cancelled at random moments."""

    runtime: SimulatedRuntime
    settings: Settings
    seed: int
    tasks: int = 60
    cancelled: float = 0.5
    span_s: float = 30.0
    pace: float | None = None
    longest_prompt: int = 700
    longest_output: int = 40
    ended: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[int]] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)
    submitted: list[Task] = field(default_factory=list)

    def run(self) -> Engine:
        """Run it to the end and close the engine."""
        engine = Engine(self.runtime, self.settings)
        engine.on_step = self.steps.append
        random = Random(self.seed)
        for _ in range(self.tasks):
            spec = self._spec(random)
            at = random.uniform(0, self.span_s)
            cancel_after = random.expovariate(1.0) if random.random() < self.cancelled else None
            engine.call_at(at, lambda spec=spec, after=cancel_after: self._submit(engine, spec, after))
        engine.run_until(lambda: False)
        for lane in engine._lanes.all:
            lane.sequences.forget_all()
        self.cells_left = sum(lane.lane.kv_used() for lane in engine._lanes.all)
        engine.close()
        return engine

    def _spec(self, random: Random) -> TaskSpec:
        task_class = random.choice(list(Class))
        prefix = 40 if task_class is Class.BACKGROUND and random.random() < 0.5 else 0
        prompt = (7,) * prefix + tuple(random.randrange(200) for _ in range(random.randint(1, self.longest_prompt)))
        most = random.randint(1, self.longest_output)
        return TaskSpec(
            prompt=prompt,
            task_class=task_class,
            max_tokens=most,
            sampling=Sampling(ignore_eos=random.random() < 0.5, min_tokens=most // 2 if most % 3 else 0),
            pace=self.pace if task_class is Class.FOREGROUND else None,
            deadline_s=random.choice([None, None, 5.0, 0.01]),
            stop=STOPS[most % len(STOPS)],
        )

    def _submit(self, engine: Engine, spec: TaskSpec, cancel_after: float | None) -> None:
        task = engine.submit(spec, on_token=self._token, on_finish=self._finish)
        self.submitted.append(task)
        if cancel_after is not None:
            engine.call_at(engine.clock.now() + cancel_after, task.cancel)

    def _token(self, record: TaskRecord, index: int) -> None:
        shown = self.shown.setdefault(record.request_id, [])
        assert index == len(shown), "a token was shown twice or out of order"
        shown.append(record.output_token_ids[index])

    def _finish(self, record: TaskRecord) -> None:
        self.ended[record.request_id] += 1


def answer_alone(spec: TaskSpec, seed: int, end_probability: float) -> list[int]:
    """The tokens a task gives on a runtime of its own: the oracle for every schedule."""
    runtime = SimulatedRuntime(mode="batched", seed=seed, end_probability=end_probability)
    engine = Engine(runtime, Settings(placement=Placement.SHARED, controller="unlimited"))
    alone = TaskSpec(prompt=spec.prompt, max_tokens=spec.max_tokens, sampling=spec.sampling, stop=spec.stop)
    task = engine.submit(alone)
    engine.run_until(lambda: task.done)
    engine.close()
    return task.record.output_token_ids


def check_everything_ended(load: Load) -> None:
    """Each task ended once, nothing was lost or doubled, and every KV cell came back."""
    assert len(load.submitted) == load.tasks
    for task in load.submitted:
        record = task.record
        assert load.ended[record.request_id] == 1
        assert record.finish is not None
        assert task.done
        assert load.shown.get(record.request_id, []) == record.output_token_ids
        assert len(record.token_times) == len(record.shown_times) == len(record.output_token_ids)
        assert record.token_times == sorted(record.token_times)
        assert all(shown >= there for shown, there in zip(record.shown_times, record.token_times, strict=True))
        assert len(record.due_times) == (len(record.shown_times) if task.spec.pace else 0)
        for shown, there, due in zip(record.shown_times, record.token_times, record.due_times, strict=False):
            # Where segments run one after another the engine hears of a token at the end of their step.
            held = shown > max(there, due) + 1e-9
            assert not (held and load.runtime.capabilities.batched), "a token that was there was held past its time"
    assert load.cells_left == 0


def check_tokens(load: Load, seed: int, end_probability: float) -> None:
    """Every answer is a prefix of, and a finished one equals, what the task gives alone."""
    for task in load.submitted:
        alone = answer_alone(task.spec, seed, end_probability)
        ids = task.record.output_token_ids
        assert ids == alone[: len(ids)]
        said = b"".join(map(load.runtime.tokenizer.token_bytes, ids)).decode()
        assert task.text == task.record.text == cut(said, task.spec.stop)[0]
        if task.record.finish in (Finish.STOP, Finish.LENGTH):
            assert ids == alone
