"""Arms that answer over HTTP, in a comparison: a stand-in server that answers, half answers, or dies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.arms import with_solo
from dlfp_edge.experiment.compare import Comparer
from dlfp_edge.experiment.plan import Plan
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.remote_arms import EndpointOpener, endpoint_at, llama_servers
from dlfp_edge.experiment.trial_files import TrialFiles
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.task import Class

from .simulated import simulated
from .stand_in_server import (
    Asked,
    Part,
    StandIn,
    head,
    llama_end,
    llama_progress,
    llama_token,
    openai_answer,
    refusal,
    server_answer,
)

RUNTIME = simulated()
WORKLOAD = Workload.model_validate(
    {
        "name": "w",
        "description": "-",
        "duration_s": 9.0,
        "stream": [
            {"name": "chat", "class": "foreground", "clients": 1, "prompt_tokens": 5, "max_tokens": 4},
            {"name": "work", "class": "background", "clients": 2, "prompt_tokens": 9, "max_tokens": 2},
        ],
    }
)


def compared(server: StandIn, folder: Path) -> dict[str, TrialRecord]:
    """The trials of the server and of its solo."""
    arms = with_solo([(server.url, EndpointOpener(server.url, RUNTIME.tokenizer), None)], WORKLOAD)
    comparer = Comparer(Plan(arms, (1,), None), Limits(gaps=20, cap_s=3.0), TrialFiles(folder), candidate=server.url)
    return {"solo" if record.arm.endswith("/solo") else "both": record for record in comparer.run()}


def native(asked: Asked) -> list[Part]:
    """A server whose tokens are all there at once, by its own clock too."""
    if asked.path != "/completion":
        return server_answer(asked)
    count, prompt = asked.body["n_predict"], len(asked.body["prompt"])
    tokens = [llama_token(f" t{n}", n, n + 1) for n in range(count)]
    return [head(), llama_progress(0, prompt), llama_progress(prompt, prompt), *tokens, llama_end(prompt, count)]


def test_a_server_is_a_trial_like_any_other(tmp_path: Path) -> None:
    with StandIn(native) as server:
        trials = compared(server, tmp_path)
    for trial in trials.values():
        assert trial.status == "complete", trial.reason
        assert trial.target["prompts"] == "token ids"
    both = trials["both"]
    chat = [request for request in both.requests if request.stream == "chat" and request.complete]
    assert sum(len(request.gaps_s) for request in chat) == 3 * len(chat)
    assert sum(sum(request.contended) for request in both.requests if request.stream == "chat") >= 20
    assert both.background_tokens is not None
    assert trials["solo"].isolated_tokens_per_s is not None


def test_a_server_that_takes_no_ids_gets_their_text(tmp_path: Path) -> None:
    def text_only(asked: Asked) -> list[Part]:
        if asked.path != "/v1/completions":
            return server_answer(asked, n_vocab=None, native=False)
        if not isinstance(asked.body["prompt"], str):
            return refusal(400, "a prompt is a string")
        told = Asked(asked.path, asked.headers, {**asked.body, "prompt": [1] * 99})
        return openai_answer(told, ids=False)

    with StandIn(text_only) as server:
        trials = compared(server, tmp_path)
    for trial in trials.values():
        assert trial.status == "complete", trial.reason  # though the server counts other prompt tokens than we do
        assert trial.target["prompts"] == "text"
        assert all(request.ids is None for request in trial.requests)


def test_a_dead_endpoint_is_a_failed_trial_with_the_reason(tmp_path: Path) -> None:
    with StandIn(native) as server:
        url = server.url
    gone = StandIn(native)
    gone.url = url
    for trial in compared(gone, tmp_path).values():
        assert trial.status == "failed"
        assert "no server answers at" in (trial.reason or "")


def test_a_server_that_dies_half_way_is_a_failed_trial_and_keeps_what_was_answered(tmp_path: Path) -> None:
    answered = itertools.count()

    def dies(asked: Asked) -> list[Part]:
        if asked.path == "/completion" and next(answered) > 30:
            return []
        return native(asked)

    with StandIn(dies) as server:
        trials = compared(server, tmp_path)
    failed = [trial for trial in trials.values() if trial.status == "failed"]
    assert failed
    assert "one request after another" in (failed[0].reason or "")


def test_a_stream_dropped_half_way_is_a_failed_request_of_its_trial(tmp_path: Path) -> None:
    numbers = itertools.count()

    def drops(asked: Asked) -> list[Part]:
        if asked.path == "/completion" and len(asked.body["prompt"]) == 5 and next(numbers) == 5:
            return [head(), llama_token("a", 1, 1)]
        return native(asked)

    with StandIn(drops) as server:
        trials = compared(server, tmp_path)
    lost = [request for trial in trials.values() for request in trial.requests if request.failed]
    assert [request.failure for request in lost] == ["http"]
    assert "ended after 1 tokens" in (lost[0].error or "")
    assert {trial.status for trial in trials.values()} == {"complete"}


def test_conversations_need_a_server_that_names_ids(tmp_path: Path) -> None:
    def nameless(asked: Asked) -> list[Part]:
        if asked.path != "/v1/completions":
            return server_answer(asked, n_vocab=None, native=False)
        return openai_answer(asked, ids=False)

    streams: list[Any] = [stream.model_copy(update={"turns": 2}) for stream in WORKLOAD.of_class(Class.FOREGROUND)]
    talks = WORKLOAD.with_streams(streams)
    with StandIn(nameless) as server:
        arms = with_solo([(server.url, EndpointOpener(server.url, RUNTIME.tokenizer), None)], talks)
        comparer = Comparer(
            Plan(arms, (1,), None), Limits(gaps=20, cap_s=3.0), TrialFiles(tmp_path), candidate=server.url
        )
        assert all("take a workload without 'turns'" in (record.reason or "") for record in comparer.run())


def test_what_is_no_url_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="'nonsense' is no endpoint"):
        endpoint_at("nonsense")


def test_llama_server_goes_beside_llama_cpp_only() -> None:
    with pytest.raises(UsageError, match="llama_cpp runtime only"):
        llama_servers((64,), None)(RUNTIME, load_workload("chat-ingest"), None)
