"""What ended tasks leave for prompts that begin the same: never other tokens, and no work done twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import QueueFull, UsageError, open_engine
from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.queues import AGE_LIMIT_S
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import MODES, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

from .driver import answer_alone

ENDLESS = Sampling(ignore_eos=True)
MODE_NAMES = [name for name in MODES if name != "null"]


def _engine(mode: str, context: int = 6000, **more: object) -> Engine:
    placement = Placement.LANES if MODES[mode].lanes > 1 else Placement.SHARED
    return Engine(SimulatedRuntime(mode=mode), Settings(placement=placement, context=context, **more))  # type: ignore[arg-type]


def _ask(engine: Engine, prompt: tuple[int, ...], output: int = 20) -> Task:
    task = engine.submit(TaskSpec(prompt, Class.FOREGROUND, output, ENDLESS))
    engine.run_until(lambda: task.done)
    return task


def _numbers(salt: int, count: int) -> tuple[int, ...]:
    return tuple((salt * 37 + i * 7) % 250 for i in range(count))


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_a_second_turn_computes_its_new_tokens_alone(mode: str) -> None:
    engine = _engine(mode)
    first = _ask(engine, _numbers(1, 400))
    said = (*first.spec.prompt, *first.record.output_token_ids)
    second = _ask(engine, (*said, *_numbers(2, 30)))
    assert second.record.cached_prompt_tokens == len(said) - 1, "all but the token that was never computed"
    assert second.record.output_token_ids == answer_alone(second.spec, 0, 0.0)
    engine.close()


def test_where_short_chunks_are_shunned_only_the_prompt_is_kept() -> None:
    """Decoded cells come from other kernels there than those a prompt would give: words would depend on the past."""
    mode = replace(MODES["batched"], min_chunk=8)
    engine = Engine(SimulatedRuntime(mode=mode), Settings(placement=Placement.SHARED))
    first = _ask(engine, _numbers(1, 400))
    second = _ask(engine, (*first.spec.prompt, *first.record.output_token_ids, *_numbers(2, 30)))
    assert second.record.cached_prompt_tokens == 400
    engine.close()


@pytest.mark.parametrize("mode", ["lanes", "batched"])
def test_an_answer_asked_for_again_with_another_ending(mode: str) -> None:
    engine = _engine(mode)
    first = _ask(engine, _numbers(1, 400))
    said = (*first.spec.prompt, *first.record.output_token_ids)
    branches = [_ask(engine, (*said[:380], *_numbers(salt, 30))) for salt in (2, 3)]
    assert [task.record.cached_prompt_tokens for task in branches] == [380, 380]
    longer = _ask(engine, (*said, *_numbers(4, 30)))
    assert longer.record.cached_prompt_tokens == len(said) - 1, "the branches left the first conversation whole"
    engine.close()


@pytest.mark.parametrize("mode", ["lanes", "batched"])
def test_one_prompt_answered_several_times_is_computed_once(mode: str) -> None:
    engine = _engine(mode)
    prompt = _numbers(1, 500)
    drawn = [Sampling(temperature=1.0, seed=seed, ignore_eos=True) for seed in range(4)]
    tasks = [engine.submit(TaskSpec(prompt, Class.FOREGROUND, 20, sampling)) for sampling in drawn]
    engine.run_until(lambda: False)
    assert sorted(task.record.cached_prompt_tokens for task in tasks) == [0, 499, 499, 499]
    assert len({tuple(task.record.output_token_ids) for task in tasks}) == 4
    for task in tasks:
        assert task.record.output_token_ids == answer_alone(task.spec, 0, 0.0)
    engine.close()


def test_several_answers_from_the_api() -> None:
    with open_engine(runtime="simulated") as edge:
        tasks = edge.answers([5] * 300, 3, seed=1, temperature=1.0, max_tokens=12)
        for task in tasks:
            task.wait(20)
        assert [task.spec.sampling.seed for task in tasks] == [1, 2, 3]
        assert len({tuple(task.record.output_token_ids) for task in tasks}) == 3
        given = edge.answers([5] * 300, 2, seed=8, sampling=Sampling(temperature=0.5), max_tokens=2)
        assert [task.spec.sampling.temperature for task in given] == [0.5, 0.5]
        assert [task.spec.sampling.seed for task in given] == [8, 9]
        with pytest.raises(UsageError, match="n is 0"):
            edge.answers([5], 0)


def test_nobody_who_is_watching_waits_for_a_document_that_begins_the_same() -> None:
    engine = _engine("batched", 8000)
    prompt = _numbers(1, 3000)
    paper = engine.submit(TaskSpec(prompt, Class.BACKGROUND, 20, ENDLESS))
    engine.call_at(0.2, lambda: None)
    engine.run_until(lambda: engine.clock.now() >= 0.2)
    chat = _ask(engine, (*prompt[:200], 1, 2))
    assert not paper.record.output_token_ids
    assert chat.record.token_times[0] - chat.record.arrived < 2.0
    engine.close()


def test_who_waits_for_a_prefix_keeps_nobody_else_waiting() -> None:
    engine = _engine("batched", context=20_000)
    first = engine.submit(TaskSpec(_numbers(1, 8000), Class.BACKGROUND, 20, ENDLESS))
    engine.run_until(lambda: engine.snapshot().kv_used > 0)
    patient = engine.submit(TaskSpec((*_numbers(1, 4000), 3), Class.BACKGROUND, 20, ENDLESS), arrived=-2 * AGE_LIMIT_S)
    other = engine.submit(TaskSpec(_numbers(2, 100), Class.BACKGROUND, 5, ENDLESS))
    engine.run_until(lambda: other.record.started is not None)
    assert patient.record.started is None, "nobody waits for what another one waits for"
    engine.run_until(lambda: patient.record.started is not None)
    assert patient.record.cached_prompt_tokens == 4000
    assert not first.record.output_token_ids, "what it waited for was there long before"
    engine.run_until(lambda: first.done and patient.done)
    engine.close()


def test_documents_do_not_push_a_conversation_out() -> None:
    engine = _engine("batched", 3000)
    first = _ask(engine, _numbers(1, 400))
    papers = [engine.submit(TaskSpec(_numbers(n, 700), Class.BACKGROUND, 10, ENDLESS)) for n in range(2, 12)]
    engine.run_until(lambda: all(paper.done for paper in papers))
    second = _ask(engine, (*first.spec.prompt, *first.record.output_token_ids, 1, 2, 3))
    assert second.record.cached_prompt_tokens > 400
    engine.close()


def test_the_least_recently_used_conversation_goes_first() -> None:
    engine = _engine("lanes", 3000, foreground_share=0.5)
    talks = [_ask(engine, _numbers(n, 400)) for n in (1, 2, 3)]
    _ask(engine, (*talks[0].spec.prompt, *talks[0].record.output_token_ids, 9), output=4)
    _ask(engine, _numbers(4, 400))
    again = [_ask(engine, (*t.spec.prompt, *t.record.output_token_ids, 8), output=4) for t in (talks[0], talks[1])]
    assert again[0].record.cached_prompt_tokens > 400
    assert again[1].record.cached_prompt_tokens == 0
    engine.close()


def test_what_was_said_can_be_forgotten() -> None:
    engine = _engine("lanes")
    first = _ask(engine, _numbers(1, 400))
    engine.forget_prefixes()
    again = _ask(engine, first.spec.prompt)
    assert again.record.cached_prompt_tokens == 0
    engine.close()


@pytest.mark.parametrize("mode", MODE_NAMES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_conversations_that_branch_give_the_tokens_of_fresh_ones(mode: str, data: st.DataObject) -> None:
    """Whatever is kept, taken over, forked, trimmed or lost in a context that is too small for all of it."""
    engine = _engine(mode, context=3000, foreground_share=0.5)
    said: list[tuple[int, ...]] = [()]
    tasks = []
    for number in range(data.draw(st.integers(4, 12))):
        base = data.draw(st.sampled_from(said))
        prompt = (*base[: data.draw(st.integers(0, len(base)))], *_numbers(number, data.draw(st.integers(1, 200))))[
            -900:
        ]
        task = engine.submit(TaskSpec(prompt, Class.FOREGROUND, 10, ENDLESS))
        tasks.append(task)
        if data.draw(st.booleans()):
            engine.run_until(lambda: all(task.done for task in tasks))
            said.append((*prompt, *task.record.output_token_ids))
    engine.run_until(lambda: False)
    for task in tasks:
        assert task.record.output_token_ids == answer_alone(task.spec, 0, 0.0)
    engine.forget_prefixes()
    engine.run_until(lambda: engine.snapshot().kv_used == 0)
    assert engine.snapshot().kv_used == 0
    engine.close()


def test_answers_that_do_not_all_fit_the_queue_are_not_left_without_a_handle() -> None:
    with open_engine(runtime="simulated") as edge:
        edge.engine.hold_background(True)
        first = edge.answers([5, 6, 7], 900, task_class="background", max_tokens=2)
        with pytest.raises(QueueFull):
            edge.answers([5, 6, 7], 900, task_class="background", max_tokens=2)
        for task in first:
            task.cancel()
        assert all(task.wait(20).finish is Finish.CANCELLED for task in first)
        assert edge.engine.snapshot().background_queued == 0, "an answer nobody can cancel was left"
        edge.engine.hold_background(False)
        with pytest.raises(UsageError, match="seed"):
            edge.answers([5], 2, seed="a")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="sampling"):
            edge.answers([5], 2, sampling={"temperature": 1})
