"""Whether the harness can tell a help from none: a prefix cache must help prompts that begin alike, and no others."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from dlfp_edge.engine import Engine
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.session import running
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.trial_load import Limits, TrialLoad, wait_for
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.measure.latency import ttft_s
from dlfp_edge.runtime import Rollback, Runtime
from dlfp_edge.settings import Settings

PROMPT, SHARED, REQUESTS = 256, 224, 5
IN_TURN = (True, False, False, True)
"""With and without the cache, so that neither has the machine's better half; a first run warms both up."""

MOST_S = 600.0
HELPS, ALIKE = 0.7, 1.3
"""Matching prompts must have their first token in less than so much of the time; others within a factor of so much."""


class Checked(NamedTuple):
    """Median TTFT with a prefix cache over that without; and what that says against the harness, if anything."""

    matching: float
    nonmatching: float
    fault: str | None


def check_harness(runtime: Runtime, stopped: Callable[[], bool]) -> Checked | None:
    """None where the runtime can share no prefix, or it was `stopped`. Raises RuntimeFailure where an engine fails."""
    caps = runtime.capabilities
    if not caps.fork or caps.rollback is Rollback.NONE:
        return None
    _ttft_s(runtime, Settings(), _rag(0), stopped)
    seen: dict[int, float] = {}
    for shared in (SHARED, 0):
        first_s: dict[bool, list[float]] = {True: [], False: []}
        for cache in IN_TURN:
            first_s[cache] += _ttft_s(runtime, Settings(prefix_cache=cache), _rag(shared), stopped)
            if stopped():
                return None
        seen[shared] = median(first_s[True]) / median(first_s[False])
    return Checked(seen[SHARED], seen[0], _fault(seen[SHARED], seen[0]))


def _fault(matching: float, nonmatching: float) -> str | None:
    if matching > HELPS:
        return f"prompts that begin alike took {matching:.2f} of their time with a prefix cache"
    if not 1 / ALIKE < nonmatching < ALIKE:
        return f"prompts with nothing in common took {nonmatching:.2f} of their time with a prefix cache"
    return None


def _rag(shared: int) -> Workload:
    stream = Stream.model_validate(
        {
            "name": "rag",
            "class": "foreground",
            "clients": 1,
            "requests": REQUESTS,
            "prompt_tokens": PROMPT,
            "shared_prefix_tokens": shared,
            "max_tokens": 1,
        }
    )
    return Workload(name="rag-check", description="Prompts that begin alike, or not.", stream=[stream])


def _ttft_s(runtime: Runtime, settings: Settings, workload: Workload, stopped: Callable[[], bool]) -> list[float]:
    """Of all requests but the first, which nothing can help."""
    engine = Engine(runtime, sized(settings, workload))
    with running(engine):
        load = TrialLoad(engine, workload, runtime.tokenizer, seed=0, limits=Limits(cap_s=MOST_S))
        engine.call_at(engine.clock.now(), load.begin)
        wait_for(engine, load, stopped)
        if stopped():
            return []
        first = [time for record in load.outcome().records[1:] if (time := ttft_s(record)) is not None]
    if not first:
        raise RuntimeFailure("the check of the harness got no answer: run the workload alone first, with dlfp-edge run")
    return first
