"""Interleaved comparison on the simulated runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.compare import Arm, Comparer, Comparison
from dlfp_edge.experiment.workload import load_workload

from .simulated import settings, simulated

ARMS = [
    Arm("shared/unlimited", settings("shared/unlimited")),
    Arm("lanes/dlfp", settings("lanes/dlfp")),
    Arm("lanes/dlfp at 12/s", settings("lanes/dlfp"), pace=12.0),
]


def comparer(rounds: int = 2, seed: int = 0) -> Comparer:
    return Comparer(simulated(), load_workload("chat-ingest"), ARMS, rounds=rounds, window_s=4.0, seed=seed, scale=0.25)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("compare")
    return comparer().run(lambda result: result.save(folder)), folder


def test_every_round_runs_every_setting_and_its_solo_once(comparison: tuple[Comparison, Path]) -> None:
    result, _ = comparison
    names = {"shared/solo", "lanes/solo", "lanes/solo at 12/s", *(arm.label for arm in ARMS)}
    assert result.rounds == 2
    assert all(len(order) == len(names) and set(order) == names for order in result.order)
    assert {row.setting for row in result.rows} == names


def test_rows_relate_to_solo_and_to_the_baseline(comparison: tuple[Comparison, Path]) -> None:
    rows = {row.setting: row for row in comparison[0].rows}
    assert rows["shared/unlimited"].background_share == pytest.approx(1.0)
    assert rows["shared/unlimited"].solo == "shared/solo"
    assert rows["lanes/dlfp at 12/s"].solo == "lanes/solo at 12/s"
    assert rows["lanes/solo"].p99_over_solo == pytest.approx(1.0)
    assert rows["lanes/solo"].background_tokens_per_s is None
    assert rows["lanes/dlfp at 12/s"].shown_p99 is not None
    assert rows["lanes/dlfp"].shown_p99 is None
    assert all(row.gaps > 0 and row.failed == 0 for row in rows.values())


def test_the_files_are_written(comparison: tuple[Comparison, Path]) -> None:
    result, folder = comparison
    assert json.loads((folder / "compare.json").read_text()) == json.loads(json.dumps(result.as_json()))
    assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert result.simulated


def test_the_table_has_a_line_for_each_setting(comparison: tuple[Comparison, Path]) -> None:
    lines = comparison[0].table().splitlines()
    assert sum(line.startswith(("shared/", "lanes/")) for line in lines) == len(comparison[0].rows)


def test_the_order_comes_from_the_seed() -> None:
    assert comparer(rounds=1, seed=3).run().order == comparer(rounds=1, seed=3).run().order


def test_stopping_drops_the_round_under_way() -> None:
    seen: list[str] = []

    def progress(line: str) -> None:
        seen.append(line)
        if line.startswith("round 2"):
            made.stop()

    made = Comparer(
        simulated(), load_workload("chat-ingest"), ARMS[:2], rounds=3, window_s=2.0, scale=0.25, progress=progress
    )
    result = made.run()
    assert result.rounds == 1
    assert len(seen) == 5


def test_two_arms_cannot_share_a_label() -> None:
    with pytest.raises(UsageError, match="two settings are called"):
        Comparer(simulated(), load_workload("chat-ingest"), [ARMS[0], ARMS[0]], rounds=1, window_s=1.0)
