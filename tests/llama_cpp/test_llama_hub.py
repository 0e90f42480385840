"""Models from a hub: fetched once, gone on with after a cut, found without a network; each failure is one line."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_in_hub import COMMIT, TOKEN, Repository, StandInHub, serving

from dlfp_edge.errors import DlfpError, FetchError, MissingExtra, UsageError
from dlfp_edge.model_reference import HubModel, parse_model
from dlfp_edge.runtimes.llama_cpp import hub as adapter
from dlfp_edge.runtimes.llama_cpp import provider

package = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.file_download")  # and what it imports are attributes of the package from then on

CONTENT = random.Random(0).randbytes(300_000)
MODEL = HubModel("maker/tiny-GGUF")
FILE = "tiny-Q4_K_M.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nobody logged in."""
    monkeypatch.setattr(package.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(package.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    monkeypatch.setattr(package.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "localhost,127.0.0.1")
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    """A hub with a model in one quantisation."""
    with serving(StandInHub({MODEL.repo: Repository({FILE: CONTENT, "README.md": b"A model."})})) as stand_in:
        point_at(stand_in.address, monkeypatch)
        yield stand_in


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does, which the package reads when it is imported."""
    monkeypatch.setattr(package.constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(package.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def refusal(kind: type[DlfpError], ask: Callable[[], object] = lambda: provider.fetch(MODEL)) -> str:
    with pytest.raises(kind) as caught:
        ask()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_is_fetched_once(hub: StandInHub, cache: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = provider.fetch(MODEL, lambda *what: told.append(what))
    assert path.read_bytes() == CONTENT
    assert path.name == FILE
    assert cache in path.parents
    assert told[0] == (FILE, 0, len(CONTENT))
    assert told[-1] == (FILE, len(CONTENT), len(CONTENT))
    assert provider.fetch(MODEL) == path
    assert hub.storage_ranges() == [None]
    assert package.hf_hub_download(MODEL.repo, FILE, local_files_only=True) == str(path), "others find it too"


def test_a_connection_that_is_cut_is_taken_up_again(hub: StandInHub) -> None:
    hub.cut_after = [100_000, 50_000]
    assert provider.fetch(MODEL).read_bytes() == CONTENT
    assert hub.storage_ranges() == [None, "bytes=100000-", "bytes=150000-"]


def test_another_run_goes_on_where_one_was_stopped(hub: StandInHub, cache: Path) -> None:
    def stop(_name: str, here: int, _total: int) -> None:
        if here > 120_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provider.fetch(MODEL, stop)
    [partial] = cache.rglob("*.incomplete")
    kept = partial.stat().st_size
    assert kept > 100_000
    told: list[int] = []
    assert provider.fetch(MODEL, lambda _name, here, _total: told.append(here)).read_bytes() == CONTENT
    assert hub.storage_ranges() == [None, f"bytes={kept}-"]
    assert told[0] == kept
    assert not list(cache.rglob("*.incomplete"))


@pytest.mark.parametrize("misfortune", ["offline", "dead", "failing", "refusing"])
def test_a_copy_in_the_cache_needs_no_hub(
    hub: StandInHub, misfortune: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = provider.fetch(MODEL)
    if misfortune == "offline":
        monkeypatch.setattr(package.constants, "HF_HUB_OFFLINE", True)
    elif misfortune == "dead":
        point_at(f"http://127.0.0.1:{unused_port()}", monkeypatch)
    else:
        hub.status = 503 if misfortune == "failing" else 403
    hub.asked.clear()
    for model in (
        MODEL,
        HubModel(MODEL.repo, None, "q4_k"),
        HubModel(MODEL.repo, COMMIT),
        HubModel(MODEL.repo, "main"),
    ):
        assert provider.fetch(model) == path
    assert adapter.find_cached(MODEL) == path
    assert not hub.storage_ranges()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("using the copy in the cache") == (0 if misfortune == "offline" else 4)


def test_nothing_in_the_cache_and_no_network(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status = 503
    assert "status 503" in refusal(FetchError)
    point_at(f"http://127.0.0.1:{unused_port()}", monkeypatch)
    assert "cannot be reached" in refusal(FetchError)
    monkeypatch.setattr(package.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it" in refusal(FetchError)


def test_a_hub_that_never_answers(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_LIST_TIMEOUT_S", 0.2)
    hub.silent = threading.Event()
    assert "cannot be reached" in refusal(FetchError)


def test_a_gated_model_wants_a_token(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[MODEL.repo].gated = True
    message = refusal(UsageError)
    assert f"accept its terms at {hub.address}/{MODEL.repo}" in message
    assert "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert provider.fetch(MODEL).read_bytes() == CONTENT


def test_what_is_not_there(hub: StandInHub) -> None:
    assert "check the name" in refusal(UsageError, lambda: provider.fetch(HubModel("maker/none")))
    assert "no revision 'old'" in refusal(UsageError, lambda: provider.fetch(HubModel(MODEL.repo, "old")))
    message = refusal(UsageError, lambda: provider.fetch(HubModel(MODEL.repo, None, "Q8_0")))
    assert "no model 'Q8_0'" in message
    assert FILE in message


def test_a_branch(hub: StandInHub) -> None:
    hub.repositories[MODEL.repo].branches = ("main", "v1.0")
    path = provider.fetch(HubModel(MODEL.repo, "v1.0"))
    assert adapter.find_cached(HubModel(MODEL.repo, "v1.0")) == path
    assert "not in the cache" in refusal(UsageError, lambda: adapter.find_cached(MODEL))


def test_damaged_content_gets_no_place_in_the_cache(hub: StandInHub, cache: Path) -> None:
    hub.damaged = True
    assert "SHA-256" in refusal(FetchError)
    assert not list(cache.rglob("*.gguf"))
    assert not list(cache.rglob("*.incomplete"))
    hub.damaged = False
    assert provider.fetch(MODEL).read_bytes() == CONTENT


def test_content_of_another_size(hub: StandInHub) -> None:
    hub.short = True
    assert "size" in refusal(FetchError)
    hub.short = False
    assert provider.fetch(MODEL).read_bytes() == CONTENT


def test_a_disk_without_room(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(adapter.shutil, "disk_usage", lambda _path: Usage)
    message = refusal(FetchError)
    assert "HF_HOME" in message
    assert not hub.storage_ranges()


def test_a_disk_that_fills_up(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package.file_download, "http_get", full)
    assert "is full" in refusal(FetchError)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_not_be_written(hub: StandInHub, cache: Path) -> None:
    cache.mkdir(mode=0o500)
    assert "HF_HOME" in refusal(FetchError)


def test_a_cache_whose_place_is_taken(hub: StandInHub, cache: Path) -> None:
    cache.write_text("in the way")
    assert "HF_HOME" in refusal(FetchError)


def test_all_parts_are_fetched(hub: StandInHub) -> None:
    parts = {f"Q4_K_M/tiny-Q4_K_M-0000{n}-of-00003.gguf": CONTENT[n:] for n in (1, 2, 3)}
    hub.repositories[MODEL.repo].files = dict(parts)
    path = provider.fetch(HubModel(MODEL.repo, None, "00002-of-00003"))
    assert path.name == "tiny-Q4_K_M-00001-of-00003.gguf"
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == list(parts.values())
    assert [file.reference for file in adapter.cached_files()] == [f"hf:{MODEL.repo}:{name}" for name in parts]


def test_two_at_once_fetch_one_copy(hub: StandInHub) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(provider.fetch(MODEL))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert hub.storage_ranges() == [None]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(adapter.importlib, "import_module", refuse)
    assert "pip install 'dlfp-edge[hub]'" in refusal(MissingExtra)


@pytest.mark.parametrize("text", ["hf:", "hf:gemma", "hf:a/b/c", "hf:a/b@", "hf:a/b:", "hf:/b", "hf:../b", "hf:a/b c"])
def test_references_that_cannot_be_read(text: str) -> None:
    assert text in refusal(UsageError, lambda: parse_model(text))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("hf:a/b", HubModel("a/b")),
        ("hf:a/b:Q4_K_M", HubModel("a/b", None, "Q4_K_M")),
        ("hf:a-1/b.2@refs/pr/3:x/y.gguf", HubModel("a-1/b.2", "refs/pr/3", "x/y.gguf")),
        ("./hf:a/b", Path("hf:a/b")),
        ("a/b.gguf", Path("a/b.gguf")),
    ],
)
def test_references(text: str, model: HubModel | Path) -> None:
    assert parse_model(text) == model
    assert isinstance(model, Path) or str(model) == text


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlfp_edge.cli.main", *arguments],
        env={**os.environ, "NO_PROXY": "localhost,127.0.0.1", "no_proxy": "localhost,127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_with_the_hub_s_own_environment(hub: StandInHub, tiny_model: Path, tmp_path: Path) -> None:
    hub.repositories[MODEL.repo].files = {FILE: tiny_model.read_bytes()}
    home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.address}
    fetched = command("models", "fetch", str(MODEL), "--json", **home)
    assert fetched.returncode == 0, fetched.stderr
    path = Path(json.loads(fetched.stdout)["path"])
    assert path.read_bytes() == tiny_model.read_bytes()
    assert path.is_relative_to(tmp_path / "home")
    assert fetched.stderr.splitlines() == [f"fetching {FILE}: {len(tiny_model.read_bytes()) / 1e6:,.0f} MB"]
    offline = command("models", "info", str(MODEL), "--json", **home, HF_HUB_OFFLINE="1")
    assert json.loads(offline.stdout)["path"] == str(path)
    assert [entry["model"] for entry in json.loads(command("models", "list", "--json", **home).stdout)["fetched"]] == [
        f"{MODEL}:{FILE}"
    ]
    run = command(
        "run", "single-session", "--model", str(MODEL), "--duration", "1", "--scale", "0.05", "--runtime-option",
        "probe=off", "--out", str(tmp_path / "out"), "--json", **home, HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["stopped"] is False


@pytest.mark.parametrize(
    "arguments", [("run",), ("compare",), ("bench", "words"), ("bench", "memory"), ("models", "fetch")]
)
def test_every_command_fails_in_one_line(hub: StandInHub, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    hub.status = 500
    named = [str(MODEL)] if arguments[0] == "models" else ["--model", str(MODEL), "--out", str(tmp_path / "out")]
    said = command(*arguments, *named, "--json", HF_HOME=str(tmp_path), HF_ENDPOINT=hub.address)
    assert said.returncode == 1
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert "status 500" in line
    assert not (tmp_path / "out").exists()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
