"""Which trials a comparison has, in which order."""

from __future__ import annotations

from collections import Counter

from dlfp_edge.experiment.arms import Arm, EngineOpener, with_solo
from dlfp_edge.experiment.plan import Plan, Point, finalists
from dlfp_edge.experiment.workload import load_workload
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class

from .simulated import simulated


def arms() -> list[Arm]:
    runtime = simulated()
    shared = Settings(placement=Placement.SHARED)
    named = [
        ("auto", EngineOpener(runtime, Settings()), None),
        ("shared/fcfs", EngineOpener(runtime, shared), None),
        *((f"shared/fixed:{n}", EngineOpener(runtime, shared), "shared/fixed:*") for n in (4, 8, 16)),
    ]
    return with_solo(named, load_workload("chat-ingest"))


PLAN = Plan(arms(), (801, 802, 803), "shared/fcfs")


def test_the_first_seed_runs_every_arm_and_the_baseline_again() -> None:
    names = Counter(trial.name for trial in PLAN.first())
    assert set(names.values()) == {1}
    assert set(names) == {
        "801-auto", "801-lanes-solo", "801-shared-solo", "801-shared-fcfs", "801-shared-fcfs-again",
        "801-shared-fixed-4", "801-shared-fixed-8", "801-shared-fixed-16",
    }  # fmt: skip


def test_the_other_seeds_run_what_is_no_sweep_and_the_finalists() -> None:
    later = PLAN.later(["shared/fixed:8"])
    assert Counter(trial.arm.label for trial in later) == dict.fromkeys(
        ["auto", "lanes/solo", "shared/solo", "shared/fcfs", "shared/fixed:8"], 2
    )
    assert [trial.seed for trial in later] == [802] * 5 + [803] * 5


def test_the_order_is_drawn_and_always_the_same() -> None:
    orders = [[trial.arm.label for trial in trials] for trials in (PLAN.first(), PLAN.later([]))]
    assert orders == [[trial.arm.label for trial in trials] for trials in (PLAN.first(), PLAN.later([]))]
    half = len(orders[1]) // 2
    assert orders[1][:half] != orders[1][half:]


def test_settings_of_a_family_share_one_solo() -> None:
    assert {arm.label: arm.solo for arm in PLAN.arms}["auto"] == "lanes/solo"
    assert sum(arm.alone for arm in PLAN.arms) == 2
    assert all(not arm.workload.of_class(Class.BACKGROUND) for arm in PLAN.arms if arm.alone)


def test_finalists_are_the_two_that_come_nearest_to_beating_the_candidate() -> None:
    points = [Point("a", 0.02, 100.0), Point("b", 0.03, 200.0), Point("c", 0.05, 300.0), Point("d", 0.2, 400.0)]
    assert finalists(points, Point("auto", 0.04, 250.0)) == ["b", "c"]
    assert finalists(points, Point("auto", 0.01, 50.0)) == ["a"]  # the smoothest, and it has more background
    assert finalists(points, Point("auto", 0.3, 500.0)) == ["d"]


def test_without_a_candidate_or_points_nothing_breaks() -> None:
    assert finalists([], Point("auto", 0.04, 250.0)) == []
    assert finalists([Point("a", 0.02, 100.0)], None) == ["a"]
