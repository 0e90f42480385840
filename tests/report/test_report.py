"""The report of a comparison: whole, by itself, and with nothing left out."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.document import Result
from dlfp_edge.report import comparison
from dlfp_edge.report.comparison import write_report
from dlfp_edge.report.families import Family

from .documents import SEEDS, arms, keep, request, result, step, trial, workload
from .page import Page

LABELS = ("auto", "shared/fcfs", "shared/fixed:8", "shared/fixed:32", "llama-server -b 64", "http://127.0.0.1:8080")
FEW = ("auto", "shared/fcfs")
GAPS_S = {"auto": 0.015, "shared/fcfs": 0.4, "shared/fixed:8": 0.02, "shared/fixed:32": 0.04}


def reported(of: Result, folder: Path) -> Page:
    write_report(of, folder)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def compared(folder: Path, labels: tuple[str, ...] = LABELS, **fields: Any) -> Result:
    """A whole comparison, its trials in the folder."""
    asked = workload()
    found = arms(labels, asked)
    records = [trial(arm, seed, GAPS_S.get(arm.label, 0.03)) for arm in found for seed in SEEDS]
    keep(folder, records, [step(at / 10) for at in range(50)])
    return result(found, records, asked, **fields)


@dataclass(frozen=True)
class Usual:
    """A whole comparison and its page."""

    result: Result
    page: Page


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Usual:
    folder = tmp_path_factory.mktemp("usual")
    of = compared(folder)
    return Usual(of, reported(of, folder))


def test_the_page_is_well_formed_and_fetches_nothing(usual: Usual) -> None:
    page = usual.page
    assert page.faults == []
    assert page.fetched == []
    assert "script" not in page.tags
    assert "http:" not in re.sub(r"http://127\.0\.0\.1:8080|http://www\.w3\.org/[\w/.]+", "", page.source)


def test_ids_of_pictures_do_not_meet_and_all_links_lead_somewhere(usual: Usual) -> None:
    page = usual.page
    assert len(page.ids) == len(set(page.ids))
    used = {link[1:] for link in page.links} | set(re.findall(r"url\(#([^)]+)\)", page.source))
    assert used <= set(page.ids)
    assert page.tags.count("svg") >= 4  # frontiers, two distributions, the controller's course


def test_every_arm_and_every_verdict_is_there(usual: Usual) -> None:
    of, page = usual.result, usual.page
    tables = re.findall(r"<h3>(.*?)</h3>\s*<div class=\"scroll\"><table>(.*?)</table>", page.source, re.S)
    figures = [body for title, body in tables if title in ("TTFT", "E2EL", "Machine meanwhile", "Work done")]
    assert len(figures) == 4
    for row in of.rows:
        assert all(f">{row.setting}</th>" in body for body in figures)
    verdicts = page.source.split('class="verdicts"')[1].split("</table>")[0]
    controls = re.findall(r'<th scope="row"[^>]*>([^<]+)</th>', verdicts)
    outcomes = re.findall(r'<span class="outcome[^>]*>([^<]+)<', verdicts)
    assert controls == [verdict.control for verdict in of.verdicts]
    assert outcomes == [verdict.outcome for verdict in of.verdicts]


def test_verdicts_come_before_any_figure_of_an_arm(usual: Usual) -> None:
    page = usual.page
    order = [page.source.index(f'<section id="{name}">') for name in ("what", "verdicts", "frontier", "figures")]
    assert order == sorted(order)
    assert page.source.index("<svg") > order[2]


def test_a_loss_is_told_as_a_win_is(tmp_path: Path) -> None:
    asked = workload()
    found = arms(("auto", "shared/fcfs", "shared/dlfp"), asked)
    gaps = {"auto": 0.03, "shared/fcfs": 0.3, "shared/dlfp": 0.01}
    records = [trial(arm, seed, gaps.get(arm.label, 0.01)) for arm in found for seed in SEEDS]
    of = result(found, records, asked)
    assert {verdict.outcome for verdict in of.verdicts} == {"better", "worse"}
    page = reported(of, tmp_path)
    assert '<span class="outcome better">better</span>' in page.source
    assert '<span class="outcome worse">worse</span>' in page.source
    assert "1 better, 1 worse" in page.text
    assert "−200.0%" in page.text


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    asked = workload("<script>alert(1)</script>")
    label = "shared/<b>&\"'$x$"
    found = arms(("auto", label), asked)
    records = [trial(arm, seed) for arm in found for seed in SEEDS]
    keep(tmp_path, records, [step(0.0), step(0.1)])
    page = reported(result(found, records, asked), tmp_path)
    assert page.faults == []
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert label in page.text


def test_void_and_failed_trials_are_counted_beside_the_verdict_and_listed(tmp_path: Path) -> None:
    asked = workload()
    found = arms(("auto", "shared/fcfs"), asked)
    records = [trial(arm, seed) for arm in found for seed in SEEDS]
    records[-1] = trial(found[-1], 803, status="void", reason="request chat/0/7 has 9 tokens of 128")
    records[-2] = trial(found[-1], 802, status="failed", reason="no room <here>", requests=[])
    page = reported(result(found, records, asked), tmp_path)
    verdicts = page.source.split('class="verdicts"')[1].split("</table>")[0]
    assert "1 void, 1 failed" in verdicts
    assert "request chat/0/7 has 9 tokens of 128" in page.text
    assert "no room <here>" in page.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"simulated": True}, "Simulated"),
        ({"quick": True, "harness": None}, "Reconnaissance: no verdicts"),
        ({"complete": False}, "Not complete"),
        ({"harness_fault": "prompts took 0.95 of their time"}, "Void: the harness check failed"),
    ],
)
def test_what_limits_every_figure_is_said_in_large(
    tmp_path: Path, usual: Usual, fields: dict[str, Any], said: str
) -> None:
    asked = workload()
    page = reported(result(arms(("auto",), asked), [], asked, **fields), tmp_path)
    assert f"<b>{said}</b>" in page.source
    assert f"<b>{said}</b>" not in usual.page.source


@pytest.mark.parametrize("labels", [("auto",), ("auto", "shared/fcfs"), ("shared/fixed:8", "shared/fixed:32")])
def test_nothing_has_to_be_measured(tmp_path: Path, labels: tuple[str, ...]) -> None:
    asked = workload()
    found = arms(labels, asked)
    for name, records in {
        "no trial": [],
        "none counts": [trial(arm, 801, status="failed", reason="no", requests=[]) for arm in found],
        "no request": [trial(arm, 801, requests=[], background=None, duration_s=0.0) for arm in found],
        "no gap": [trial(arm, 801, requests=[request(0, 0.02, gaps=1)]) for arm in found],
        "candidate only": [trial(found[1], 801)],
        "only others": [trial(arm, 801) for arm in found if arm.label != labels[0]],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        keep(folder, records)
        of = result(found, records, asked, labels[0], harness=None, machine={}, runtime={})
        page = reported(of, folder)
        assert page.faults == [], name
        assert "None" not in page.text.replace("None.", ""), name
        assert "nan" not in page.text.lower().replace("nano", "").replace("unanimous", ""), name
        assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_paced_streams_have_raw_and_shown_gaps(tmp_path: Path) -> None:
    asked = workload()
    found = arms(("auto", "shared/fcfs"), asked)
    records = [trial(arm, seed, requests=[request(0, 0.02, shown=True)]) for arm in found for seed in SEEDS]
    keep(tmp_path, records)
    page = reported(result(found, records, asked), tmp_path)
    for said in ("P99 gap, ms", "P99 shown gap, ms", "longest shown gap, ms", "gap shown to a reader, ms"):
        assert said in page.text


def test_agreement_is_named_for_what_it_is(tmp_path: Path) -> None:
    asked = workload()
    found = arms(("auto", "shared/fcfs", "llama-server -b 64"), asked)
    silent = [request(0, 0.02).model_copy(update={"ids": None})]
    records = [trial(arm, 801, requests=silent) if "llama" in arm.label else trial(arm, 801) for arm in found]
    records.append(trial(found[3], 801, repeat=1))
    page = reported(result(found, records, asked), tmp_path)
    assert found[3].label == "shared/fcfs"
    assert "with itself, run again: 3 of 3 answers" in page.text
    assert "unavailable" in page.text


def test_a_record_that_is_none_is_named_and_left_out(tmp_path: Path) -> None:
    of = compared(tmp_path, FEW)
    broken = tmp_path / "trials" / "803-broken"
    broken.mkdir()
    (broken / "trial.json").write_text('{"arm": "auto", "seed"', encoding="utf-8")
    steps = sorted(tmp_path.glob("trials/*/steps.jsonl"))
    for path in steps:
        path.write_text(path.read_text(encoding="utf-8") + '{"lane": "sh', encoding="utf-8")
    page = reported(of, tmp_path)
    assert "803-broken" in page.text
    assert "tokens beside a decode" in page.text


def test_a_folder_that_cannot_be_written_is_one_line_and_leaves_no_half_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = compared(tmp_path, FEW)
    write_report(of, tmp_path)
    before = (tmp_path / "report.html").read_bytes()

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(comparison, "write_whole", full)
    with pytest.raises(RuntimeFailure, match=rf"--out {re.escape(str(tmp_path))}: .*No space left on device"):
        write_report(of, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before


def test_a_file_where_the_folder_should_be_is_one_line(tmp_path: Path) -> None:
    of = compared(tmp_path / "trials", FEW)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RuntimeFailure, match="file"):
        write_report(of, tmp_path / "file")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    of = compared(tmp_path, FEW)
    (tmp_path / "report.html").write_text("before", encoding="utf-8")
    (tmp_path / "report.html.tmp").symlink_to("/dev/full")
    with pytest.raises(RuntimeFailure, match="No space left"):
        write_report(of, tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "before"


def test_the_page_has_the_colours_of_the_pictures() -> None:
    style = (Path(comparison.__file__).parent / "page.css").read_text(encoding="utf-8")
    light = style.split("}")[0]
    for family in Family:
        assert f"--{family.key}: {family.colour};" in light
