"""A proof's cells run, are kept and gone on with, and say where the default loses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dlfp_edge.cli.proving import means
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.experiment import Experiment
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.prove.budget import CellPlan
from dlfp_edge.prove.document import CellResult, Proof
from dlfp_edge.prove.matrix import Prover
from dlfp_edge.prove.spec import Cell
from dlfp_edge.runtime import Runtime

from .proofs import cell, planned, proved, prover

SWEEP = ["shared/fixed:8", "shared/fixed:16", "shared/fixed:32", "shared/fixed:64"]


def seeds_of(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in (folder / "trials").iterdir()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CellResult]:
    folder = tmp_path_factory.mktemp("shared")
    bars = ["p99_over_target <= 1.05", "background_over_best_fixed >= 0.1", "itl_p99 within 500% of best-fixed"]
    proof = proved([cell(placement="shared", controls=["shared/fcfs"], best_of=SWEEP, bars=bars)], folder)
    return folder, proof.cells[0]


def test_the_best_fixed_setting_is_chosen_with_other_seeds_than_it_is_scored_with(
    shared: tuple[Path, CellResult],
) -> None:
    folder, result = shared
    assert seeds_of(folder / "one" / "choosing") == {"701"}
    assert seeds_of(folder / "one") == {"801", "802"}
    tried = {path.name for path in (folder / "one" / "choosing" / "trials").iterdir()}
    assert tried == {"701-shared-solo", "701-shared-auto", *(f"701-shared-fixed-{n}" for n in (8, 16, 32, 64))}
    [chosen] = result.chosen.values()
    assert result.best in chosen
    assert 1 <= len(chosen) <= 3
    scored = {path.name for path in (folder / "one" / "trials").iterdir() if "fixed" in path.name}
    assert {name[4:] for name in scored} == {label.replace("/", "-").replace(":", "-") for label in chosen}


def test_a_cell_has_what_a_comparison_has_and_the_proof_beside_it(shared: tuple[Path, CellResult]) -> None:
    folder, result = shared
    assert result.status == "held", result
    assert [bar.state for bar in result.bars] == ["held"] * 3
    for name in ("one/summary.json", "one/report.html", "one/plan.json", "proof.md", "proof.json"):
        assert (folder / name).stat().st_size > 0, name
    proof = Proof.model_validate_json((folder / "proof.json").read_text())
    assert proof.cells == [result]
    assert "| one | held | 3 of 3 |" in (folder / "proof.md").read_text()
    assert json.loads((folder / "one" / "harness.json").read_text()) == json.loads(
        (folder / "one" / "choosing" / "harness.json").read_text()
    )


def test_a_cell_that_loses_says_so_by_how_much_and_why(tmp_path: Path) -> None:
    bars = ["p99_over_solo <= 3", "ttft_over_solo_ms <= 1e9"]
    proof = proved([cell(candidate="shared/unlimited", bars=bars)], tmp_path)
    [lost] = proof.of("lost")
    assert [bar.state for bar in lost.bars] == ["missed", "held"]
    assert lost.losses[0].startswith("p99_over_solo <= 3: it is ")
    assert any("interruptions for arrivals" in line for line in lost.telling)
    assert any("foreground steps beside background ran on" in line for line in lost.telling)
    page = (tmp_path / "proof.md").read_text()
    assert f"- one: {lost.losses[0]}" in page[: page.index("## Cells")]


def test_a_control_that_is_better_is_a_loss_though_every_bar_was_held(tmp_path: Path) -> None:
    enough = {"gaps": 1000, "cap_s": 60.0, "seeds": {"choose": [701], "score": [801, 802, 803]}}
    proof = proved([cell(candidate="shared/fixed:4", bars=["p99_over_solo <= 9"], **enough)], tmp_path)
    assert proof.cells[0].status == "lost"
    assert any(loss.startswith("worse than lanes/static: ") for loss in proof.cells[0].losses)


def test_a_bar_without_data_leaves_a_cell_undecided(tmp_path: Path) -> None:
    assert proved([cell(bars=["late_share <= 0.5"])], tmp_path).cells[0].status == "undecided"


class Stopping:
    """Watches, and stops the proof before so many more trials."""

    def __init__(self, after: int = 10**9) -> None:
        self.ran: list[str] = []
        self._after = after
        self.prover: Prover | None = None

    @contextmanager
    def __call__(self, plan: CellPlan, experiment: Experiment) -> Iterator[Stopping]:
        yield self

    def before(self, planned: object) -> None:
        if len(self.ran) == self._after:
            assert self.prover is not None
            self.prover.stop()
        else:
            self.ran.append(planned.name)  # type: ignore[attr-defined]

    def after(self, planned: object, record: TrialRecord) -> None: ...


def run_with(watch: Stopping, cells: list[Cell], folder: Path) -> Proof:
    watch.prover = prover(cells, folder, watch=watch)
    return watch.prover.run()


@pytest.mark.parametrize("done", [0, 3, 13])
def test_a_proof_cut_short_goes_on_and_repeats_nothing(tmp_path: Path, done: int) -> None:
    cells = [cell("one", best_of=SWEEP[:2]), cell("two")]
    whole, first, second = Stopping(), Stopping(done), Stopping()
    expected = run_with(whole, cells, tmp_path / "whole")
    cut = run_with(first, cells, tmp_path / "cut")
    assert not cut.complete
    assert cut.of("cut short")
    finished = run_with(second, cells, tmp_path / "cut")
    assert finished.complete
    assert first.ran + second.ran == whole.ran
    for found, wanted in zip(finished.cells, expected.cells, strict=True):
        assert (found.status, found.best, found.chosen) == (wanted.status, wanted.best, wanted.chosen)
        assert [bar.value for bar in found.bars] == pytest.approx([bar.value for bar in wanted.bars])


def test_a_cell_that_was_measured_is_not_measured_again_unless_it_changed(tmp_path: Path) -> None:
    proved([cell()], tmp_path)
    broken = replace(means(), load=lambda cell: _fail())
    assert proved([cell()], tmp_path, means=broken).cells[0].status == "held"
    assert proved([cell(bars=["p99_over_solo <= 2.9"])], tmp_path, means=broken).cells[0].status == "failed"
    assert proved([cell(bars=["p99_over_solo <= 2.9"])], tmp_path).cells[0].status == "held"


def _fail() -> Runtime:
    raise RuntimeFailure("there is no memory for it")


def test_a_cell_that_cannot_run_is_a_result_and_the_others_run(tmp_path: Path) -> None:
    usual = means()
    some = replace(usual, load=lambda cell: _fail() if cell.name == "one" else usual.load(cell))
    proof = proved([cell("one"), cell("two")], tmp_path, means=some)
    assert [(result.status, result.reason) for result in proof.cells] == [
        ("failed", "there is no memory for it"),
        ("held", None),
    ]
    assert proof.complete
    assert proved([cell("one"), cell("two")], tmp_path).cells[0].status == "held"


def test_what_means_nothing_on_virtual_time_is_skipped(tmp_path: Path) -> None:
    proof = proved([cell("one", condition="contention"), cell("two")], tmp_path)
    assert proof.cells[0].status == "skipped"
    assert "virtual time" in (proof.cells[0].reason or "")
    assert proof.cells[1].status == "held"


def test_without_priority_is_without_priority(tmp_path: Path) -> None:
    bars = ["p99_over_solo <= 1.6"]
    proof = proved(
        [
            cell("with", bars=bars, candidate="lanes/static"),
            cell("without", bars=bars, candidate="lanes/static", condition="no-priority"),
        ],
        tmp_path,
    )
    assert [result.status for result in proof.cells] == ["held", "lost"]


def test_a_plan_without_a_budget_reaches_everything_at_full_length(tmp_path: Path) -> None:
    plans = planned([cell("one", cap_s=8.0), cell("two")], tmp_path, None)
    assert [(plan.reached, plan.limits.cap_s) for plan in plans] == [(True, 8.0), (True, 10.0)]
    assert all(plan.expected_s is not None and plan.expected_s > 0 for plan in plans)


def test_a_budget_shortens_trials_first_and_leaves_out_the_last_cells_next(tmp_path: Path) -> None:
    cells = [cell(name, gaps=10**6) for name in ("one", "two", "three")]
    full_s = sum(plan.expected_s or 0 for plan in planned(cells, tmp_path, None))
    shorter = planned(cells, tmp_path, 0.8 * full_s)
    assert [plan.reached for plan in shorter] == [True] * 3
    assert {plan.limits.cap_s for plan in shorter} == {7.5}
    fewer = planned([each.model_copy(update={"least_s": 9.0}) for each in cells], tmp_path, 0.5 * full_s)
    assert [plan.reached for plan in fewer] == [True, False, False]
    assert {plan.limits.cap_s for plan in fewer} == {9.0}
    proof = proved(cells, tmp_path, plans=fewer)
    assert [result.status for result in proof.cells] == ["held", "left out", "left out"]


def test_a_cell_that_was_begun_keeps_the_length_of_its_trials(tmp_path: Path) -> None:
    run_with(Stopping(2), [cell()], tmp_path)
    [plan] = planned([cell()], tmp_path, 1e-9)
    assert plan.limits.cap_s == 10.0


def test_hours_that_are_spent_begin_no_other_cell(tmp_path: Path) -> None:
    times = iter(range(0, 10**6, 3000))
    proof = proved([cell("one"), cell("two"), cell("three")], tmp_path, hours=1.0, clock=lambda: float(next(times)))
    assert proof.cells[0].status == "held"
    assert proof.cells[-1].status == "left out"
