"""What the package promises: its folders, its entry points, its data, and who may import whom."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
RINGS = ("runtimes", "devices", "workloads")
SOURCES = ("dlfp_edge", *RINGS)
HEAVY = {
    "llama_cpp": "runtimes/llama_cpp",
    "gguf": "runtimes/llama_cpp",
    "huggingface_hub": "runtimes/llama_cpp",
    "xllamacpp": "dlfp_edge/experiment/peers",
    "torch": "runtimes",
    "vllm": "runtimes",
    "tvm": "runtimes",
    "pynvml": "devices",
}


def files() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def package_of(path: Path) -> str:
    """The package a file is in once installed."""
    folder = path.parent.relative_to(ROOT).parts
    return ".".join(folder if folder[0] == "dlfp_edge" else ("dlfp_edge", *folder))


def absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({package_of(path) for path in files()})


@pytest.mark.parametrize("group", ["dlfp_edge.runtimes", "dlfp_edge.devices"])
def test_entry_points_load(group: str) -> None:
    names = {entry.name for entry in entry_points(group=group)}
    assert names
    for entry in entry_points(group=group):
        assert entry.load().name == entry.name


def test_the_core_names_no_ring() -> None:
    for path in files():
        if path.relative_to(ROOT).parts[0] == "dlfp_edge":
            for module in absolute_imports(path):
                assert module.split(".")[:2] not in [["dlfp_edge", ring] for ring in RINGS], f"{path} imports {module}"


def test_rings_import_no_other_ring() -> None:
    for path in files():
        ring = path.relative_to(ROOT).parts[0]
        for module in absolute_imports(path):
            for other in set(RINGS) - {ring}:
                assert ring == "dlfp_edge" or not module.startswith(f"dlfp_edge.{other}"), f"{path} imports {module}"


def test_heavy_packages_stay_in_their_adapter() -> None:
    for path in files():
        for module in absolute_imports(path):
            home = HEAVY.get(module.split(".")[0])
            assert home is None or path.is_relative_to(ROOT / home), f"{path} imports {module}"


def test_constraints_are_names_and_versions() -> None:
    for line in (ROOT / "constraints-core.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+; python_version >= '3\.11'", line), line


def test_wheel_holds_everything(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"{package_of(path).replace('.', '/')}/{path.name}" for path in files()}
    expected |= {f"dlfp_edge/workloads/{path.name}" for path in (ROOT / "workloads").glob("*.toml")}
    expected |= {f"dlfp_edge/prove/{path.name}" for path in (ROOT / "dlfp_edge" / "prove").glob("*.toml")}
    expected |= {f"dlfp_edge/workloads/data/{path.name}" for path in (ROOT / "workloads" / "data").iterdir()}
    assert expected | {"dlfp_edge/py.typed"} <= names
