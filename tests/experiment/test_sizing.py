"""A workload runs in the cells it needs, without anybody counting them."""

from __future__ import annotations

import pytest

from dlfp_edge.engine import Engine
from dlfp_edge.experiment.session import run_workload
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.workload import load_workload, workload_names
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.settings import Placement, Settings


@pytest.mark.parametrize("placement", [Placement.LANES, Placement.SHARED])
@pytest.mark.parametrize("name", [name for name in workload_names() if name != "demo"])
def test_every_bundled_workload_fits(name: str, placement: Placement) -> None:
    workload = load_workload(name)
    engine = Engine(SimulatedRuntime(), sized(Settings(placement=placement), workload))
    outcome = run_workload(engine, workload, duration_s=20.0)
    engine.close()
    assert outcome.summary()["foreground"]["failed"] == 0


def test_an_explicit_context_keeps_its_total() -> None:
    assert sized(Settings(context=5000), load_workload("chat-ingest")).context == 5000
