"""Which arms are drawn, how they belong together, and what is drawn of a controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlfp_edge.experiment.results import Row
from dlfp_edge.report.controller import MOST, courses
from dlfp_edge.report.distributions import shown_arms
from dlfp_edge.report.families import Family, family, sweeps
from dlfp_edge.report.frontier import marks
from dlfp_edge.report.trials import read_trials
from dlfp_edge.report.words import number, percent

from .documents import SEEDS, arms, keep, result, step, trial, workload

URL = "http://127.0.0.1:8080"
BACKGROUND = {"shared/fixed:8": 300.0, "shared/fixed:16": 400.0, "shared/fixed:64": 700.0}
GAPS_S = {"auto": 0.02, "shared/fixed:8": 0.012, "shared/fixed:16": 0.018, "shared/fixed:64": 0.08}


def rows(*labels: str) -> list[Row]:
    asked = workload()
    found = arms(labels, asked)
    return result(found, [trial(arm, 801) for arm in found], asked, labels[0]).rows


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("auto", Family.LANES),
        ("lanes/static", Family.LANES),
        ("shared/dlfp", Family.SHARED),
        ("shared/fcfs", Family.CONTROLS),
        ("shared/dlfp-cadence", Family.CONTROLS),
        ("llama-server -b 64", Family.SERVER),
        (URL, Family.ENDPOINT),
    ],
)
def test_an_arm_and_its_family(label: str, expected: Family) -> None:
    assert [family(row) for row in rows(label) if row.setting == label] == [expected]


def test_sweeps_are_in_the_order_of_their_parameter_and_hold_nothing_else() -> None:
    found = sweeps(rows("auto", "shared/fixed:64", "shared/fixed:8", "shared/fixed:16", f"{URL}1", f"{URL}2"))
    assert [[row.setting for row in points] for points in found.values()] == [
        ["shared/fixed:8", "shared/fixed:16", "shared/fixed:64"]
    ]


def test_the_best_of_a_sweep_is_the_busiest_that_is_as_smooth_as_the_candidate() -> None:
    asked = workload()
    found = arms(("auto", "shared/fcfs", *BACKGROUND), asked)
    records = [
        trial(arm, 801, GAPS_S.get(arm.label, 0.02), background=BACKGROUND.get(arm.label, 600.0)) for arm in found
    ]
    drawn = [row.setting for row in shown_arms(result(found, records, asked))]
    assert drawn == ["auto", "lanes/solo", "shared/fcfs", "shared/fixed:16"]


def test_few_points_have_names_and_many_have_numbers_by_smoothness() -> None:
    assert marks(rows("auto", "shared/fcfs")) == {"auto": "auto", "shared/fcfs": "shared/fcfs"}
    many = marks(rows("auto", *(f"shared/fixed:{at}" for at in range(1, 12))))
    assert sorted(map(int, many.values())) == list(range(1, 13))


def _courses(folder: Path, labels: tuple[str, ...], steps: list[dict[str, Any]]) -> Any:
    asked = workload()
    found = arms(labels, asked)
    records = [trial(arm, seed) for arm in found for seed in SEEDS]
    keep(folder, records, steps)
    return courses(result(found, records, asked), read_trials(folder))


def test_in_lanes_the_foreground_lanes_own_cap_is_no_allowance_of_the_background(tmp_path: Path) -> None:
    steps = [step(0.0, lane="foreground", budget=13.0), step(0.1, lane="background", budget=2.0)]
    (course,) = _courses(tmp_path, ("auto",), steps)
    assert course.in_lanes
    assert course.budget[~np.isnan(course.budget)].tolist() == [2.0]


def test_the_candidate_comes_first_and_few_others_follow(tmp_path: Path) -> None:
    labels = ("shared/fcfs", "shared/tick", "shared/stall-cap", "shared/dlfp", "shared/fixed:8", "auto")
    found = _courses(tmp_path, labels, [step(0.0), step(0.1, budget=None)])
    assert found[0].setting == "auto"
    assert len(found) == MOST


def test_figures_are_rounded_and_never_rounded_up_to_all() -> None:
    assert [number(value) for value in (None, 0.0, 0.01234, 1.005, 12.34, 99.96, 1234.5)] == [
        "–",
        "0",
        "0.0123",
        "1.00",
        "12.3",
        "100",
        "1,234",
    ]
    assert [percent(value) for value in (None, 0.0, 0.123456, 0.99999, 1.0)] == ["–", "0%", "12.3%", "99.999%", "100%"]
