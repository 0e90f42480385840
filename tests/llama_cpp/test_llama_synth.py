"""Models with random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from llama_harness import OpenLane, generate, load_options, run_step, segment
from quantiser import chosen_kinds, write_unquantised

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.runtimes.llama_cpp import provider, synth
from dlfp_edge.runtimes.llama_cpp.blocks import BLOCKS, random_blocks
from dlfp_edge.runtimes.llama_cpp.gguf_file import read_header
from dlfp_edge.runtimes.llama_cpp.mixture import QUANTS, tensors, weight_bytes
from dlfp_edge.runtimes.llama_cpp.shape import read_shape
from dlfp_edge.runtimes.llama_cpp.shapes import GEMMA3, SHAPES, Shape

GEMMA_270M = Shape(
    family=GEMMA3,
    layers=18,
    embedding=640,
    feed_forward=2048,
    heads=4,
    kv_heads=1,
    head=256,
    vocabulary=262_144,
    context=32_768,
    window=512,
)
HEADER = 64 << 10
"""More bytes than the header of any of these files has."""


def test_a_random_model_loads_decodes_and_says_what_it_is(tiny_runtime: Runtime, open_lane: OpenLane) -> None:
    lane = open_lane(tiny_runtime, context=256)
    lane.open(0, Sampling())
    assert len(generate(tiny_runtime, lane, range(20), 5)) == 5
    description = tiny_runtime.describe()
    assert description["random_weights"] is True
    assert "random weights" in description["model"]["name"]
    assert len(description["sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "quant"), [*((name, "Q4_K_M") for name in SHAPES), ("smollm2-360m", "Q4_0"), ("qwen2.5-0.5b", "Q8_0")]
)
def test_llama_cpp_runs_every_shape(
    name: str, quant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_lane: OpenLane
) -> None:
    """With few layers and tokens, to be quick: rows are as wide as they really are."""
    shape = replace(SHAPES[name], layers=6 if SHAPES[name].window else 2, vocabulary=4096)
    monkeypatch.setitem(synth.SHAPES, name, shape)
    path = provider.synthesize(name, quant, tmp_path / "model.gguf")
    runtime = provider.load(load_options(path))
    try:
        lane = open_lane(runtime, context=256)
        lane.open(0, Sampling(logprobs=20))
        ids = generate(runtime, lane, range(100, 120), 4)
        (last,) = run_step(runtime, lane, segment(0, 23, ids[-1:])).segments[0].logprobs.values()
        assert np.isfinite([last.chosen, *(value for _, value in last.top)]).all()
        assert last.top[0][1] > last.top[-1][1]
        lane.shut()
    finally:
        runtime.close()


@pytest.mark.parametrize("name", SHAPES)
def test_a_header_tells_the_shape(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    told = read_shape(read_header(write_unquantised(tmp_path / "model.gguf", shape)))
    assert (told.layers, told.embedding, told.feed_forward) == (shape.layers, shape.embedding, shape.feed_forward)
    assert (told.heads, told.head_sizes) == (shape.heads, (shape.head, shape.head))
    assert told.key_numbers == told.value_numbers == shape.layers * shape.kv_heads * shape.head
    assert (told.vocabulary, told.trained_context, told.window) == (shape.vocabulary, shape.context, shape.window)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("name", SHAPES)
def test_types_are_those_of_llama_cpps_quantiser(name: str, quant: str, tmp_path: Path) -> None:
    unquantised = write_unquantised(tmp_path / "f16.gguf", SHAPES[name])
    assert {tensor.name: tensor.kind for tensor in tensors(SHAPES[name], quant)} == chosen_kinds(unquantised, quant)


def test_tensors_are_those_of_a_real_file() -> None:
    real = read_header(provider.default_model()).tensors
    ours = {tensor.name: (tensor.kind, tensor.size) for tensor in tensors(GEMMA_270M, "Q4_K_M")}
    assert ours == {tensor.name: (GGMLQuantizationType(tensor.kind).name, tensor.size) for tensor in real}


@pytest.mark.parametrize(
    ("name", "file_bytes"),
    [
        ("gemma-3-1b", 806_058_496),
        ("llama-3.2-1b", 807_694_464),
        ("llama-3.2-3b", 2_019_377_696),
        ("qwen2.5-3b", 1_929_903_264),
        ("qwen3-4b", 2_497_280_256),
    ],
)
def test_published_files_are_larger_by_their_tokenizer(name: str, file_bytes: int) -> None:
    assert 4e6 < file_bytes - weight_bytes(SHAPES[name], "Q4_K_M") < 10e6


@pytest.mark.parametrize("kind", [kind for kind in BLOCKS if kind != "F32"])
def test_weights_are_small_and_centred(kind: str) -> None:
    """Else a model of random weights says one token whatever it is asked, or nothing finite."""
    blocks = random_blocks(kind, 4000, np.random.default_rng(1)).reshape(-1, BLOCKS[kind].size)
    weights = dequantize(blocks, GGMLQuantizationType[kind])
    assert 0.015 < weights.std() < 0.035
    assert abs(weights.mean()) < 0.01 * weights.std()


def test_the_same_seed_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(layers=1, embedding=256, feed_forward=256, heads=2, kv_heads=1, vocabulary=512)
    monkeypatch.setitem(synth.SHAPES, "tiny", shape)
    files = [
        provider.synthesize("tiny", "Q8_0", tmp_path / f"{index}.gguf", seed) for index, seed in enumerate((1, 1, 2))
    ]
    first, same, other = (file.read_bytes() for file in files)
    assert first == same
    assert first != other
    assert 0 < len(first) - weight_bytes(shape, "Q8_0") < HEADER
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.gguf", "1.gguf", "2.gguf"]


def test_unknown_names_lead_to_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'llama-3.2-1b'"):
        provider.synthesize("llama3.2-1b", "Q4_K_M", tmp_path / "x.gguf")
    with pytest.raises(UsageError, match=r"did you mean 'Q4_K_M'"):
        provider.synthesize("qwen3-0.6b", "Q4_K", tmp_path / "x.gguf")
