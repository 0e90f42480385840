"""`dlfp-edge prove` from the command line, on the simulated runtime."""

from __future__ import annotations

import json
from pathlib import Path

from dlfp_edge.prove.document import Proof

from .conftest import Cli

SPEC = """
name = "small"
[[cell]]
name = "one"
model = "simulated"
placement = "lanes"
scale = 0.25
controls = ["lanes/static"]
seeds = { choose = [1], score = [2, 3] }
gaps = 40
cap_s = 5.0
least_s = 1.0
bars = ["p99_over_solo <= 3"]

[[cell]]
name = "two"
model = "simulated"
scale = 0.25
candidate = "shared/unlimited"
controls = ["lanes/static"]
seeds = { choose = [1], score = [2, 3] }
gaps = 40
cap_s = 5.0
least_s = 1.0
bars = ["p99_over_solo <= 3"]
"""


def test_a_proof_says_what_held_and_what_was_lost(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SPEC)
    said = cli("prove", "--spec", "p.toml", "--out", "p")
    assert said.code == 1
    assert "- two: p99_over_solo <= 3: it is " in said.out
    assert "of 2 cells the default held in 1, lost in 1" in said.out
    assert "cell 2 of 2, two, scoring" in said.err
    again = cli("prove", "--spec", "p.toml", "--out", "p", "--json")
    document = json.loads(again.out)
    assert document.pop("out") == "p"
    assert [cell.status for cell in Proof.model_validate(document).cells] == ["held", "lost"]
    assert "scoring" not in again.err


def test_where_everything_held_the_exit_code_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SPEC)
    assert cli("prove", "--spec", "p.toml", "--cells", "one", "--out", "p").code == 0


def test_a_plan_runs_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SPEC)
    said = cli("prove", "--spec", "p.toml", "--plan", "--hours", "0.0001", "--out", "p", "--json")
    document = json.loads(said.out)
    assert [cell["cell"] for cell in document["cells"]] == ["one", "two"]
    assert not document["cells"][1]["reached"]
    assert not (tmp_path / "p").exists()


def test_wrong_input_is_one_line(cli: Cli, tmp_path: Path) -> None:
    for arguments, text in (
        (("--spec", "none.toml"), "none.toml: cannot read the file"),
        (("--slice", "--cells", "lane"), "did you mean 'lanes'"),
        (("--slice", "--spec", "p.toml"), "--slice is a proof of its own"),
        (("--hours", "0"), "--hours"),
    ):
        said = cli("prove", *arguments)
        assert said.code == 2, arguments
        assert text in said.err
        assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
