"""`dlfp-edge compare` from the command line, on the simulated runtime."""

from __future__ import annotations

import json
from pathlib import Path

from dlfp_edge.experiment.document import Result

from .conftest import Cli

SMALL = (
    "compare", "chat-ingest", "--runtime", "simulated", "--settings", "auto,shared/fcfs,shared/fixed:*",
    "--gaps", "40", "--cap", "5s", "--scale", "0.25", "--seeds", "1,2", "--out", "c",
)  # fmt: skip


def test_compare(cli: Cli, tmp_path: Path) -> None:
    said = cli(*SMALL, "--json")
    assert said.code == 0
    document = json.loads(said.out)
    assert document.pop("out") == "c"
    result = Result.model_validate(document)
    assert result.complete
    assert result.simulated
    assert result.candidate == "auto"
    assert result.trials == {"complete": 10 + 5 + 2}
    assert {verdict.outcome for verdict in result.verdicts} == {"reconnaissance"}
    assert result.harness is not None
    assert result.harness["matching"] < 0.7 < result.harness["nonmatching"]
    assert json.loads((tmp_path / "c" / "summary.json").read_text())["took_s"] > 0
    for name in ("report.html", "frontier.png", "summary.csv", "plan.json"):
        assert (tmp_path / "c" / name).stat().st_size > 0, name


def test_the_same_command_again_runs_nothing_and_says_the_same(cli: Cli) -> None:
    first = json.loads(cli(*SMALL, "--json").out)
    second = cli(*SMALL, "--json")
    document = json.loads(second.out)
    assert "trial 1" not in second.err
    assert document["rows"] == first["rows"]
    assert document["took_s"] == first["took_s"]


def test_a_plan_runs_nothing(cli: Cli, tmp_path: Path) -> None:
    said = cli(*SMALL, "--plan", "--json")
    document = json.loads(said.out)
    assert [plan["setting"] for plan in document["plan"]][:3] == ["lanes/solo", "auto", "shared/solo"]
    assert document["expected_s"] > 0
    assert not (tmp_path / "c").exists()


def test_the_tables_are_markdown(cli: Cli) -> None:
    said = cli(*SMALL)
    assert "(simulated): auto against each" in said.out
    lines = [line for line in said.out.splitlines() if line.startswith("|")]
    assert any(line.startswith("| shared/fcfs") and "reconnaissance" in line for line in lines)
    assert all(line.rstrip().endswith("|") for line in lines)


def test_quick_has_one_seed_and_no_verdict(cli: Cli) -> None:
    document = json.loads(cli(*SMALL, "--quick", "--json").out)
    assert document["seeds"] == [1]
    assert document["harness"] is None
    assert sum(row["setting"].startswith("shared/fixed:") for row in document["rows"]) == 3
    assert all("a quick run" in verdict["why"] for verdict in document["verdicts"])


def test_a_workload_that_protects_nobody_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(
        'name = "b"\ndescription = "-"\nduration_s = 9.0\n[[stream]]\nname = "b"\nclass = "background"\n'
        "clients = 1\nprompt_tokens = 10\nmax_tokens = 4\n"
    )
    said = cli("compare", "b.toml", "--runtime", "simulated", "--out", "c")
    assert said.code == 2
    assert "no foreground stream" in said.err


def test_an_endpoint_that_is_not_there_is_said_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    said = cli("compare", "--endpoint", "http://127.0.0.1:9", "--out", "c")
    assert said.code == 1
    assert "no server answers at http://127.0.0.1:9" in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "c").exists()
