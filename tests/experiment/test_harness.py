"""Whether the harness can tell a help from none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.experiment import harness
from dlfp_edge.experiment.harness import check_harness
from dlfp_edge.runtime import Rollback
from dlfp_edge.settings import Settings

from .simulated import simulated


def test_a_prefix_cache_helps_prompts_that_begin_alike_and_no_others() -> None:
    seen = check_harness(simulated(), lambda: False)
    assert seen is not None
    assert seen.matching < 0.5
    assert seen.nonmatching == pytest.approx(1.0, abs=0.05)
    assert seen.fault is None


def test_a_cache_that_does_nothing_makes_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "Settings", lambda **_: Settings(prefix_cache=False))
    seen = check_harness(simulated(), lambda: False)
    assert seen is not None
    assert seen.fault is not None
    assert "prompts that begin alike took 1.00" in seen.fault


def test_prompts_with_nothing_in_common_that_gain_make_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = harness._rag
    monkeypatch.setattr(harness, "_rag", lambda shared: usual(harness.SHARED))
    seen = check_harness(simulated(), lambda: False)
    assert seen is not None
    assert seen.fault is not None
    assert "nothing in common" in seen.fault


@pytest.mark.parametrize("changes", [{"fork": False}, {"rollback": Rollback.NONE}])
def test_a_runtime_that_shares_no_prefix_is_not_checked(changes: dict[str, object]) -> None:
    runtime = simulated()
    runtime.capabilities = replace(runtime.capabilities, **changes)  # type: ignore[misc,arg-type]
    assert check_harness(runtime, lambda: False) is None


def test_it_stops_when_told() -> None:
    assert check_harness(simulated(), lambda: True) is None
