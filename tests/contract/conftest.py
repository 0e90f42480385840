"""The runtimes every check of the contract runs on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from contract_harness import CASES, Bench, Case, lane_spec

from dlfp_edge.runtime import LaneSpec, Runtime

# Nothing here depends on speed, and threads that spin at barriers take minutes on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.name)
def runtime_factory(request: pytest.FixtureRequest) -> Iterator[Case]:
    """One kind of runtime: simulated ones are made anew, real ones are loaded once and closed after the last test."""
    case: Case = request.param
    if not case.real:
        yield case
        return
    loaded = case.load()
    yield replace(case, load=lambda: loaded)
    loaded.close()


@pytest.fixture
def runtime(runtime_factory: Case) -> Iterator[Runtime]:
    loaded = runtime_factory.load()
    yield loaded
    if not runtime_factory.real:
        loaded.close()


@pytest.fixture
def open_bench(runtime: Runtime) -> Iterator[Callable[[LaneSpec], Bench]]:
    """Opens lanes that are shut after the test."""
    benches: list[Bench] = []

    def open_it(spec: LaneSpec) -> Bench:
        benches.append(Bench(runtime, runtime.open_lane(spec)))
        return benches[-1]

    yield open_it
    for bench in benches:
        bench.lane.shut()


@pytest.fixture
def bench(open_bench: Callable[[LaneSpec], Bench]) -> Bench:
    return open_bench(lane_spec())
