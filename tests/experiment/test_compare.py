"""Trials run, kept and gone on with, on the simulated runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.arms import Arm, EngineOpener, Named, Speed, with_solo
from dlfp_edge.experiment.compare import Comparer
from dlfp_edge.experiment.plan import Plan, Planned
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.trial import Opened
from dlfp_edge.experiment.trial_files import TrialFiles
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.runtime import Runtime

from .fake_target import FakeTarget
from .simulated import settings, simulated

LIMITS = Limits(gaps=60, cap_s=10.0)
SETTINGS = ("lanes/static", "shared/unlimited", "shared/fixed:8", "shared/fixed:64")


def arms(runtime: Runtime, *more: Named) -> list[Arm]:
    named: list[Named] = [
        (name, EngineOpener(runtime, settings(name)), "shared/fixed:*" if "fixed" in name else None)
        for name in SETTINGS
    ]
    return with_solo([*named, *more], load_workload("chat-ingest").scaled(0.25))


class Counting(Comparer):
    """Also tells which trials ran, and can be stopped after so many."""

    def __init__(self, folder: Path, *more: Named, stop_after: int = 10**9, seeds: tuple[int, ...] = (1, 2)) -> None:
        self.ran: list[str] = []
        self._stop_after = stop_after
        chosen = arms(simulated(), *more)
        files = TrialFiles(folder)
        files.claim({"arms": [arm.label for arm in chosen], "seeds": seeds})
        super().__init__(
            Plan(chosen, seeds, "shared/unlimited"), LIMITS, files, candidate="lanes/static", before=self._begun
        )

    def _begun(self, planned: Planned) -> None:
        if len(self.ran) == self._stop_after:
            self.stop()
        else:
            self.ran.append(planned.name)


def asked(records: list[TrialRecord]) -> list[tuple[str, int, int, dict[str, tuple[int | None, bool]]]]:
    """What the trials were, and what was asked and answered in them."""
    return [
        (r.arm, r.seed, r.repeat, {q.label: (q.prompt, q.complete) for q in r.requests if q.task_class == "foreground"})
        for r in records
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counting]:
    folder = tmp_path_factory.mktemp("whole")
    comparer = Counting(folder)
    comparer.run()
    return folder, comparer


def test_each_trial_is_kept_in_a_folder_of_its_own(whole: tuple[Path, Counting]) -> None:
    folder, comparer = whole
    assert {path.name for path in (folder / "trials").iterdir()} == set(comparer.ran)
    for record, name in zip(comparer.records, comparer.ran, strict=True):
        assert record.status == "complete", record.reason
        place = folder / "trials" / name
        assert TrialRecord.model_validate_json((place / "trial.json").read_text()) == record
        lines = (place / "requests.jsonl").read_text().splitlines()
        assert {json.loads(line)["label"] for line in lines} >= {request.label for request in record.requests}
        assert (place / "steps.jsonl").stat().st_size > 0


def test_gaps_are_those_between_the_tokens_of_each_answer(whole: tuple[Path, Counting]) -> None:
    for record in whole[1].records:
        for request in record.requests:
            if request.complete:
                assert len(request.gaps_s) == request.tokens - 1
            assert len(request.contended) == len(request.gaps_s)
            assert all(request.contended) or record.background_tokens is not None


def test_a_solo_arm_has_no_background_and_reads_its_prompts_alone(whole: tuple[Path, Counting]) -> None:
    solo = [record for record in whole[1].records if record.arm.endswith("/solo")]
    assert solo
    for record in solo:
        assert record.background_tokens is None
        assert record.isolated_tokens_per_s is not None
        assert {request.stream for request in record.requests} == {"chat"}


@pytest.mark.parametrize("done", [0, 1, 5, 9])
def test_a_comparison_cut_short_goes_on_and_repeats_nothing(
    whole: tuple[Path, Counting], tmp_path: Path, done: int
) -> None:
    first = Counting(tmp_path, stop_after=done)
    first.run()
    assert not first.complete
    assert len(first.ran) == done
    second = Counting(tmp_path)
    records = second.run()
    assert first.ran + second.ran == whole[1].ran
    assert records[:done] == first.records
    assert asked(records) == asked(whole[1].records)


def test_a_trial_whose_record_is_damaged_runs_again(whole: tuple[Path, Counting], tmp_path: Path) -> None:
    first = Counting(tmp_path, seeds=(1,))
    first.run()
    (tmp_path / "trials" / first.ran[3] / "trial.json").write_text('{"arm": "lanes/st')
    again = Counting(tmp_path, seeds=(1,))
    assert asked(again.run()) == asked(first.records)
    assert again.ran == [first.ran[3]]


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    Counting(tmp_path, seeds=(1,))
    with pytest.raises(UsageError, match=r"another comparison \(seeds\)"):
        Counting(tmp_path, seeds=(2,))


@pytest.mark.parametrize("damage", ["", "[]", "{", "[" * 100_000])
def test_a_damaged_plan_is_said(tmp_path: Path, damage: str) -> None:
    Counting(tmp_path, seeds=(1,))
    (tmp_path / "plan.json").write_text(damage)
    with pytest.raises(UsageError, match=r"plan\.json cannot be read"):
        Counting(tmp_path, seeds=(1,))


class Broken:
    """A target that cannot be opened, or fails what it is asked."""

    opening_s: ClassVar[float] = 0.0
    family = "broken"

    def __init__(self, *, opens: bool) -> None:
        self._opens = opens

    def plain(self) -> Broken:
        return self

    @contextmanager
    def open(self, workload: Workload) -> Iterator[Opened]:
        if not self._opens:
            raise RuntimeFailure("nobody answers there")
        yield Opened(FakeTarget(), simulated().tokenizer)

    def expected_gap_s(self, speed: Speed) -> float:
        return 1.0

    def describe(self) -> dict[str, Any]:
        return {}


def test_a_target_that_cannot_be_opened_is_a_failed_trial_and_the_others_run(tmp_path: Path) -> None:
    comparer = Counting(tmp_path, ("dead", Broken(opens=False), None), seeds=(1,))
    records = {record.arm: record for record in comparer.run()}
    assert records["dead"].status == "failed"
    assert records["dead"].reason == "nobody answers there"
    assert records["lanes/static"].status == "complete"


def test_a_failed_trial_is_tried_again_and_no_other(tmp_path: Path) -> None:
    first = Counting(tmp_path, ("peer", Broken(opens=False), None), seeds=(1,))
    first.run()
    again = Counting(tmp_path, ("peer", Broken(opens=False), None), seeds=(1,))
    again.run()
    assert sorted(again.ran) == ["1-broken-solo", "1-peer"]


def test_a_disk_that_is_full_is_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    comparer = Counting(tmp_path, seeds=(1,))
    (tmp_path / "trials").write_text("in the way")
    with pytest.raises(RuntimeFailure, match="mend that and give the same command"):
        comparer.run()
