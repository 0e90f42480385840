"""One trial on a simulated GPU: a candidate, a point, one draw of arrivals, on virtual time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlfp_edge.engine import Engine
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.session import Outcome, run_workload, running
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.measure.latency import e2el_s, tpot_s, ttft_s
from dlfp_edge.measure.slo import Slo
from dlfp_edge.plugins import load
from dlfp_edge.prove.gpu_points import Candidate, Load
from dlfp_edge.runtime import LoadOptions, Runtime

RUNTIME = "simulated"


@dataclass(frozen=True, slots=True)
class Answer:
    """The latencies of one request, in seconds; `itl_s` is its mean gap."""

    ttft_s: float
    itl_s: float
    e2el_s: float

    def meets(self, slo: Slo) -> bool:
        """Whether it kept all three objectives."""
        return slo.met(self.ttft_s, self.itl_s, self.e2el_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial gave: percentiles in ms over all requests, every request, and the gaps `above` the target."""

    itl_p99_ms: float
    ttft_p99_ms: float
    e2el_p99_ms: float
    gaps: int
    above: int
    answers: tuple[Answer, ...]


def describe(point: Load) -> dict[str, Any]:
    """The point's device, as its runtime describes it. Raises UsageError where there is none of that name."""
    with closing(_runtime(point, seed=0)) as runtime:
        return runtime.describe()


def run_trial(point: Load, candidate: Candidate, seed: int, workload: str, target_s: float) -> Trial:
    """Serve the point's requests once; equal arguments give equal figures.

    Raises UsageError for a setting or a device that is none, RuntimeFailure where a request was not answered.
    """
    with closing(_runtime(point, seed)) as runtime:
        caps = runtime.capabilities
        asked = _workload(workload, point)
        longest = asked.streams[0].longest_prompt or 0
        cells = caps.sequences * (longest + asked.streams[0].answer_length(0))
        engine = Engine(runtime, candidate.settings(caps.sequences, min(caps.context, cells)))
        with running(engine):
            outcome = run_workload(engine, asked, seed=seed, windows=None)
    if outcome.tally.foreground.complete < point.requests:
        raise RuntimeFailure(f"{point.name}, {candidate.name}: not every request was answered")
    return _trial(outcome, target_s)


def _runtime(point: Load, seed: int) -> Runtime:
    return load(RUNTIME, LoadOptions(None, cpus=(0,), cpu_limit=1, seed=seed, options={"device": point.device}))


def _workload(name: str, point: Load) -> Workload:
    workload = load_workload(name)
    changes = {"rate": point.rate, "requests": point.requests}
    return workload.with_streams([stream.model_copy(update=changes) for stream in workload.streams])


def _trial(outcome: Outcome, target_s: float) -> Trial:
    tally = outcome.tally.foreground
    gaps = np.array(tally.gaps)
    latencies = ((ttft_s(record), tpot_s(record), e2el_s(record)) for record in outcome.records)
    return Trial(
        itl_p99_ms=_p99_ms(gaps),
        ttft_p99_ms=_p99_ms(tally.ttft),
        e2el_p99_ms=_p99_ms(tally.e2el),
        gaps=gaps.size,
        above=int(np.count_nonzero(gaps > target_s)),
        answers=tuple(
            Answer(first, gap, whole)
            for first, gap, whole in latencies
            if first is not None and gap is not None and whole is not None
        ),
    )


def _p99_ms(seconds: Any) -> float:
    return float(np.percentile(np.asarray(seconds), 99)) * 1e3
