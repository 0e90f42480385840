"""Whether answers keep to JSON schemas whatever their length, and what choosing within a grammar costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dlfp_edge.bench.jobs import running, wait_all
from dlfp_edge.bench.report import Progress, Report, measured_on, quantiles_ms
from dlfp_edge.bench.schema_set import Schema, schema_set
from dlfp_edge.engine import Engine
from dlfp_edge.errors import MissingExtra
from dlfp_edge.grammar import compile_grammar, schema_grammar
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.structured import shortest_tokens
from dlfp_edge.task import Finish, TaskSpec
from dlfp_edge.trace import StepRecord

PROMPT = "A record of the harbour's office as JSON:\n"
_LONGER, _LONGEST = 8, 64
_STREAMS = 4
_WITHOUT = 20
"""How many answers without a grammar are enough to compare with."""

_TEMPERATURES = (0.0, 0.8)


def schemas(runtime: Runtime, count: int, progress: Progress) -> Report:
    """Answers to `count` schemas, greedy and drawn in turn, at the fewest tokens each allows and at more.

    Raises MissingExtra without the package that validates them.
    """
    chosen = schema_set()[:count]
    grammars = [schema_grammar(schema) for schema in chosen]
    least = [shortest_tokens(compile_grammar(grammar), runtime.tokenizer) for grammar in grammars]
    parts: list[tuple[str, list[int], list[str | None]]] = [
        ("fewest", least, [*grammars]),
        (f"fewest + {_LONGER}", [tokens + _LONGER for tokens in least], [*grammars]),
        (f"{_LONGEST} or fewest", [max(_LONGEST, tokens) for tokens in least], [*grammars]),
        (f"{_LONGEST}, no grammar", [_LONGEST] * min(count, _WITHOUT), [None] * min(count, _WITHOUT)),
    ]
    rows: list[tuple[Any, ...]] = []
    broken: list[str] = []
    for done, (label, limits, asked) in enumerate(parts):
        progress(done / len(parts), label)
        tasks, sampling_s = _answers(runtime, limits, asked)
        held = [_holds(task, schema) for task, schema in zip(tasks, chosen, strict=False)]
        if asked[0] is not None:
            broken += [f"{label}: {chosen[index]}" for index, holds in enumerate(held) if not holds]
        rows.append((label, len(tasks), sum(held), *_ends(tasks), *_costs(sampling_s)))
    return Report(
        "schemas",
        f"Answers to {count} JSON schemas that parse and validate",
        ("max_tokens", "answers", "hold", "stop", "length", "tokens", "least ms", "p50 ms", "p99 ms", "max ms"),
        rows,
        notes=["ms: choosing one token, in steps of up to 4 answers", *(f"broken at {line}" for line in broken)],
        facts=measured_on(runtime),
    )


def _answers(runtime: Runtime, limits: Sequence[int], grammars: Sequence[str | None]) -> tuple[list[Task], list[float]]:
    """The ended tasks, and the time each token took to choose."""
    sampling_s: list[float] = []

    def on_step(record: StepRecord) -> None:
        sampling_s.append(record.sampling_s / len(record.segments))

    cells = 2 * _STREAMS * (max(limits) + 64)
    settings = Settings(placement=Placement.LANES, context=2 * cells, foreground_sequences=_STREAMS)
    with running(runtime, settings) as engine:
        engine.on_step = on_step
        tasks = [_submit(engine, index, *asked) for index, asked in enumerate(zip(limits, grammars, strict=True))]
        wait_all(tasks)
    return tasks, sampling_s


def _submit(engine: Engine, index: int, limit: int, grammar: str | None) -> Task:
    temperature = _TEMPERATURES[index % len(_TEMPERATURES)]
    sampling = Sampling(temperature=temperature, seed=index, grammar=grammar)
    prompt = tuple(engine.runtime.tokenizer.encode(PROMPT))
    return engine.submit(TaskSpec(prompt, max_tokens=limit, sampling=sampling, label=f"schema {index}"))


def _holds(task: Task, schema: Schema) -> bool:
    """Whether the answer is JSON that validates."""
    try:
        import jsonschema
    except ImportError as error:
        raise MissingExtra("checking the answers needs jsonschema: run  pip install 'dlfp-edge[test]'") from error
    validator = jsonschema.Draft202012Validator
    try:
        value = json.loads("".join(token.text for token in task))
    except ValueError:
        return False
    return bool(validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(value))


def _ends(tasks: Sequence[Task]) -> tuple[int, int, int]:
    finishes = [task.record.finish for task in tasks]
    tokens = sum(len(task.record.output_token_ids) for task in tasks)
    return finishes.count(Finish.STOP), finishes.count(Finish.LENGTH), tokens


def _costs(sampling_s: Sequence[float]) -> tuple[float, ...]:
    return (1000 * min(sampling_s, default=float("nan")), *quantiles_ms(sampling_s))
