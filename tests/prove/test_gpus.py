"""Predictions at the paper's operating points, on virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.jsonlines import to_json
from dlfp_edge.experiment.prompts import arrival_times
from dlfp_edge.experiment.workload import load_workload
from dlfp_edge.prove.gpu_points import Candidate, Plan, candidates, gpu_plan
from dlfp_edge.prove.gpu_tables import markdown, tables
from dlfp_edge.prove.gpu_trial import run_trial
from dlfp_edge.prove.gpus import HEADING, predict
from dlfp_edge.runtimes.simulated.gpu import gpu_device
from dlfp_edge.runtimes.simulated.gpu.replay import Shape, replay


def small(*names: str, requests: int = 5) -> Plan:
    """The named points, or all, with few requests that come close after one another."""
    plan = gpu_plan(names)
    shrunk = [
        point.model_copy(update={"requests": requests, "trials": 1, "rate": 4 * point.rate}) for point in plan.points
    ]
    return plan.model_copy(update={"points": tuple(shrunk)})


def silent(done: float, what: str) -> None:
    assert 0 <= done < 1


def named(*names: str) -> list[Candidate]:
    return [candidate for candidate in candidates() if candidate.name in names]


def test_the_document_has_every_point_and_candidate() -> None:
    document = json.loads(to_json(predict(small(requests=3), candidates(), silent).as_json()))
    assert document["heading"] == HEADING
    assert document["simulated"] is True
    assert [point["name"] for point in document["points"]] == [point.name for point in gpu_plan().points]
    for point in document["points"]:
        assert [each["name"] for each in point["candidates"]] == [each.name for each in candidates()]
        for each in point["candidates"]:
            for metric in ("itl_p99", "ttft_p99", "e2el_p99"):
                assert each[metric]["predicted_ms"] > 0
                assert (each[metric]["change"] is None) == (each["name"] == "baseline")
            passes = each["passes"]
            assert 0 <= passes["lowest"] <= passes["predicted"] <= passes["highest"] <= 1
            assert 0 <= each["gaps_above_target"] <= 1


def test_equal_seeds_give_equal_figures() -> None:
    plan, chosen = small("qwen3-8b-0.25"), named("baseline", "cadence", "auto")
    assert predict(plan, chosen, silent).as_json() == predict(plan, chosen, silent).as_json()


def test_other_arrivals_give_other_figures() -> None:
    [point] = small("qwen3-8b-0.25").points
    [baseline] = named("baseline")
    first, second = (run_trial(point, baseline, seed, "agent", 0.08) for seed in (1, 2))
    assert first != second


@pytest.mark.parametrize("name", ["qwen3-8b-0.25", "qwen3-32b-sync"])
def test_the_engines_baseline_is_what_the_constants_were_fitted_with(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit replays vLLM's scheduler without an engine; the engine, as the baseline, must give the same."""
    [point] = gpu_plan([name]).points
    quiet = replace(gpu_device(point.device), noise=0.0)
    monkeypatch.setattr(import_module("dlfp_edge.runtimes.simulated.provider"), "gpu_device", lambda name: quiet)
    stream = load_workload("agent").streams[0].model_copy(update={"rate": point.rate, "requests": point.requests})
    served = replay(quiet, arrival_times(stream, 801), Shape(16384, 256))
    trial = run_trial(point, candidates()[0], 801, "agent", 0.08)
    gaps = np.concatenate([np.diff(request.times) for request in served])
    assert trial.itl_p99_ms == pytest.approx(1e3 * np.percentile(gaps, 99), rel=1e-6)
    assert trial.above == np.count_nonzero(gaps > 0.08)
    first = sorted(answer.ttft_s for answer in trial.answers)
    assert first == pytest.approx(sorted(request.times[0] - request.arrived for request in served), rel=1e-6)


def test_objectives_the_paper_does_not_state_follow_from_its_baseline() -> None:
    plan = small("qwen3-32b", requests=12)
    [result] = predict(plan, named("baseline", "cadence"), silent).points
    assert result.results[0].passes.predicted == pytest.approx(5 / 12, abs=0.05)
    assert "Agent x" in result.slo.source


def test_tables_put_the_papers_figure_beside_ours() -> None:
    predictions = predict(small("qwen3-8b-0.25"), named("baseline", "cadence", "fixed-2048"), silent)
    point, accuracy = tables(predictions)
    cadence = dict(zip(point.columns, point.rows[1], strict=True))
    assert cadence["P99 ITL ms"].endswith("(707)")
    assert "(" not in point.rows[2][1]  # the paper gives no figure
    figures = {(row[1], row[2]): row[-3] for row in accuracy.rows}
    assert figures["cadence", "P99 ITL, ms"] == "707"
    assert figures["baseline", "P99 TTFT, s"] == "12.3"
    assert figures["cadence", "P99 ITL, change %"] == "-59.9"
    assert figures["cadence", "SLO passes, %"] == "0.0"
    text = markdown(predictions)
    assert text.startswith(f"# {HEADING}")
    assert all(row[0] in text for row in point.rows)


def test_an_unknown_point_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown operating point 'qwen3-8b-0.1': did you mean 'qwen3-8b-0.10'"):
        gpu_plan(["qwen3-8b-0.1"])
