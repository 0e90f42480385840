"""What a workload file demands: its [slo] and [[gate]] tables, and what each gate lets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.gates import Gate
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.measure.slo import PRESETS, Slo

FILE = """
name = "mine"
description = "Mine."
duration_s = 10

[[stream]]
name = "chat"
class = "foreground"
clients = 1
prompt_tokens = 64
max_tokens = 8
"""
BOUNDS = "[slo]\nttft_s = 1.0\nitl_s = 0.05\ne2el_s = 3\n"
GATE = '[[gate]]\nmetric = "itl_p99"\nleast_reduction = 0.1\n'

figures = st.floats(min_value=1e-3, max_value=1e6)
shares = st.floats(min_value=0.0, max_value=0.9)


def load(folder: Path, more: str) -> Workload:
    (folder / "mine.toml").write_text(FILE + more)
    return load_workload(str(folder / "mine.toml"))


def test_a_file_states_its_objectives(tmp_path: Path) -> None:
    assert load(tmp_path, "").slo is None
    assert load(tmp_path, BOUNDS).slo == Slo(1.0, 0.05, 3.0, "the workload's file")
    assert load(tmp_path, '[slo]\npreset = "agent"\n').slo == PRESETS["agent"]


def test_the_papers_agent_has_the_papers_objectives_and_gate() -> None:
    agent = load_workload("agent")
    assert agent.slo == Slo(5.0, 0.035, 14.0, agent.slo.source if agent.slo else "")
    assert agent.gates == [Gate(metric="itl_p99", least_reduction=0.1)]


def test_gates_survive_scaling_and_the_manifest(tmp_path: Path) -> None:
    workload = load(tmp_path, BOUNDS + GATE + '[[gate]]\nmetric = "goodput"\nmost_reduction = 0.05\n')
    again = Workload.model_validate(workload.scaled(0.5).as_json())
    assert (again.gates, again.slo) == (workload.gates, workload.slo)
    assert [gate.metric for gate in again.gates] == ["itl_p99", "goodput"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (BOUNDS.replace("itl_s", "ilt_s"), "slo: unknown key 'ilt_s': did you mean 'itl_s'?"),
        (BOUNDS.replace("itl_s = 0.05\n", ""), "slo: needs either all of"),
        ("[slo]\n", "slo: needs either all of"),
        (BOUNDS + 'preset = "agent"', "slo: needs either all of"),
        (BOUNDS.replace("0.05", "-1"), "slo: 'itl_s': input should be greater than 0"),
        (BOUNDS.replace("0.05", "nan"), "slo: 'itl_s'"),
        (BOUNDS.replace("0.05", "'fast'"), "slo: 'itl_s': input should be a valid number"),
        ('[slo]\npreset = "agnet"', "slo: unknown preset 'agnet': did you mean 'agent'?"),
        ("[[slo]]\npreset = 'agent'", "'slo' must be written as one table that begins with [slo]"),
        ("slo = 3", "must be written as one table"),
        (GATE.replace("itl_p99", "itl_p9"), "gate number 1: 'metric': input should be 'itl_p99'"),
        (GATE.replace("metric", "metrik"), "gate number 1: unknown key 'metrik': did you mean 'metric'?"),
        (GATE.replace("least_reduction = 0.1", ""), "gate number 1: 'itl_p99' needs 'least_reduction' or"),
        (GATE + "most_increase = 0.2", "gate number 1: 'itl_p99' needs 'least_reduction' or 'most_increase', and no"),
        (GATE.replace("itl_p99", "goodput"), "gate number 1: 'goodput' needs 'most_reduction'"),
        (GATE.replace("0.1", "10"), "gate number 1: 'least_reduction': input should be less than 1, not 10"),
        (GATE.replace("0.1", "-0.1"), "gate number 1: 'least_reduction'"),
        (GATE.replace("0.1", "inf"), "gate number 1: 'least_reduction'"),
        (GATE.replace("[[gate]]", "[gate]"), "'gate' must be written as tables that each begin with [[gate]]"),
        (GATE + GATE.replace("0.1", "'x'"), "gate number 2: 'least_reduction'"),
    ],
)
def test_a_mistake_is_one_line_with_the_table_the_key_and_the_mend(tmp_path: Path, more: str, says: str) -> None:
    text = FILE.replace("[[stream]]", f"{more}\n[[stream]]")
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load_workload(str(tmp_path / "mine.toml"))
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'mine.toml'}: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("bound", "passing", "failing"),
    [
        ({"metric": "itl_p99", "least_reduction": 0.10}, (100.0, 89.9), (100.0, 90.0)),
        ({"metric": "itl_p99", "least_reduction": 0.0}, (100.0, 99.9), (100.0, 100.0)),
        ({"metric": "ttft_max", "most_increase": 0.25}, (100.0, 125.0), (100.0, 125.1)),
        ({"metric": "ttft_p90", "most_increase": 0.0}, (0.0, 0.0), (0.0, 0.1)),
        ({"metric": "goodput", "most_reduction": 0.05}, (1.0, 0.95), (1.0, 0.94)),
        ({"metric": "background", "most_reduction": 0.5}, (200.0, 300.0), (200.0, 99.0)),
    ],
)
def test_a_gate_lets_through_what_keeps_its_bound(
    bound: dict[str, Any], passing: tuple[float, float], failing: tuple[float, float]
) -> None:
    gate = Gate.model_validate(bound)
    assert gate.passes(*passing)
    assert not gate.passes(*failing)
    assert not gate.passes(None, 1.0)
    assert not gate.passes(1.0, None)


@given(figures, shares, shares)
def test_gates_are_fractions_of_the_baseline(baseline: float, bound: float, change: float) -> None:
    if abs(bound - change) < 1e-9:
        return
    assert Gate(metric="e2el_p99", least_reduction=bound).passes(baseline, baseline * (1 - change)) is (change > bound)
    assert Gate(metric="e2el_p99", most_increase=bound).passes(baseline, baseline * (1 + change)) is (change < bound)
    assert Gate(metric="goodput", most_reduction=bound).passes(baseline, baseline * (1 - change)) is (change < bound)


def test_a_gate_reads_as_a_sentence() -> None:
    assert Gate(metric="itl_p99", least_reduction=0.1).text() == "itl_p99 falls by more than 10%"
    assert Gate(metric="ttft_max", most_increase=0.25).text() == "ttft_max rises by 25% at most"
    assert Gate(metric="goodput", most_reduction=0.05).text() == "goodput falls by 5% at most"
