"""`dlfp-edge prove gpus`: what it prints and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlfp_edge.prove import gpu_points
from dlfp_edge.prove.gpus import HEADING

from .conftest import Cli


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates and two requests."""
    plan, both = gpu_points.gpu_plan, gpu_points.candidates()[:2]

    def shrunk(names: list[str]) -> gpu_points.Plan:
        points = tuple(point.model_copy(update={"requests": 2, "trials": 1}) for point in plan(names).points)
        return plan().model_copy(update={"points": points})

    monkeypatch.setattr(gpu_points, "gpu_plan", shrunk)
    monkeypatch.setattr(gpu_points, "candidates", lambda: both)


def test_tables_and_files(cli: Cli, tmp_path: Path) -> None:
    said = cli("prove", "gpus", "--point", "qwen3-8b-0.25", "--out", "p")
    assert said.code == 0
    assert said.out.startswith(HEADING)
    assert "Qwen3-8B on two A100s, 0.25 request/s" in said.out
    assert "(707)" in said.out
    assert json.loads((tmp_path / "p" / "gpus.json").read_text())["heading"] == HEADING
    assert (tmp_path / "p" / "gpus.md").read_text().startswith(f"# {HEADING}")
    assert "qwen3-8b-0.25: cadence" in said.err


def test_json(cli: Cli) -> None:
    said = cli("prove", "gpus", "--point", "qwen3-32b", "--json")
    [point] = json.loads(said.out)["points"]
    assert [candidate["name"] for candidate in point["candidates"]] == ["baseline", "cadence"]


def test_an_unknown_point(cli: Cli) -> None:
    said = cli("prove", "gpus", "--point", "qwen3-70b")
    assert said.code == 2
    assert said.err.startswith("dlfp-edge: error: unknown operating point 'qwen3-70b'")
