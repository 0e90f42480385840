"""Models with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_harness import OpenLane, generate

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.runtimes.llama_cpp import provider, synth


def test_a_random_model_loads_decodes_and_says_what_it_is(tiny_runtime: Runtime, open_lane: OpenLane) -> None:
    lane = open_lane(tiny_runtime, context=256)
    lane.open(0, Sampling())
    assert len(generate(tiny_runtime, lane, range(20), 5)) == 5
    description = tiny_runtime.describe()
    assert description["random_weights"] is True
    assert "random weights" in description["model"]["name"]
    assert len(description["sha256"]) == 64


def test_the_same_seed_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = synth.Shape(layers=1, embedding=256, feed_forward=256, heads=2, kv_heads=1, vocabulary=512)
    monkeypatch.setitem(synth.SHAPES, "tiny", shape)
    files = [
        provider.synthesize("tiny", "Q8_0", tmp_path / f"{index}.gguf", seed) for index, seed in enumerate((1, 1, 2))
    ]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.gguf", "1.gguf", "2.gguf"]


def test_unknown_names_lead_to_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'qwen3-0.6b'"):
        provider.synthesize("qwen3-06b", "Q4_K", tmp_path / "x.gguf")
    with pytest.raises(UsageError, match=r"did you mean 'Q4_K'"):
        provider.synthesize("qwen3-0.6b", "Q4_K_M", tmp_path / "x.gguf")


def test_the_mixture_is_llama_cpps(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {tensor.name: tensor.kind for tensor in synth._tensors(synth.SHAPES["qwen3-0.6b"], "Q4_K")}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert kinds["blk.5.attn_q.weight"] == "Q4_K"
    better = [layer for layer in range(28) if kinds[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert better == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
