"""What is kept of a trial, and what makes it void."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlfp_edge.experiment.record import fault, requests_of
from dlfp_edge.experiment.remote import RemoteRecord
from dlfp_edge.experiment.trial import Measured
from dlfp_edge.experiment.trial_load import Asked, Loaded
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.task import Class, Finish, TaskRecord

CHAT = {"name": "chat", "class": "foreground", "clients": 1, "prompt_tokens": 5, "max_tokens": 4}
INGEST = {"name": "ingest", "class": "background", "clients": 1, "prompt_tokens": 9, "max_tokens": 2}


def workload(*streams: dict[str, Any]) -> Workload:
    return Workload.model_validate({"name": "w", "description": "-", "duration_s": 9.0, "stream": list(streams)})


def remote(label: str = "chat/0/0", **fields: Any) -> RemoteRecord:
    usual: dict[str, Any] = {
        "request_id": label,
        "task_class": Class.FOREGROUND,
        "label": label,
        "prompt_tokens": 5,
        "arrived": 0.0,
        "output_token_ids": [1, 2, 3, 4],
        "token_times": [1.0, 1.1, 1.2, 1.3],
        "shown_times": [1.0, 1.1, 1.2, 1.3],
        "contended": [False, True, False, True],
        "finished": 1.3,
        "finish": Finish.LENGTH,
        "usage_prompt_tokens": 5,
    }
    return RemoteRecord(**{**usual, **fields})


def measured(*records: TaskRecord, end: float = 10.0, exact: bool = True) -> Measured:
    asked = {record.label: Asked(7, record.prompt_tokens, 4) for record in records}
    load = Loaded(0.0, end, "cap", records, asked, True)
    return Measured(load, 0.0, (), None, None, (), (), exact)


def reason(
    *records: TaskRecord, streams: tuple[dict[str, Any], ...] = (CHAT, INGEST), exact: bool = True
) -> str | None:
    asked, seen = workload(*streams), measured(*records, exact=exact)
    return fault(requests_of(seen.load, asked), seen, asked)


def test_gaps_say_whether_background_work_existed() -> None:
    (request,) = requests_of(measured(remote()).load, workload(CHAT, INGEST))
    assert request.gaps_s == pytest.approx([0.1] * 3)
    assert request.contended == [True, False, True]


def test_without_background_every_gap_is_what_the_trial_is_about() -> None:
    (request,) = requests_of(measured(remote()).load, workload(CHAT))
    assert request.contended == [True] * 3


def test_tokens_after_the_end_do_not_count() -> None:
    (request,) = requests_of(measured(remote(), end=1.15).load, workload(CHAT))
    assert (len(request.gaps_s), request.complete, request.cut) == (1, False, True)
    assert request.e2el_s is None


def test_a_failure_after_the_end_is_none() -> None:
    late = remote(finish=Finish.ERROR, finished=12.0, error="gone", failure="http")
    (request,) = requests_of(measured(late).load, workload(CHAT))
    assert (request.failed, request.cut, request.failure) == (False, True, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish": Finish.ERROR, "failure": "http"}, "http"),
        ({"finish": Finish.ERROR, "failure": "engine"}, "engine"),
        ({"finish": Finish.DEADLINE}, "deadline"),
    ],
)
def test_whose_failure_it_was(fields: dict[str, Any], expected: str) -> None:
    (request,) = requests_of(measured(remote(**fields)).load, workload(CHAT))
    assert (request.failed, request.failure) == (True, expected)


@pytest.mark.parametrize("name", ["my chat", "chat/a", "chat / b 1", "1"])
def test_names_of_streams_may_hold_anything(name: str) -> None:
    streams = workload({**CHAT, "name": name, "turns": 2}, {**CHAT, "name": "chat"})
    own, later = requests_of(measured(remote(f"{name}/3/2"), remote(f"{name}/3/3")).load, streams)
    assert own.stream == later.stream == name
    assert (own.prompt, later.prompt) == (7, None)


def test_an_answer_of_other_length_than_asked_is_void() -> None:
    short = remote(token_times=[1.0, 1.1, 1.2], contended=[True] * 3)
    assert "has 3 tokens of 4" in (reason(short) or "")
    assert reason(remote()) is None
    assert reason(short, streams=({**CHAT, "ignore_eos": False}, INGEST)) is None


def test_a_prompt_the_server_counted_otherwise_is_void_where_ids_were_sent() -> None:
    other = remote(usage_prompt_tokens=6)
    assert "the server counted 6" in (reason(other) or "")
    assert reason(other, exact=False) is None


def test_a_prompt_from_the_servers_cache_is_void_unless_prompts_share_a_beginning() -> None:
    cached = remote(cached_prompt_tokens=4)
    assert "prefix cache" in (reason(cached) or "")
    assert reason(cached, streams=({**CHAT, "shared_prefix_tokens": 3}, INGEST)) is None


def test_merged_tokens_cost_their_answers_gaps_alone() -> None:
    merged = [remote("chat/0/0", merged_events=1, usage_output_tokens=4)]
    sound = [remote("chat/0/1"), remote("chat/0/2")]
    requests = requests_of(measured(*merged, *sound).load, workload(CHAT))
    assert [len(request.gaps_s) for request in requests] == [0, 3, 3]
    assert requests[0].tpot_s == pytest.approx(0.1)
    assert reason(*merged, *sound) is None
    assert "merged tokens of 1 of 1" in (reason(*merged) or "")


def test_a_client_that_was_late_is_void() -> None:
    late = remote(token_times=[1.0, 1.11, 1.22, 1.3], engine_token_s=[0.0, 0.1, 0.2, 0.29])
    assert "later than the server" in (reason(late) or "")
    prompt = remote(engine_token_s=[0.0, 0.1, 0.2, 0.3])
    assert reason(prompt) is None


def test_a_target_that_failed_everything_is_told_with_its_last_words() -> None:
    gone = remote(finish=Finish.ERROR, failure="http", error="nobody answers", token_times=[], contended=[])
    seen = measured(gone)
    seen = replace(seen, load=replace(seen.load, ended_by="failures"))
    told = fault(requests_of(seen.load, workload(CHAT)), seen, workload(CHAT))
    assert told is not None
    assert "nobody answers" in told
