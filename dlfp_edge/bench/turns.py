"""What a conversation saves: the time to the first token of a second turn, against a prompt of its new tokens alone."""

from __future__ import annotations

from statistics import median
from typing import Any

from dlfp_edge.bench.jobs import foreground, running, wait_all
from dlfp_edge.bench.report import Progress, Report, measured_on, quantile_row
from dlfp_edge.bench.steps import random_tokens
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings
from dlfp_edge.task import TaskSpec

_OUTPUT = 8


def turns(runtime: Runtime, shared: int, new: int, rounds: int, progress: Progress) -> Report:
    """Second turns of conversations of `shared` tokens with `new` ones, prompts of `new` alone, and whole ones anew."""
    times: dict[str, list[float]] = {"second turn": [], "new tokens alone": [], "whole prompt, nothing kept": []}
    cached: list[int] = []
    with running(runtime, Settings(context=2 * (shared + new + 1024), foreground_share=0.8)) as engine:
        for number in range(rounds):
            progress(number / rounds, f"conversation {number + 1} of {rounds}")
            first = foreground(runtime, shared - _OUTPUT, _OUTPUT, seed=number)
            said = (*first.prompt, *_run(engine, first)[1])
            more = random_tokens(runtime, new, seed=-1 - number)
            second = TaskSpec((*said, *more), max_tokens=_OUTPUT, sampling=first.sampling, label="second")
            ttft_s, _ = _run(engine, second)
            cached.append(wait_all([engine.submit(second)])[0].cached_prompt_tokens)
            times["second turn"].append(ttft_s)
            times["new tokens alone"].append(_run(engine, TaskSpec(more, sampling=first.sampling, max_tokens=1))[0])
            engine.forget_prefixes()
            times["whole prompt, nothing kept"].append(_run(engine, second)[0])
    rows: list[tuple[Any, ...]] = [quantile_row(name, seconds) for name, seconds in times.items()]
    ratio = median(times["second turn"]) / median(times["new tokens alone"])
    return Report(
        "turns",
        f"Time to the first token: {shared} tokens said before, {new} new",
        ("prompt", "count", "p50 ms", "p99 ms", "max ms"),
        rows,
        notes=[f"second turn / new tokens alone, medians: {ratio:.2f}"],
        facts={**measured_on(runtime), "ratio": ratio, "shared": shared, "new": new, "cached": cached},
    )


def _run(engine: Engine, spec: TaskSpec) -> tuple[float, list[int]]:
    """The time to a request's first token, and its output."""
    record = wait_all([engine.submit(spec)])[0]
    return record.token_times[0] - record.arrived, record.output_token_ids
