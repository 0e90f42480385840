"""The engine on the real runtime and the embedded model: nothing is lost, and the words are the right ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from dlfp_edge import EngineClosed, open_engine
from dlfp_edge.device import CpuTopology
from dlfp_edge.engine import Engine
from dlfp_edge.plugins import detect_device, runtime_provider
from dlfp_edge.runtime import LoadOptions, Runtime, Sampling
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

pytest.importorskip("llama_cpp")
TASKS = 50


def _topology() -> CpuTopology:
    return detect_device().cpu()


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    cpu = _topology()
    options = LoadOptions(model=None, cpus=cpu.usable, cpu_limit=cpu.limit, options={"probe": "off"})
    loaded = runtime_provider("llama_cpp").load(options)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("placement", [Placement.LANES, Placement.SHARED])
def test_fifty_tasks_half_of_them_cancelled(runtime: Runtime, placement: Placement) -> None:
    before, random = threading.active_count(), Random(7)
    ended: list[str] = []
    settings = Settings(placement=placement, context=6000)
    with Engine(runtime, settings, _topology()) as engine:
        tasks = []
        for index in range(TASKS):
            task_class = random.choice(list(Class))
            longest = 60 if task_class is Class.FOREGROUND else 300
            prefix = 20 if task_class is Class.BACKGROUND and index % 2 else 0
            prompt = (9,) * prefix + tuple(random.randrange(300, 2000) for _ in range(random.randint(1, longest)))
            spec = TaskSpec(prompt, task_class, random.randint(1, 8), Sampling(ignore_eos=True))
            task = engine.submit(spec, on_finish=lambda record: ended.append(record.request_id))
            if random.random() < 0.5:
                engine.call_at(engine.clock.now() + random.expovariate(0.2), task.cancel)
            tasks.append(task)
        records = [task.wait(120) for task in tasks]
        deadline = time.monotonic() + 10
        engine.forget_prefixes()
        while engine.snapshot().kv_used and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.snapshot().kv_used == 0, "cells of ended tasks were not freed"
        assert engine.failure is None
    assert sorted(ended) == sorted(record.request_id for record in records), "a task ended twice or never"
    for record, task in zip(records, tasks, strict=True):
        assert record.finish in (Finish.LENGTH, Finish.CANCELLED)
        if record.finish is Finish.LENGTH:
            assert len(record.output_token_ids) == task.spec.max_tokens
        assert len(record.shown_times) == len(record.output_token_ids)
    assert threading.active_count() == before


def test_foreground_words_do_not_depend_on_the_background(runtime: Runtime) -> None:
    random = Random(3)
    prompt = tuple(random.randrange(300, 2000) for _ in range(120))
    asked = TaskSpec(prompt, Class.FOREGROUND, 24, Sampling(ignore_eos=True))
    with Engine(runtime, Settings(placement=Placement.LANES, context=6000), _topology()) as engine:
        alone = engine.submit(asked).wait(60).output_token_ids
        document = TaskSpec(prompt * 8, Class.BACKGROUND, 4, Sampling(ignore_eos=True))
        documents = [engine.submit(document) for _ in range(3)]
        beside = engine.submit(asked).wait(60).output_token_ids
        for task in documents:
            task.cancel()
    assert beside == alone


def test_an_answer_is_cut_before_a_stop_string_and_decoded_no_further(runtime: Runtime) -> None:
    prompt = tuple(runtime.tokenizer.encode("The three primary colours are"))
    with Engine(runtime, Settings(placement=Placement.LANES, context=2000), _topology()) as engine:
        whole = engine.submit(TaskSpec(prompt, max_tokens=40))
        whole.wait(60)
        for stop in (whole.text[20:23], whole.text[31:60]):
            task = engine.submit(TaskSpec(prompt, max_tokens=40, stop=(stop, "never said")))
            record = task.wait(60)
            assert record.finish is Finish.STOP
            assert record.stop_string == stop
            assert "".join(token.text for token in task) == task.text == whole.text[: whole.text.index(stop)]
            assert record.output_token_ids == whole.record.output_token_ids[: len(record.output_token_ids)]
            assert len(record.output_token_ids) < len(whole.record.output_token_ids)


def test_a_closed_model_is_refused_and_its_answers_stay_readable() -> None:
    with open_engine() as edge:
        task = edge.submit("The sky is", max_tokens=8)
        task.wait(60)
    edge.close()
    assert "".join(token.text for token in task)
    with pytest.raises(EngineClosed):
        edge.submit("a text that was not seen before")
    with pytest.raises(EngineClosed):
        edge.runtime.describe()
    with pytest.raises(EngineClosed):
        Engine(edge.runtime)


@pytest.mark.parametrize("broken", ["length", "clear"])
def test_a_lane_that_breaks_ends_every_task_and_the_next_engine_works(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def breaks(*_: object) -> int:
        raise OSError("the cache is gone")

    with Engine(runtime, Settings(placement=Placement.LANES, context=2000), _topology()) as engine:
        context = engine._lanes.background.lane._context  # type: ignore[attr-defined]
        for name in ("length", broken):
            monkeypatch.setattr(context, name, breaks)
        first = engine.submit(TaskSpec((5, 6, 7), Class.BACKGROUND, 4)).wait(60)
        second = engine.submit(TaskSpec((5, 6, 7), Class.BACKGROUND, 4)).wait(60) if engine.failure is None else first
    assert "cache is gone" in str(first.error)
    assert second.finish is Finish.ERROR
    with Engine(runtime, Settings(placement=Placement.LANES, context=2000), _topology()) as engine:
        assert engine.submit(TaskSpec((5, 6, 7), max_tokens=4)).wait(60).finish in (Finish.LENGTH, Finish.STOP)


def test_an_engine_that_failed_in_a_step_leaves_the_next_one_nothing(runtime: Runtime) -> None:
    settings = Settings(placement=Placement.LANES, context=4000)
    with Engine(runtime, settings, _topology()) as engine:
        document = engine.submit(TaskSpec(tuple(range(300, 1800)), Class.BACKGROUND, 4))
        engine.on_step = lambda record: 1 / 0  # type: ignore[assignment]
        engine.submit(TaskSpec((5, 6, 7), max_tokens=4)).wait(60)
        assert document.wait(60).finish is Finish.ERROR
    with Engine(runtime, settings, _topology()) as engine:
        assert engine.submit(TaskSpec((5, 6, 7), Class.BACKGROUND, 4)).wait(60).finish in (Finish.LENGTH, Finish.STOP)
        assert engine.failure is None
