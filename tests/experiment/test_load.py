"""The load generator against a stand-in server: every request has a record, whatever becomes of it."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.detect import detect
from dlfp_edge.experiment.dialect import DIALECTS
from dlfp_edge.experiment.endpoint import Endpoint
from dlfp_edge.experiment.load import Generator, Load
from dlfp_edge.experiment.load_summary import ClassLoad, summarize
from dlfp_edge.experiment.remote import clock_differences_s
from dlfp_edge.experiment.words import IdsOnly, Words
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.task import Finish

from .stand_in_server import (
    STALL,
    Asked,
    Part,
    StandIn,
    head,
    llama_answer,
    llama_end,
    llama_token,
    openai_answer,
    openai_token,
    refusal,
    server_answer,
)


def workload(*streams: dict[str, Any], **own: Any) -> Workload:
    chat = {"name": "chat", "class": "foreground", "clients": 1, "prompt_tokens": 5, "max_tokens": 4, "requests": 3}
    given_streams = [{**chat, **stream} for stream in streams or ({},)]
    return Workload.model_validate({"name": "w", "description": "d", "stream": given_streams, **own})


def run(
    server: StandIn, asked: Workload, *, warmups: int = 0, dialect: str = "llama-server", stop_after: int | None = None
) -> Load:
    """Run the workload; with `stop_after`, stop once so many requests have ended."""
    with Endpoint(server.url, dialect=DIALECTS[dialect]) as endpoint:
        generator = Generator(endpoint, asked, IdsOnly(50), watch=lambda load: watch(load))

        def watch(load: Load) -> None:
            if stop_after is not None and len(load.records) >= stop_after:
                generator.stop()

        generator.warm_up(warmups)
        return generator.run()


def figures(load: Load, name: str = "foreground") -> ClassLoad:
    told = summarize(load, endpoint="e", dialect="d", model=None, seed=0, scale=1.0, warmups=0, notes=[])
    return told.classes[name]


def test_every_request_is_answered_and_counted() -> None:
    both = workload({}, {"name": "work", "class": "background", "clients": 2, "requests": 5, "prompt_tokens": 9})
    with StandIn(llama_answer) as server:
        load = run(server, both)
    chat, work = figures(load), figures(load, "background")
    assert (chat.requests, chat.complete, chat.output_tokens, chat.prompt_tokens) == (3, 3, 12, 15)
    assert (work.requests, work.complete, work.output_tokens, work.prompt_tokens) == (5, 5, 20, 45)
    assert (chat.itl_ms.count, chat.ttft_ms.count, chat.tpot_ms.count, chat.e2el_ms.count) == (9, 3, 3, 3)
    assert not load.stopped
    assert {len(asked.body["prompt"]) for asked in server.asked} == {5, 9}


def test_the_same_seed_asks_the_same() -> None:
    prompts = []
    for _ in range(2):
        with StandIn(llama_answer) as server:
            run(server, workload())
        prompts.append([asked.body["prompt"] for asked in server.asked])
    assert prompts[0] == prompts[1]


def test_warm_ups_come_first_and_count_nowhere() -> None:
    with StandIn(llama_answer) as server:
        load = run(server, workload({"max_tokens": 40}), warmups=3)
    assert len(load.records) == 3
    assert [asked.body["n_predict"] for asked in server.asked] == [16, 16, 16, 40, 40, 40]
    prompts = [tuple(asked.body["prompt"]) for asked in server.asked]
    assert len(set(prompts)) == 6


def test_a_warm_up_that_fails_ends_it() -> None:
    with StandIn(lambda _: refusal(401, "no key")) as server, pytest.raises(RuntimeFailure, match="HTTP 401: no key"):
        run(server, workload(), warmups=1)


def test_an_open_loop_loses_no_request_whatever_the_server_does() -> None:
    numbers = itertools.count()
    token = llama_token("a", 1, 1)
    faults: list[list[Part]] = [
        refusal(429, "slow down"),
        refusal(500, "oh"),
        [head(), token],
        [head(), token, b"data: {\n\n"],
        [],
        [head(), token, llama_token("b", 2, 3), llama_end(5, 4)],
    ]

    def answer(asked: Asked) -> list[Part]:
        number = next(numbers)
        return llama_answer(asked) if number % 2 else faults[number // 2 % len(faults)]

    poisson = workload({"clients": None, "rate": 200.0, "requests": 60})
    with StandIn(answer) as server:
        load = run(server, poisson)
    chat = figures(load)
    assert chat.requests == len(load.records) == 60
    assert (chat.complete, chat.http_failures, chat.engine_failures) == (35, 25, 0)
    assert (chat.merged_events, chat.itl_void) == (5, 5)
    assert len({record.label for record in load.records}) == 60


def test_gaps_of_merged_events_are_void() -> None:
    with StandIn(lambda _: [head(), llama_token("a", 1, 1), llama_token("b", 2, 4), llama_end(5, 4)]) as server:
        chat = figures(run(server, workload()))
    assert (chat.merged_events, chat.itl_void, chat.itl_ms.count) == (3, 3, 0)
    assert (chat.ttft_ms.count, chat.tpot_ms.count, chat.e2el_ms.count, chat.output_tokens) == (3, 3, 3, 12)


def test_client_and_engine_times_are_compared() -> None:
    with StandIn(llama_answer) as server:
        load = run(server, workload())
    told = summarize(load, endpoint="e", dialect="d", model=None, seed=0, scale=1.0, warmups=0, notes=[])
    assert told.clock_difference_ms.count == 12
    for record in load.records:
        late_s = clock_differences_s(record)
        apart = [late + said for late, said in zip(late_s, record.engine_token_s, strict=True)]  # type: ignore[attr-defined]
        assert min(late_s) == 0
        assert [each - apart[0] for each in apart] == pytest.approx(
            [seen - record.token_times[0] for seen in record.token_times], abs=1e-9
        )


def test_the_end_of_the_time_cancels_the_background() -> None:
    def answer(asked: Asked) -> list[Part]:
        return [head(), STALL] if len(asked.body["prompt"]) == 9 else llama_answer(asked)

    stuck = {"name": "work", "class": "background", "clients": 2, "requests": None, "prompt_tokens": 9}
    with StandIn(answer) as server:
        load = run(server, workload({"requests": None}, stuck, duration_s=0.3))
    work = figures(load, "background")
    assert (work.requests, work.cancelled, work.http_failures) == (2, 2, 0)
    assert figures(load).complete >= 1
    assert not load.stopped


def test_stopping_keeps_what_was_measured() -> None:
    with StandIn(llama_answer) as server:
        load = run(server, workload({"requests": None}, duration_s=600.0), stop_after=2)
    assert load.stopped
    assert figures(load).complete >= 2
    assert load.end is not None


def test_stopping_during_warm_ups_sends_nothing_more() -> None:
    with StandIn(lambda _: [head(), STALL]) as server, Endpoint(server.url, dialect=DIALECTS["openai"]) as endpoint:
        generator = Generator(endpoint, workload(), IdsOnly(50), watch=lambda _: generator.stop())
        generator.warm_up(3)
        load = generator.run()
    assert (load.records, load.stopped) == ([], True)
    assert len(server.asked) == 1


def test_a_conversation_needs_ids() -> None:
    turns = workload({"turns": 2})
    with StandIn(llama_answer) as server:
        load = run(server, turns, warmups=1)
    assert [record.finish for record in load.records] == [Finish.LENGTH] * 3
    second = server.asked[2].body["prompt"]
    assert second[:9] == server.asked[1].body["prompt"] + [0, 1, 2, 3]

    def nameless(asked: Asked) -> list[Part]:
        return openai_answer(asked, ids=False)

    with StandIn(nameless) as server, pytest.raises(UsageError, match="take a workload without 'turns'"):
        run(server, turns, warmups=1, dialect="openai")


def test_what_a_dialect_cannot_carry_ends_it_before_anything_is_sent() -> None:
    with StandIn(openai_answer) as server:
        with pytest.raises(UsageError, match="stream 'chat': the openai dialect carries no grammar"):
            run(server, workload({"grammar": 'root ::= "a"'}), dialect="openai")
        assert server.asked == []


def test_an_endpoint_that_breaks_ends_the_run() -> None:
    with StandIn(lambda _: [head(), STALL]) as server, Endpoint(server.url, dialect=DIALECTS["openai"]) as endpoint:
        generator = Generator(endpoint, workload(), IdsOnly(50))
        endpoint.call_at(0.0, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        with pytest.raises(RuntimeFailure, match="sending load failed: division by zero"):
            generator.run()


def test_a_texts_workload_needs_a_tokenizer() -> None:
    with pytest.raises(UsageError, match="--model"):
        IdsOnly(5).encode("text")


@given(st.text(st.characters(codec="utf-8")))
def test_words_give_back_their_text(text: str) -> None:
    words = Words()
    assert words.text_of(words.encode(text)) == text


def test_words_are_sent_as_text() -> None:
    words = Words()
    with (
        StandIn(lambda asked: [head(), openai_token("a", None, "length")]) as server,
        Endpoint(server.url, dialect=DIALECTS["openai"], text_of=words.text_of) as endpoint,
    ):
        Generator(endpoint, workload({"max_tokens": 1}), words).run()
    texts = [asked.body["prompt"] for asked in server.asked]
    assert [len(text.split()) for text in texts] == [5, 5, 5]


def test_a_server_is_known_by_what_it_says() -> None:
    with StandIn(server_answer) as server:
        found = detect(f"{server.url}/v1")
    assert (found.dialect.name, found.model, found.n_vocab) == ("llama-server", "stand-in", 1000)
    with StandIn(lambda asked: server_answer(asked, n_vocab=None, native=False)) as server:
        found = detect(server.url, api_key="sesame")
    assert (found.dialect.name, found.model, found.n_vocab) == ("openai", "stand-in", None)
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sesame"}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (refusal(401, "no key"), "HTTP 401: no key"),
        ([head(200, "text/html"), b"<html>"], "no JSON"),
        ([head(200, "application/json"), b'{"models": []}'], "no list of models"),
        ([head(200, "application/json"), b"[1]"], "no list of models"),
        ([], "no server answers at"),
    ],
)
def test_what_is_no_such_server_is_told(parts: list[Part], words: str) -> None:
    with StandIn(lambda _: parts) as server, pytest.raises(RuntimeFailure, match=words):
        detect(server.url)


def test_a_server_that_never_answers_is_told() -> None:
    with StandIn(lambda _: [STALL]) as server, pytest.raises(RuntimeFailure, match="no server answers at"):
        detect(server.url, timeout_s=0.2)


def test_the_generator_is_one_of_no_threads_of_its_own() -> None:
    before = threading.active_count()
    with StandIn(llama_answer) as server:
        run(server, workload())
    assert threading.active_count() == before
