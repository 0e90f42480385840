"""A few words for driving lanes step by step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dlfp_edge.runtime import Lane, LoadOptions, Output, Runtime, Segment, Step, StepResult

CPUS = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0, 1)
OpenLane = Callable[..., Lane]


def load_options(model: Path | None = None, exact: bool = False, **options: str) -> LoadOptions:
    return LoadOptions(model, CPUS, min(2, len(CPUS)), exact=exact, options={"probe": "off", **options})


def segment(sequence: int, start: int, tokens: Sequence[int], wanted: bool = True) -> Segment:
    """A segment that asks for the token after its last position, or for nothing."""
    outputs = {start + len(tokens) - 1: Output.TOKEN} if wanted else {}
    return Segment(sequence, start, tuple(tokens), outputs)


def run_step(runtime: Runtime, lane: Lane, *segments: Segment, threads: int = 2) -> StepResult:
    """Submit a step and wait for it."""
    lane.submit(Step(segments, threads))
    return await_result(runtime, lane)


def await_result(runtime: Runtime, lane: Lane) -> StepResult:
    while True:
        for result in runtime.wait(None):
            if result.lane == lane.spec.name:
                return result


def next_token(result: StepResult, index: int = 0) -> int:
    (token,) = result.segments[index].tokens.values()
    return token


def decode(runtime: Runtime, lane: Lane, position: int, token: int, count: int, threads: int = 2) -> list[int]:
    """`count` further tokens of sequence 0."""
    tokens: list[int] = []
    for _ in range(count):
        token = next_token(run_step(runtime, lane, segment(0, position, [token]), threads=threads))
        tokens.append(token)
        position += 1
    return tokens


def generate(runtime: Runtime, lane: Lane, prompt: Sequence[int], count: int, threads: int = 2) -> list[int]:
    """Prompt sequence 0 in one step and generate `count` tokens."""
    first = next_token(run_step(runtime, lane, segment(0, 0, prompt), threads=threads))
    return [first, *decode(runtime, lane, len(prompt), first, count - 1, threads)]
