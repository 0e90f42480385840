"""A proof's file, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.workload import load_workload
from dlfp_edge.prove.spec import load_spec

CELL = '[[cell]]\nname = "a"\nmodel = "simulated"\ncontrols = ["shared/fcfs"]\nbars = ["late_share <= 0.1"]\n'


@pytest.mark.parametrize("bundled", ["default", "slice"])
def test_the_bundled_proofs_load(bundled: str) -> None:
    spec = load_spec(None, bundled)
    assert len({cell.name for cell in spec.cells}) == len(spec.cells)
    for cell in spec.cells:
        assert load_workload(cell.workload)
        assert cell.why


def test_the_default_proof_has_the_cells_that_were_asked_for() -> None:
    names = {cell.name for cell in load_spec(None).cells}
    assert names >= {"paced-12", "unpaced", "shared-unpaced", "two-chats", "bursts", "light-load", "split", "quota"}
    assert {"slowdown-1.5", "slowdown-2", "slowdown-3"} <= names


def test_only_some_cells() -> None:
    spec = load_spec(None, "slice")
    assert [cell.name for cell in spec.only(["shared", "lanes"]).cells] == ["lanes", "shared"]
    with pytest.raises(UsageError, match="no cell 'lane': did you mean 'lanes'"):
        spec.only(["lane"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\n', "missing key 'cell'"),
        (f'name = "x"\n{CELL}{CELL}', "two cells are named 'a'"),
        (f'name = "x"\n{CELL}pase = 8.0\n', "cell 'a': unknown key 'pase': did you mean 'pace'"),
        (f'name = "x"\n{CELL}condition = "quite"\n', "unknown condition 'quite': did you mean 'quiet'"),
        (f'name = "x"\n{CELL}slowdown = 2.0\ntarget_itl_ms = 20.0\n', "give only one"),
        (f'name = "x"\n{CELL}seeds = {{ choose = [1], score = [1] }}\n', "none in both"),
        ('name = "x"\n' + CELL.replace('name = "a"', 'name = "gpus"'), "'name' 'gpus'"),
        ('name = "x"\n' + CELL.replace("late_share", "late_shared"), "did you mean 'late_share'"),
        ('name = "x"\n' + CELL.replace("<= 0.1", "<= few"), "'few' is no number"),
        ('name = "x"\n' + CELL.replace("late_share <= 0.1", "late"), "write 'MEASURE <= NUMBER'"),
        ('name = "x"\n' + CELL.replace("late_share <= 0.1", "itl within 5% of peers"), "unknown metric 'itl'"),
        ('name = "x"\n' + CELL.replace('controls = ["shared/fcfs"]\n', ""), "there is nothing to compare with"),
        (f'name = "x"\n{CELL}tighter = "b"\n', "name a cell that stands before it"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        load_spec(tmp_path / "p.toml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "p.toml" in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the file"):
        load_spec(tmp_path / "none.toml")
