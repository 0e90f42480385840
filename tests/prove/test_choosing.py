"""Which fixed settings go on."""

from __future__ import annotations

from dlfp_edge.experiment.arms import Arm, EngineOpener, Named, with_solo
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.workload import load_workload
from dlfp_edge.prove.choosing import FIXED, choose
from tests.experiment.simulated import settings, simulated
from tests.experiment.trials import trial

NAMES = ("shared/auto", "shared/fixed:8", "shared/fixed:16", "shared/fixed:32")


def arms() -> list[Arm]:
    runtime = simulated()
    named: list[Named] = [(name, EngineOpener(runtime, settings(name)), None) for name in NAMES]
    return with_solo(named, load_workload("chat-ingest"))


def tried(*places: tuple[str, float, float], seeds: tuple[int, ...] = (1, 2)) -> list[TrialRecord]:
    alone = [trial("shared/solo", seed, gap_s=0.010, background=None) for seed in seeds]
    return alone + [trial(name, seed, gap_s=gap_s, background=bg) for name, gap_s, bg in places for seed in seeds]


def best(*places: tuple[str, float, float]) -> str | None:
    return choose(arms(), tried(*places), "shared/auto")[FIXED].best


def test_the_best_has_most_background_of_those_that_keep_the_target() -> None:
    places = (("shared/fixed:8", 0.020, 500.0), ("shared/fixed:16", 0.030, 700.0), ("shared/fixed:32", 0.050, 900.0))
    assert best(("shared/auto", 0.025, 600.0), *places) == "shared/fixed:16"  # the target is 3 x 10 ms
    assert best(("shared/auto", 0.055, 600.0), *places) == "shared/fixed:32"  # what the default does counts too


def test_where_none_keeps_it_none_is_best_and_the_smoothest_is_scored_all_the_same() -> None:
    places = (("shared/fixed:16", 0.040, 700.0), ("shared/fixed:32", 0.050, 900.0))
    choice = choose(arms(), tried(("shared/auto", 0.025, 600.0), *places), "shared/auto")[FIXED]
    assert choice.best is None
    assert "shared/fixed:16" in choice.labels


def test_a_point_that_failed_with_a_seed_does_not_win_by_the_other() -> None:
    records = tried(("shared/auto", 0.025, 600.0), ("shared/fixed:8", 0.020, 500.0))
    records.append(trial("shared/fixed:16", 1, gap_s=0.021, background=900.0))
    assert choose(arms(), records, "shared/auto")[FIXED].labels == ("shared/fixed:8",)
