"""Benches, comparisons and models, as far as they go without a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlfp_edge.bench.busy import busy_cores
from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.overhead import decode_steps_s, overhead
from dlfp_edge.bench.report import quantiles_ms

from .conftest import Cli


def test_curve(cli: Cli, tmp_path: Path) -> None:
    said = cli("bench", "curve", "--runtime", "simulated", "--largest", "128", "--out", "b")
    assert said.code == 0
    assert "simulated" in said.out
    document = json.loads((tmp_path / "b" / "curve.json").read_text())
    assert document["simulated"] is True
    assert [row["tokens"] for row in document["rows"]] == [*range(1, 65), 128]
    assert document["rows"][0]["1 thread"] == pytest.approx(18.0, abs=0.1)
    assert (tmp_path / "b" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_predictor_prints_a_setting_that_runs(cli: Cli, tmp_path: Path) -> None:
    said = cli("bench", "predictor", "--runtime", "simulated", "--largest", "64", "--seconds", "20", "--out", "b")
    assert said.code == 0
    [setting] = [line.partition("--setting ")[2] for line in said.out.splitlines() if "--setting" in line]
    document = json.loads((tmp_path / "b" / "predictor.json").read_text())
    assert document["setting"] == setting
    # 14 ms and 4 ms on one core; the median kind of step is none of the fast ones of whole tiles
    assert document["constants"]["c"] == pytest.approx(0.85 * 0.014, rel=0.3)
    assert document["constants"]["b"] == pytest.approx(0.525 * 0.004, rel=0.3)
    assert all(row["P95 error %"] < 30 for row in document["rows"])
    assert len(document["points"]) > 50
    assert all(point["median_s"] > 0 for point in document["points"])
    ran = cli("run", "--runtime", "simulated", "--setting", setting, "--json")
    assert ran.code == 0
    assert "shared/predictor" in ran.out


def test_predictor_needs_prompts_to_measure(cli: Cli) -> None:
    said = cli("bench", "predictor", "--runtime", "simulated", "--largest", "4")
    assert said.code == 2
    assert "--largest" in said.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("name", ["curve.json.tmp", "curve.png"])
def test_a_file_that_cannot_be_written_is_named(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / name).symlink_to("/dev/full")
    said = cli("bench", "curve", "--runtime", "simulated", "--largest", "4", "--out", "b")
    assert said.code == 1
    assert "1 thread" in said.out
    last = said.err.splitlines()[-1]
    assert last.startswith(
        f"dlfp-edge: error: b/{name.removesuffix('.tmp')}: cannot be written: No space left on device"
    )
    assert "--out" in last


def test_json(cli: Cli) -> None:
    said = cli("bench", "curve", "--runtime", "simulated", "--largest", "4", "--threads", "1", "--json")
    assert [row["tokens"] for row in json.loads(said.out)["rows"]] == [1, 2, 3, 4]


def test_runtime_options_reach_the_runtime(cli: Cli) -> None:
    given = ("--runtime-option", "mode=sequential", "--runtime-option", "noise=0.5")
    said = cli("bench", "curve", "--runtime", "simulated", "--largest", "2", *given, "--json")
    runtime = json.loads(said.out)["runtime"]
    assert (runtime["mode"], runtime["noise"]) == ("sequential", 0.5)


def test_overhead() -> None:
    real_s = decode_steps_s(load_runtime("simulated"), [1, 8], lambda done, what: None)
    assert real_s[8] > real_s[1] > 0
    report = overhead([1, 8], 20, real_s)
    for row in report.as_json()["rows"]:
        assert row["steps"] >= 20
        assert row["share %"] > 0


def test_crowded(cli: Cli) -> None:
    document = json.loads(cli("bench", "crowded", "--runtime", "simulated", "--json").out)
    assert [(row["placement"], row["room for"]) for row in document["rows"]] == [
        ("lanes", "all"), ("lanes", "three"), ("shared", "all"), ("shared", "three"),
    ]  # fmt: skip
    for row in document["rows"]:
        assert row["complete"] == row["of"] == row["same ids"] == 120
        assert (row["over T"] > 0) == (row["over T %"] > 0) == (row["max gap / T"] > 1)
        assert row["peak MB"] > 0
        assert row["predicted MB"] is None


def test_schemas(cli: Cli) -> None:
    said = cli("bench", "schemas", "--runtime", "simulated", "--count", "8", "--json")
    for row in json.loads(said.out)["rows"]:
        assert row["answers"] == 8
        assert row["hold"] == (0 if "no grammar" in row["max_tokens"] else 8)


def test_busy_processes_end() -> None:
    import psutil

    with busy_cores([0], at_most_s=20) as count:
        children = psutil.Process().children()
        assert count == 1
        assert children
    assert not any(child.is_running() for child in children)


def test_quantiles_of_nothing() -> None:
    assert all(value != value for value in quantiles_ms([]))


def test_models_list(cli: Cli) -> None:
    pytest.importorskip("llama_cpp")
    document = json.loads(cli("models", "list", "--json").out)
    assert set(document) == {"embedded", "fetched", "shapes"}
    sizes = document["shapes"]["qwen3-0.6b"]
    assert sizes["Q4_0"] < sizes["Q4_K_M"] < sizes["Q8_0"]
    said = cli("models", "list").out
    assert f"{sizes['Q4_K_M'] / 1e6:,.0f} MB" in said
    assert all(name in said for name in document["shapes"])


def test_every_shape_listed_can_be_written(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    from dlfp_edge.runtimes.llama_cpp import synth

    small = synth.Shape(layers=1, embedding=256, feed_forward=256, heads=2, kv_heads=1, vocabulary=512)
    for name in synth.SHAPES:
        monkeypatch.setitem(synth.SHAPES, name, small)
    for name, sizes in json.loads(cli("models", "list", "--json").out)["shapes"].items():
        for quant, size in sizes.items():
            said = cli("models", "synth", name, "--quant", quant, "--out", "model.gguf", "--json")
            assert said.code == 0
            assert json.loads(said.out)["bytes"] == Path("model.gguf").stat().st_size
            assert 0 < Path("model.gguf").stat().st_size - size < 1 << 16
