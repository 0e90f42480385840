"""Texts to embed are work like any other: of a class, cut into chunks, interruptible, and never in a reader's way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dlfp_edge import UsageError, open_engine
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Pooling, Sampling
from dlfp_edge.runtimes.simulated import MODES, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

MODE_NAMES = [name for name in MODES if name != "null"]


def _engine(mode: str, **more: object) -> Engine:
    placement = Placement.LANES if MODES[mode].lanes > 1 else Placement.SHARED
    return Engine(SimulatedRuntime(mode=mode), Settings(placement=placement, **more))  # type: ignore[arg-type]


def _text(salt: int, length: int, task_class: Class = Class.FOREGROUND) -> TaskSpec:
    return TaskSpec(tuple((salt * 37 + i * 7) % 250 for i in range(length)), task_class, max_tokens=1, embed=True)


def _embedding(spec: TaskSpec) -> tuple[float, ...]:
    engine = _engine("batched")
    task = engine.submit(spec)
    engine.run_until(lambda: task.done)
    engine.close()
    assert task.record.embedding is not None
    return task.record.embedding


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_many_texts_of_both_classes_beside_a_reader(mode: str) -> None:
    engine = _engine(mode, context=6000)
    reader = engine.submit(TaskSpec((1, 2, 3) * 20, Class.FOREGROUND, 100, Sampling(ignore_eos=True)))
    specs = [_text(n, 1 + 97 * n % 400, Class.BACKGROUND if n % 2 else Class.FOREGROUND) for n in range(12)]
    tasks = [engine.submit(spec) for spec in specs]
    engine.run_until(lambda: False)
    assert reader.record.finish is Finish.LENGTH
    for task in tasks:
        assert task.record.finish is Finish.STOP, task.record.error
        assert not task.record.output_token_ids
        assert task.record.embedding == pytest.approx(_embedding(task.spec), abs=1e-5)
        assert np.linalg.norm(task.record.embedding) == pytest.approx(1.0, abs=1e-5)
    engine.close()


@pytest.mark.parametrize("mode", ["lanes", "batched"])
@pytest.mark.parametrize("task_class", list(Class))
def test_a_long_text_does_not_stall_a_reader(mode: str, task_class: Class) -> None:
    engine = _engine(mode, target_itl_s=0.040)
    reader = engine.submit(TaskSpec((1, 2, 3) * 20, Class.FOREGROUND, 100, Sampling(ignore_eos=True)))
    engine.run_until(lambda: bool(reader.record.output_token_ids))
    text = engine.submit(_text(1, 2000, task_class))
    engine.run_until(lambda: reader.done)
    gaps = [after - before for before, after in pairwise(reader.record.token_times)]
    assert max(gaps) <= 1.4 * 0.040
    engine.run_until(lambda: text.done)
    assert text.record.embedding is not None
    engine.close()


def test_a_text_leaves_nothing_behind_and_starts_from_nothing() -> None:
    engine = _engine("lanes")
    for _ in range(2):
        task = engine.submit(_text(1, 300))
        engine.run_until(lambda task=task: task.done)  # type: ignore[misc]
        assert task.record.cached_prompt_tokens == 0
    assert engine.snapshot().kv_used == 0
    engine.close()


def test_the_state_after_the_last_token_alone_where_the_model_was_trained_so() -> None:
    mode = replace(MODES["batched"], pooling=Pooling.LAST)
    engine = Engine(SimulatedRuntime(mode=mode), Settings(placement=Placement.SHARED))
    task = engine.submit(_text(1, 200))
    engine.run_until(lambda: task.done)
    assert task.record.embedding is not None
    assert task.record.embedding != pytest.approx(_embedding(task.spec), abs=1e-3)
    engine.close()


def test_a_model_without_embeddings_says_so() -> None:
    engine = Engine(SimulatedRuntime(mode=replace(MODES["batched"], pooling=Pooling.NONE)), Settings())
    with pytest.raises(UsageError, match="embeddings"):
        engine.submit(_text(1, 20))
    engine.close()


def test_texts_that_do_not_fit_are_refused_with_their_length() -> None:
    engine = _engine("lanes", context=600)
    with pytest.raises(UsageError, match="500 tokens"):
        engine.submit(_text(1, 500))
    engine.close()


def test_from_the_api() -> None:
    with open_engine(runtime="simulated") as edge:
        task = edge.embed("a text", task_class="background")
        record = task.wait(10)
        assert record.embedding is not None
        assert list(task) == []
        with pytest.raises(UsageError):
            edge.embed("")
