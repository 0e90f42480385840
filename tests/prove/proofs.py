"""Small proofs on the simulated runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlfp_edge.cli.proving import means
from dlfp_edge.prove.budget import CellPlan, expectations, limits_at, plan
from dlfp_edge.prove.document import Proof
from dlfp_edge.prove.matrix import Prover
from dlfp_edge.prove.spec import Cell


def cell(name: str = "one", **fields: Any) -> Cell:
    """A cell that takes a second."""
    usual = {
        "name": name,
        "model": "simulated",
        "placement": "lanes",
        "scale": 0.25,
        "controls": ["lanes/static"],
        "seeds": {"choose": [701], "score": [801, 802]},
        "gaps": 40,
        "cap_s": 10.0,
        "least_s": 2.0,
        "bars": ["p99_over_solo <= 3"],
    }
    return Cell.model_validate({**usual, **fields})


def prover(cells: list[Cell], folder: Path, **options: Any) -> Prover:
    """Ready to run them all."""
    plans = [CellPlan(each, limits_at(each, 1.0, folder / each.name), 10.0) for each in cells]
    return Prover("test", options.pop("plans", plans), options.pop("means", means()), folder, **options)


def proved(cells: list[Cell], folder: Path, **options: Any) -> Proof:
    """What came of them."""
    return prover(cells, folder, **options).run()


def planned(cells: list[Cell], folder: Path, budget_s: float | None) -> list[CellPlan]:
    """Their plan within so many seconds."""
    return plan(cells, expectations(cells, means(), folder), folder, budget_s)
