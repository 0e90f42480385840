"""A model in several files: loaded by any of its parts, refused where a part is not what it should be."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from llama_harness import OpenLane, generate, load_options
from split_model import split_model

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.runtimes.llama_cpp import provider, synth
from dlfp_edge.runtimes.llama_cpp.model_files import read_model_files
from dlfp_edge.runtimes.llama_cpp.split_name import split_name


@pytest.fixture
def parts(tiny_model: Path, tmp_path: Path) -> list[Path]:
    return split_model(tiny_model, tmp_path, 3)


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        provider.load(load_options(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_part_loads_all(
    parts: list[Path], tiny_model: Path, tiny_runtime: Runtime, open_lane: OpenLane, named: int
) -> None:
    lane = open_lane(tiny_runtime, context=256)
    lane.open(0, Sampling())
    expected = generate(tiny_runtime, lane, range(20), 5)
    runtime = provider.load(load_options(parts[named]))
    try:
        lane = runtime.open_lane(lane.spec)
        lane.open(0, Sampling())
        assert generate(runtime, lane, range(20), 5) == expected
        described = runtime.describe()
        assert described["model"]["files"] == 3
        assert described["model"]["bytes"] == sum(part.stat().st_size for part in parts)
        assert len(set(described["sha256"])) == 3
    finally:
        runtime.close()


def test_parts_hold_what_the_whole_does(parts: list[Path], tiny_model: Path) -> None:
    whole, split = read_model_files(tiny_model), read_model_files(parts[1])
    assert split.paths == tuple(parts)
    assert sorted(split.header.tensors, key=str) == sorted(whole.header.tensors, key=str)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[2].unlink()
    assert f"{parts[2]}: is missing, one of the 3 parts" in refusal(parts[0])
    assert f"{parts[2]}: no such file" in refusal(parts[2])


def test_a_part_cut_short_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-100_000])
    assert f"{parts[1]}: has" in refusal(parts[0])


def test_a_part_of_another_model(parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = synth.Shape(layers=3, embedding=256, feed_forward=512, heads=2, kv_heads=1, vocabulary=4096)
    monkeypatch.setitem(synth.SHAPES, "other", shape)
    (tmp_path / "other").mkdir()
    other = split_model(synth.synthesize("other", "Q4_K_M", tmp_path / "other.gguf"), tmp_path / "other", 3)
    parts[2].write_bytes(other[2].read_bytes())
    assert f"{parts[2]}: is not part 3" in refusal(parts[0])


def test_a_part_twice(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[1].read_bytes())
    assert f"{parts[2]}: is not part 3" in refusal(parts[0])


def test_another_count_in_the_name(parts: list[Path], tmp_path: Path) -> None:
    for number, part in enumerate(parts, start=1):
        part.rename(tmp_path / f"split-{number:05d}-of-00004.gguf")
    assert "its name says 4 parts, its header 3" in refusal(tmp_path / "split-00001-of-00004.gguf")


def test_a_part_under_another_name(parts: list[Path], tmp_path: Path) -> None:
    assert "is part 2 of 3" in refusal(parts[1].rename(tmp_path / "model.gguf"))


def test_a_whole_model_whose_name_looks_like_a_part(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny-00001-of-00001.gguf"
    path.write_bytes(tiny_model.read_bytes())
    assert read_model_files(path).paths == (path,)


@pytest.mark.parametrize("value", [b"\0\0", b"\xff\xff"])
def test_a_damaged_part_number(parts: list[Path], value: bytes) -> None:
    data = bytearray(parts[1].read_bytes())
    at = data.index(b"split.no") + len(b"split.no") + 4
    assert struct.unpack_from("<H", data, at) == (1,)
    data[at : at + 2] = value
    parts[1].write_bytes(data)
    assert f"{parts[1]}: is not part 2" in refusal(parts[0])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a-00002-of-00003.gguf", ("a", 2, 3)),
        ("Q8_0/a.b-00001-of-00001.GGUF", ("Q8_0/a.b", 1, 1)),
        ("a-00000-of-00003.gguf", None),
        ("a-00004-of-00003.gguf", None),
        ("a-1-of-3.gguf", None),
        ("a-00001-of-00003.gguf.part", None),
    ],
)
def test_names(name: str, told: tuple[str, int, int] | None) -> None:
    found = split_name(name)
    assert (None if found is None else (found.name, found.number, found.count)) == told
