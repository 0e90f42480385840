"""Answers in a grammar, on virtual time: whatever the limit, the pace and what happens to a step, they keep to it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from dlfp_edge import Class, Finish, Sampling, UsageError, open_engine
from dlfp_edge.bench.schema_set import schema_set
from dlfp_edge.engine import Engine
from dlfp_edge.grammar import compile_grammar, schema_grammar
from dlfp_edge.handle import Task
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.structured import Structured, shortest_tokens
from dlfp_edge.task import TaskSpec

LIST = schema_grammar({"type": "array", "items": {"enum": ["red", "green", "größe"]}, "minItems": 2})
SHORTEST = len('["red","red"]')


def text_of(task: Task) -> str:
    return "".join(token.text for token in task)


def ask(grammar: str, max_tokens: int, *, number: int = 0, **more: object) -> TaskSpec:
    sampling = Sampling(temperature=1.0, seed=number, grammar=grammar)
    return TaskSpec((1, 2, 3, number % 200), max_tokens=max_tokens, sampling=sampling, **more)  # type: ignore[arg-type]


def run(engine: Engine, specs: list[TaskSpec]) -> list[Task]:
    tasks = [engine.submit(spec) for spec in specs]
    engine.run_until(lambda: all(task.done for task in tasks))
    return tasks


def test_every_limit_keeps_to_the_grammar() -> None:
    engine = Engine(SimulatedRuntime(end_probability=0.05), Settings())
    limits = range(SHORTEST, SHORTEST + 60)
    tasks = run(engine, [ask(LIST, limit, number=limit) for limit in limits])
    for task, limit in zip(tasks, limits, strict=True):
        assert len(json.loads(text_of(task))) >= 2
        assert len(task.record.output_token_ids) <= limit
        assert task.record.finish in (Finish.STOP, Finish.LENGTH)
    assert {task.record.finish for task in tasks} == {Finish.STOP, Finish.LENGTH}
    engine.close()


def test_the_ends_cost_no_step() -> None:
    engine = Engine(SimulatedRuntime(), Settings())
    [task] = run(engine, [ask('root ::= "a" "bcdefgh"', 8)])
    whole = engine.counters.steps
    assert task.record.finish is Finish.STOP, "nothing could follow"
    [task] = run(engine, [ask('root ::= [a-z]* "end"', 5, number=7)])
    assert text_of(task)[-3:] == "end"
    assert task.record.finish is Finish.LENGTH
    assert engine.counters.steps - whole < 5
    assert len(task.record.shown_times) == len(task.record.token_times) == len(task.record.output_token_ids)
    engine.close()


def test_schemas_hold_at_the_least_limit_and_above() -> None:
    runtime = SimulatedRuntime(end_probability=0.2)
    engine = Engine(runtime, Settings(context=1 << 19, queue_limit=1000))
    asked = []
    for number, schema in enumerate(schema_set()):
        grammar = schema_grammar(schema)
        least = shortest_tokens(compile_grammar(grammar), runtime.tokenizer)
        asked += [(schema, ask(grammar, least + more, number=number)) for more in (0, 1, 7, 40)]
    tasks = run(engine, [spec for _, spec in asked])
    for (schema, spec), task in zip(asked, tasks, strict=True):
        jsonschema.validate(json.loads(text_of(task)), schema)
        assert len(task.record.output_token_ids) <= spec.max_tokens
    engine.close()


@pytest.mark.parametrize("mode", ["lanes", "sequential", "depth2", "fragile", "rigid"])
def test_what_happens_to_steps_does_not_change_the_words(mode: str) -> None:
    placement = Placement.LANES if mode in ("lanes", "rigid") else Placement.SHARED
    specs = [
        ask(LIST, 30 + number, number=number, pace=20.0 if number % 2 else None, task_class=task_class)
        for number, task_class in enumerate([*Class] * 8)
    ]
    engine = Engine(SimulatedRuntime(mode=mode), Settings(placement=placement))
    alone = [text_of(run(engine, [spec])[0]) for spec in specs]
    engine.close()
    engine = Engine(SimulatedRuntime(mode=mode, fail_steps=range(3, 60, 9)), Settings(placement=placement))
    long = [engine.submit(TaskSpec((9,) * 3000, Class.BACKGROUND, 4)) for _ in range(2)]
    tasks = [engine.submit(spec) for spec in specs]
    engine.run_until(lambda: all(task.done for task in [*tasks, *long]))
    for task, words in zip(tasks, alone, strict=True):
        if task.record.finish is not Finish.ERROR:
            assert text_of(task) == words
            json.loads(words)
    assert sum(task.record.finish is Finish.ERROR for task in tasks) < len(tasks) / 2
    engine.close()


def test_answers_that_must_wait_for_cells_go_on_where_they_were() -> None:
    specs = [ask('root ::= "[" ([a-z]{3,9} ",")* "x]"', 400, number=number) for number in range(8)]
    alone = []
    for spec in specs:
        engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED))
        alone.append(text_of(run(engine, [spec])[0]))
        engine.close()
    engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED, context=1200))
    tasks = run(engine, specs)
    assert engine.counters.pauses > 0
    assert [text_of(task) for task in tasks] == alone
    assert all(words.endswith("x]") for words in alone)
    engine.close()


def test_a_cancelled_answer_is_cut() -> None:
    engine = Engine(SimulatedRuntime(), Settings())
    task = engine.submit(ask('root ::= "a"{100}', 200))
    engine.run_until(lambda: len(task.record.output_token_ids) > 10)
    task.cancel()
    engine.run_until(lambda: task.done)
    assert task.record.finish is Finish.CANCELLED
    assert 10 < len(text_of(task)) < 100
    engine.close()


def test_what_can_only_end_has_ended_though_ends_are_ignored() -> None:
    with open_engine(runtime="simulated") as edge:
        for grammar, text in (('root ::= "ab"', "ab"), ('root ::= ""', "")):
            task = edge.submit("x", sampling=Sampling(grammar=grammar, ignore_eos=True))
            assert task.wait(30).finish is Finish.STOP
            assert text_of(task) == text


def test_a_limit_too_short_is_refused_with_the_count() -> None:
    with open_engine(runtime="simulated") as edge:
        schema = {"const": "größe"}
        with pytest.raises(UsageError, match="max_tokens is 8, and the shortest text of the grammar takes 9"):
            edge.submit("x", json_schema=schema, max_tokens=8)
        assert text_of(edge.submit("x", json_schema=schema, max_tokens=9)) == '"größe"'
        with pytest.raises(UsageError, match="both json_schema and a grammar"):
            edge.submit("x", json_schema=schema, sampling=Sampling(grammar='root ::= "a"'))
        with pytest.raises(UsageError, match="'pattern' at #"):
            edge.submit("x", json_schema={"pattern": "x"})


def test_a_token_the_grammar_refuses_ends_the_answer_in_it() -> None:
    tokenizer = SimulatedRuntime().tokenizer
    structured = Structured.of('root ::= "[" [0-9]+ "]"', tokenizer)
    assert structured is not None
    assert structured.follow(ord("["), 10) == ([ord("[")], None)
    assert structured.follow(ord("x"), 9) == ([*b"0]"], Finish.LENGTH)
