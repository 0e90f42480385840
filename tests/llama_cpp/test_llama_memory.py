"""What is said about memory: against llama.cpp's own figures, and in time, before anything is allocated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as trials
from hypothesis import strategies as st
from llama_harness import OpenLane, generate, load_options

from dlfp_edge.device import Memory
from dlfp_edge.devices.generic import GenericDevice
from dlfp_edge.devices.linux import LinuxDevice
from dlfp_edge.errors import UsageError
from dlfp_edge.placement import open_lanes
from dlfp_edge.runtime import LaneSpec, LoadOptions, Priority, Sampling
from dlfp_edge.runtimes.llama_cpp import library, provider, synth
from dlfp_edge.runtimes.llama_cpp.budget import MOST_CELLS, Budget
from dlfp_edge.runtimes.llama_cpp.context import KV_TYPES, Context, ContextSettings
from dlfp_edge.runtimes.llama_cpp.memory import MemoryNeed
from dlfp_edge.runtimes.llama_cpp.model import default_model
from dlfp_edge.runtimes.llama_cpp.model_files import read_model_files
from dlfp_edge.settings import Placement, Settings

MIB = 1 << 20
NORMAL = ContextSettings(exact=False, kv_type="f16", flash_attention=None)
EXACT = ContextSettings(exact=True, kv_type="f32", flash_attention=False)
WINDOWED = ContextSettings(exact=False, kv_type="f16", flash_attention=None, windowed=True)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine whose available memory is the number in the list."""
    available = [1 << 40]
    for device in (LinuxDevice, GenericDevice):
        monkeypatch.setattr(device, "memory", lambda _self: Memory(1 << 40, available[0]))
    return available


@pytest.fixture(scope="module", params=["gemma", "random"])
def unloaded(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[tuple[Path, object]]:
    """A model of which llama.cpp plans the memory without having any, and what is expected of it."""
    path = default_model() if request.param == "gemma" else tiny_model
    api = library.library()
    params = api.llama_model_default_params()
    params.no_alloc, params.load_mode = True, api.LLAMA_LOAD_MODE_NONE
    pointer = api.llama_model_load_from_file(str(path).encode(), params)
    yield path, pointer
    api.llama_model_free(pointer)


@pytest.mark.parametrize(
    ("settings", "flash"),
    [(NORMAL, False), (NORMAL, True), (EXACT, False), (WINDOWED, True)],
    ids=["normal", "flash", "exact", "windowed"],
)
@pytest.mark.parametrize(("cells", "sequences"), [(1024, 1), (5461, 4), (16384, 12), (65536, 4)])
def test_buffers_and_cells_are_those_that_llama_cpp_plans(
    unloaded: tuple[Path, object],
    cells: int,
    sequences: int,
    settings: ContextSettings,
    flash: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, pointer = unloaded
    need = MemoryNeed(read_model_files(path).header, settings)
    monkeypatch.setattr(library, "KEPT_LOG_LINES", 10_000)
    with library.collected_log() as log:
        context = Context(pointer, settings, sequences, cells, 1, flash_attention=flash)
        context.close()
    said = "\n".join(log)
    kv = sum(float(size) for size in re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", said))
    [graph] = re.findall(r"compute buffer size = +([\d.]+) MiB", said)
    expected = need.lane(cells, sequences, flash_attention=flash)
    assert expected.kv / MIB == pytest.approx(kv, abs=0.1)
    most_outputs = (64 + sequences) * need.shape.vocabulary * 4
    assert (expected.buffers - most_outputs) / MIB == pytest.approx(float(graph), rel=0.05, abs=9)


def test_gemma_is_known_by_its_header() -> None:
    shape = MemoryNeed(read_model_files(default_model()).header, NORMAL).shape
    assert (shape.layers, shape.vocabulary, shape.trained_context) == (18, 262144, 32768)
    assert (shape.window, shape.windowed_layers) == (512, 15)


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(
    tiny_model: Path, memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.library(), "llama_model_load_from_file", None)
    memory[0] = 1_000_000
    with pytest.raises(UsageError) as caught:
        provider.load(load_options(tiny_model))
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"weights \d+ MB \+ 256 KV cells x [\d,]+ bytes \(\d+ MB\) \+ buffers \d+ MB = \d+ MB", message)
    assert "1 MB is available" in message
    assert str(tiny_model) in message


def test_a_context_that_is_too_large_names_the_largest_that_fits(
    tiny_model: Path, memory: list[int], open_lane: OpenLane
) -> None:
    runtime = provider.load(load_options(tiny_model))
    try:
        memory[0] = 300_000_000
        with pytest.raises(UsageError, match=r"lower --ctx") as caught:
            open_lane(runtime, context=1_000_000)
        [largest] = re.findall(r"fits has (\d+) cells", str(caught.value))
        open_lane(runtime, context=int(largest)).shut()
        with pytest.raises(UsageError):
            open_lane(runtime, context=int(largest) + 1)
        memory[0] = 0
        with pytest.raises(UsageError, match="not even the smallest lane"):
            open_lane(runtime, context=256)
    finally:
        runtime.close()


def test_what_one_lane_may_use_yet_is_not_given_to_another(
    tiny_model: Path, memory: list[int], open_lane: OpenLane
) -> None:
    runtime = provider.load(load_options(tiny_model))
    try:
        memory[0] = 150_000_000
        open_lane(runtime, sequences=4, context=4096)
        with pytest.raises(UsageError, match=r"\+ other lanes \d+ MB"):
            open_lane(runtime, sequences=4, context=500_000, name="second")
    finally:
        runtime.close()


def test_memory_for_one_lane_only_is_shared(tiny_model: Path, memory: list[int]) -> None:
    """Two lanes have buffers each; where only one fits, both classes go into it and that is said."""
    runtime = provider.load(load_options(tiny_model))
    try:
        need = MemoryNeed(read_model_files(tiny_model).header, NORMAL)
        one = need.lane(16384, 28, flash_attention=True).total
        memory[0] = need.loaded + one
        said: list[str] = []
        lanes = open_lanes(runtime, Settings(), said.append)
        assert lanes.placement is Placement.SHARED
        assert "does not fit the memory" in said[0]
        lanes.foreground.lane.shut()
    finally:
        runtime.close()


def test_nobody_knows_the_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in (LinuxDevice, GenericDevice):
        monkeypatch.setattr(device, "memory", lambda _self: Memory(None, None))
    provider.load(load_options(tiny_model)).close()


@trials(max_examples=60, deadline=None)
@given(
    available=st.integers(0, 1 << 36),
    sequences=st.integers(1, 64),
    flash=st.booleans(),
    exact=st.booleans(),
    reserved=st.integers(0, 1 << 30),
)
def test_the_largest_lane_fits_and_no_larger_one(
    tiny_model: Path, available: int, sequences: int, flash: bool, exact: bool, reserved: int
) -> None:
    need = MemoryNeed(read_model_files(tiny_model).header, ContextSettings(exact, "f32" if exact else "q4_0", None))
    budget = Budget(need, lambda: available)
    most = budget.most_cells(sequences, flash_attention=flash, reserved=reserved)
    left = available - need.weights + need.copies - reserved
    if most:
        assert need.lane(most, sequences, flash_attention=flash).total <= left
        spec = LaneSpec("lane", Priority.NORMAL, sequences, most)
        assert budget.check_lane(spec, flash_attention=flash, reserved=reserved).total <= left
    if most < MOST_CELLS:
        assert need.lane(most + 256, sequences, flash_attention=flash).total > left


@pytest.mark.parametrize("kv_type", sorted(KV_TYPES))
def test_every_kv_type_takes_what_is_said_and_decodes(
    tiny_model: Path, open_lane: OpenLane, kv_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "KEPT_LOG_LINES", 10_000)
    runtime = provider.load(load_options(tiny_model, kv_type=kv_type))
    try:
        for priority in Priority:
            lane = open_lane(runtime, context=512, priority=priority)
            lane.open(0, Sampling())
            assert len(generate(runtime, lane, range(40), 3)) == 3
            lane.shut()
        need = MemoryNeed(read_model_files(tiny_model).header, ContextSettings(False, kv_type, None))
        with library.collected_log() as log:
            open_lane(runtime, context=512)
        [size] = re.findall(r"llama_kv_cache: size = +([\d.]+) MiB", "\n".join(log))
        assert need.lane(512, 1, flash_attention=True).kv / MIB == pytest.approx(float(size), abs=0.01)
    finally:
        runtime.close()


def test_a_quantised_cache_and_flash_attention_off(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="needs flash attention"):
        provider.load(load_options(tiny_model, kv_type="q4_0", flash_attention="off"))


def test_a_quantised_cache_wants_heads_of_whole_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = synth.Shape(layers=1, embedding=256, feed_forward=256, heads=2, kv_heads=1, head=80, vocabulary=512)
    monkeypatch.setitem(synth.SHAPES, "odd", shape)
    path = synth.synthesize("odd", "Q8_0", tmp_path / "odd.gguf")
    with pytest.raises(UsageError, match=r"multiple of 32 numbers, odd\.gguf has 80"):
        provider.load(load_options(path, kv_type="q8_0"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpu_layers": "all"}, "built with a GPU"),
        ({"gpu_layers": "3"}, "built with a GPU"),
        ({"gpu_layers": "-1"}, "gpu_layers=-1 is not possible"),
        ({"gpu_layers": "many"}, "a number of layers, or all"),
        ({"gpu_layers": "9" * 30}, "is not possible"),
        ({"gpu_layer": "1"}, "'gpu_layers'"),
    ],
)
def test_layers_for_a_gpu(tiny_model: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        provider.load(load_options(tiny_model, **options))


def test_exact_output_is_for_cpus(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        provider.load(LoadOptions(tiny_model, (0,), 1, exact=True, options={"gpu_layers": "1"}))


def test_no_layers_for_a_gpu_is_the_default(tiny_model: Path) -> None:
    runtime = provider.load(load_options(tiny_model, gpu_layers="0"))
    assert runtime.capabilities.lanes == 2
    runtime.close()
