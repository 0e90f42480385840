"""Requests over HTTP: what each stream becomes, and that nothing a server does costs a record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.errors import EngineClosed, UsageError
from dlfp_edge.experiment.dialect import DIALECTS
from dlfp_edge.experiment.endpoint import Endpoint, server_url
from dlfp_edge.experiment.remote import RemoteRecord
from dlfp_edge.experiment.sse import MOST_BYTES, EventReader
from dlfp_edge.measure.latency import gaps_s
from dlfp_edge.runtime import Sampling
from dlfp_edge.task import Class, Finish, TaskSpec

from .stand_in_server import (
    DONE,
    STALL,
    Asked,
    Part,
    StandIn,
    chunk,
    event,
    head,
    llama_answer,
    llama_end,
    llama_progress,
    llama_token,
    openai_answer,
    openai_token,
    openai_usage,
    refusal,
)

PATIENCE_S = 120.0
OPENAI, LLAMA = DIALECTS["openai"], DIALECTS["llama-server"]
STUCK: list[Part] = [head(), openai_token("a", [1]), STALL]
SPEC = TaskSpec(prompt=(5, 6, 7), max_tokens=4, sampling=Sampling(seed=3, ignore_eos=True))


def ask(
    endpoint: Endpoint, spec: TaskSpec = SPEC, on_token: Callable[[Any, int], None] | None = None, **given: Any
) -> RemoteRecord:
    """Send one request and wait for its end."""
    ended = threading.Event()
    request = endpoint.submit(spec, on_token=on_token, on_finish=lambda _: ended.set(), **given)
    assert ended.wait(PATIENCE_S)
    return request.record


def answered(parts: Sequence[Part], dialect: str = "openai", spec: TaskSpec = SPEC, **options: Any) -> RemoteRecord:
    """The record of one request that is answered so."""
    with StandIn(lambda _: parts) as server, Endpoint(server.url, dialect=DIALECTS[dialect], **options) as endpoint:
        return ask(endpoint, spec)


def consistent(record: RemoteRecord) -> None:
    """A record has one of everything for each token."""
    count = len(record.token_times)
    assert len(record.shown_times) == len(record.contended) == len(record.pieces) == count
    assert record.token_times == sorted(record.token_times)
    assert record.finish is not None
    assert record.finished is not None


def test_an_answer_with_ids() -> None:
    with StandIn(openai_answer) as server, Endpoint(f"{server.url}/v1/", dialect=OPENAI, model="m") as endpoint:
        record = ask(endpoint)
    consistent(record)
    assert (record.finish, record.error, record.failure, record.http_status) == (Finish.LENGTH, None, None, 200)
    assert record.output_token_ids == [0, 1, 2, 3]
    assert record.text == " t0 t1 t2 end"
    assert (record.usage_prompt_tokens, record.usage_output_tokens, record.merged_events) == (3, 4, 0)
    assert len(gaps_s(record)) == 3
    [asked] = server.asked
    assert asked.path == "/v1/completions"
    assert asked.body == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "temperature": 0.0,
        "seed": 3,
        "ignore_eos": True,
    }


def test_llama_server_tells_progress_ids_and_its_own_times() -> None:
    with StandIn(llama_answer) as server, Endpoint(server.url, dialect=LLAMA) as endpoint:
        record = ask(endpoint)
    consistent(record)
    assert record.output_token_ids == [0, 1, 2, 3]
    assert [tokens for _, tokens in record.progress] == [0, 3]
    assert record.started == record.progress[0][0]
    assert record.engine_token_s == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert (record.usage_prompt_tokens, record.usage_output_tokens, record.merged_events) == (3, 4, 0)
    body = server.asked[0].body
    assert (body["cache_prompt"], body["return_tokens"], body["n_predict"]) == (False, True, 4)


def test_drawing_and_stops_are_asked_for() -> None:
    spec = replace(SPEC, sampling=Sampling(temperature=0.7, repeat_penalty=1.1), stop=("\n",))
    for dialect, penalty in ((OPENAI, "repetition_penalty"), (LLAMA, "repeat_penalty")):
        body = dialect.body(spec, [1], None)
        assert (body["temperature"], body["top_k"], body[penalty], body["stop"]) == (0.7, 40, 1.1, ["\n"])
        assert "seed" not in body
    assert LLAMA.body(replace(SPEC, sampling=Sampling(grammar='root ::= "a"')), [1], None)["grammar"] == 'root ::= "a"'


def test_an_api_key_goes_along() -> None:
    with StandIn(openai_answer) as server, Endpoint(server.url, dialect=OPENAI, api_key="sesame") as endpoint:
        ask(endpoint)
    assert server.asked[0].headers["authorization"] == "Bearer sesame"


def test_an_end_token_counts_though_its_text_is_empty() -> None:
    stopped = [head(), openai_token("a"), openai_token("b"), openai_token("", None, "stop"), openai_usage(3, 3), DONE]
    record = answered(stopped)
    consistent(record)
    assert (record.finish, len(record.token_times), record.merged_events) == (Finish.STOP, 3, 0)
    native = [head(), llama_token("a", 1, 1), llama_token("b", 2, 2), llama_end(3, 3, "eos")]
    record = answered(native, "llama-server")
    consistent(record)
    assert (record.finish, len(record.token_times), record.merged_events) == (Finish.STOP, 3, 0)
    assert record.output_token_ids == [1, 2]


@pytest.mark.parametrize(
    ("dialect", "parts"),
    [
        ("openai", [openai_token("a", [1]), openai_token("bc", [2, 3]), openai_token("d", [4], "length")]),
        ("openai", [openai_token("a"), openai_token("bcd", None, "length"), openai_usage(3, 4)]),
        ("openai", [openai_token(text, None, "length" if text == "e" else None) for text in "abcde"]),
        ("llama-server", [llama_token("a", 1, 1), llama_token("\u20ac", 4, 4), llama_end(3, 4)]),
        ("llama-server", [llama_token("a", 1, 1), llama_end(3, 4)]),
    ],
)
def test_merged_tokens_are_counted_and_said(dialect: str, parts: list[bytes]) -> None:
    usage = [openai_usage(3, 4), DONE] if dialect == "openai" else []
    record = answered([head(), *parts, *usage], dialect)
    consistent(record)
    assert record.merged_events >= 1
    assert len(record.token_times) == (5 if len(parts) == 5 else 4)
    assert record.finish is Finish.LENGTH


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_counts_reconcile_however_tokens_are_merged(sizes: list[int], hidden: int) -> None:
    generated = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    total = generated[-1] + hidden
    tokens = [llama_token("x", count, count) for count in generated]
    spec = replace(SPEC, max_tokens=total)
    record = answered([head(), *tokens, llama_end(3, total)], "llama-server", spec)
    consistent(record)
    assert len(record.token_times) == total == record.usage_output_tokens
    assert record.merged_events == sum(size > 1 for size in [*sizes, hidden])


NO_ANSWER = "before the answer did"


@pytest.mark.parametrize(
    ("parts", "status", "failure", "words"),
    [
        (refusal(429, "slow\ndown"), 429, "http", "HTTP 429: slow down"),
        ([head(500, "text/html"), b"<h1>oh</h1>"], 500, "http", "HTTP 500"),
        ([head(503)], 503, "http", "HTTP 503"),
        ([head(200, "application/json"), b'{"choices": []}'], 200, "http", "not a stream of events"),
        ([head(), openai_token("a", [1])], 200, "http", f"the stream ended after 1 tokens, {NO_ANSWER}"),
        ([head(chunked=True), chunk(openai_token("a", [1]))], 200, "http", "the connection broke"),
        ([head()], 200, "http", f"after 0 tokens, {NO_ANSWER}"),
        ([], None, "http", "the connection broke"),
        ([b"SSH-2.0-OpenSSH_9.9\r\n"], None, "http", "the connection broke"),
        ([head(), openai_token("a", [1]), b"data: {oh\n\n"], 200, "http", "b'{oh'"),
        ([head(), event([1, 2])], 200, "http", "not of the openai dialect"),
        ([head(), event({"choices": [{"token_ids": ["x"]}]})], 200, "http", "not of the openai dialect"),
        ([head(), event({"choices": 7})], 200, "http", "not of the openai dialect"),
        ([head(), b"data: " + b"x" * (MOST_BYTES + 10)], 200, "http", "an event of more than 4 MB"),
        ([head(), openai_token("a", [1]), DONE], 200, "http", "without saying why"),
        (
            [head(), openai_token("a", [1]), event({"error": {"message": "out of cells"}})],
            200,
            "engine",
            "out of cells",
        ),
        ([head(), event({"object": "error", "message": "no cells"})], 200, "engine", "the server said: no cells"),
        ([head(), openai_token("a", [1], "length"), openai_usage(3, 1), DONE], 200, "engine", "at 1 of 4 tokens"),
    ],
)
def test_what_goes_wrong_is_one_clear_reason(parts: list[Part], status: int | None, failure: str, words: str) -> None:
    record = answered(parts)
    consistent(record)
    assert (record.finish, record.http_status, record.failure) == (Finish.ERROR, status, failure)
    assert record.error is not None
    assert words in record.error
    assert "\n" not in record.error


def test_a_refused_connection() -> None:
    with StandIn(openai_answer) as server:
        url = server.url
    with Endpoint(url, dialect=OPENAI) as endpoint:
        record = ask(endpoint)
    assert (record.finish, record.http_status, record.failure) == (Finish.ERROR, None, "http")
    assert record.error is not None
    assert f"cannot reach {url}" in record.error


@pytest.mark.parametrize("parts", [[STALL], [head(), STALL], [head(), openai_token("a", [1]), b": ping\n\n", STALL]])
def test_a_server_that_falls_silent_is_given_up(parts: list[Part]) -> None:
    record = answered(parts, silence_s=0.2)
    consistent(record)
    assert (record.finish, record.failure) == (Finish.ERROR, "http")
    assert record.error == "no word from the server for 0.2 s"


def test_a_stream_that_closes_without_a_last_word_is_complete() -> None:
    tokens = [openai_token("a", [1]), openai_token("b", [2]), openai_token("c", [3]), openai_token("d", [4], "length")]
    assert answered([head(), *tokens]).finish is Finish.LENGTH


def test_a_deadline_ends_a_request_and_its_stream() -> None:
    with StandIn(lambda _: STUCK) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        record = ask(endpoint, replace(SPEC, deadline_s=0.3))
        assert server.closed.wait(PATIENCE_S)
    consistent(record)
    assert (record.finish, record.failed, record.failure) == (Finish.DEADLINE, True, None)


def test_cancel_ends_a_request_and_its_stream() -> None:
    with StandIn(lambda _: STUCK) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        shown, ended = threading.Event(), threading.Event()
        request = endpoint.submit(SPEC, on_token=lambda *_: shown.set(), on_finish=lambda _: ended.set())
        assert shown.wait(PATIENCE_S)
        request.cancel()
        request.cancel()
        assert ended.wait(PATIENCE_S)
        assert server.closed.wait(PATIENCE_S)
    consistent(request.record)
    assert (request.record.finish, request.record.failed, request.record.text) == (Finish.CANCELLED, False, "a")


def test_latency_counts_from_the_scheduled_arrival() -> None:
    with StandIn(openai_answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        due = endpoint.clock.now() - 5.0
        assert ask(endpoint, arrived=due).arrived == due


def test_tokens_are_contended_while_background_requests_are_under_way() -> None:
    def answer(asked: Asked) -> list[Part]:
        return [head(), STALL] if asked.body["prompt"] == [9] else openai_answer(asked)

    with StandIn(answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        alone = ask(endpoint)
        ended = threading.Event()
        work = endpoint.submit(TaskSpec((9,), Class.BACKGROUND, max_tokens=1), on_finish=lambda _: ended.set())
        beside = ask(endpoint)
        work.cancel()
        assert ended.wait(PATIENCE_S)
        after = ask(endpoint)
        since = ask(endpoint, arrived=beside.arrived)
    assert not any(alone.contended + after.contended)
    assert all(beside.contended)
    assert since.contended == [True, False, False, False]


def test_each_class_goes_to_its_server() -> None:
    with StandIn(openai_answer) as one, StandIn(openai_answer) as other:
        urls = {Class.FOREGROUND: one.url, Class.BACKGROUND: other.url}
        with Endpoint(urls, dialect=OPENAI) as endpoint:
            ask(endpoint)
            ask(endpoint, replace(SPEC, task_class=Class.BACKGROUND))
            ask(endpoint, replace(SPEC, task_class=Class.BACKGROUND))
    assert (len(one.asked), len(other.asked)) == (1, 2)


def test_a_paced_answer_is_shown_on_schedule_beside_background_work_and_ahead_of_it_alone() -> None:
    def answer(asked: Asked) -> list[Part]:
        return [head(), STALL] if asked.body["prompt"] == [9] else openai_answer(asked)

    told: list[tuple[str, int]] = []
    with StandIn(answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        alone = ask(endpoint, replace(SPEC, pace=1.0))
        endpoint.submit(TaskSpec((9,), Class.BACKGROUND, max_tokens=1))
        ended = threading.Event()

        def finished(record: Any) -> None:
            told.append(("end", len(record.shown_times)))
            ended.set()

        request = endpoint.submit(
            replace(SPEC, pace=25.0), on_token=lambda _, index: told.append(("token", index)), on_finish=finished
        )
        assert ended.wait(PATIENCE_S)
    beside = request.record
    for record in (alone, beside):
        consistent(record)
        assert len(record.due_times) == 4
    assert alone.shown_times[2] < alone.due_times[2], "there was no need to wait for two seconds"
    assert told == [("token", 0), ("token", 1), ("token", 2), ("token", 3), ("end", 4)]
    first = beside.token_times[0]
    for index, (shown, due) in enumerate(zip(beside.shown_times, beside.due_times, strict=True)):
        assert shown >= due - 1e-6
        assert due >= first + index / 25.0 - 1e-6
    assert beside.finished is not None
    assert beside.finished < beside.shown_times[-1]


@pytest.mark.parametrize("parts", [[STALL], []], ids=["while it is computed", "once it was computed"])
def test_a_cancelled_paced_answer_ends_where_its_reader_is(parts: list[Part]) -> None:
    def answer(_: Asked) -> list[Part]:
        rest = parts or [openai_token("c", [3], "length"), DONE]
        return [*openai_answer_head(), *rest]

    with StandIn(answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        ended = threading.Event()
        request = endpoint.submit(replace(SPEC, max_tokens=3, pace=0.001), on_finish=lambda _: ended.set())
        record = request.record
        while len(record.token_times) < 2 if parts else record.finish is None:
            assert not ended.wait(0.01)
        request.cancel()
        assert ended.wait(PATIENCE_S)
    consistent(record)
    assert record.finish is Finish.CANCELLED
    assert (record.output_token_ids, record.text) == ([1], "a")


def openai_answer_head() -> list[Part]:
    return [head(), openai_token("a", [1]) + openai_token("b", [2])]


def test_callbacks_run_in_one_thread_and_what_they_raise_costs_nobody() -> None:
    threads = set()

    def note(*_: object) -> None:
        threads.add(threading.current_thread().name)
        raise RuntimeError("a mistake of the caller's")

    with StandIn(openai_answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        record = ask(endpoint, on_token=note)
        done = threading.Event()
        endpoint.call_at(endpoint.clock.now(), lambda: (threads.add(threading.current_thread().name), done.set())[0])
        assert done.wait(PATIENCE_S)
        assert endpoint.failure is None
    consistent(record)
    assert record.finish is Finish.LENGTH
    assert threads == {"endpoint"}


def test_an_action_that_fails_is_the_endpoints_failure() -> None:
    with StandIn(openai_answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        endpoint.call_at(0.0, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        ask(endpoint)
        assert isinstance(endpoint.failure, ZeroDivisionError)


def test_closing_ends_every_record() -> None:
    records = []
    with StandIn(lambda _: [head(), STALL]) as server:
        endpoint = Endpoint(server.url, dialect=OPENAI)
        early = endpoint.submit(SPEC, on_finish=records.append)
        endpoint.start()
        for _ in range(4):
            endpoint.submit(replace(SPEC, task_class=Class.BACKGROUND), on_finish=records.append)
        endpoint.close()
        endpoint.close()
    assert [record.finish for record in records] == [Finish.CANCELLED] * 5
    assert early.record.finish is Finish.CANCELLED
    with pytest.raises(EngineClosed):
        endpoint.submit(SPEC)
    early.cancel()
    endpoint.call_at(0.0, lambda: None)


def test_closing_an_endpoint_that_was_never_started() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", dialect=OPENAI)
    endpoint.close()
    endpoint.close()


def test_closing_in_a_callback_is_refused() -> None:
    raised = []

    def close(_: Any) -> None:
        try:
            endpoint.close()
        except UsageError as error:
            raised.append(error)

    with StandIn(openai_answer) as server, Endpoint(server.url, dialect=OPENAI) as endpoint:
        ask(endpoint, on_token=lambda record, _: close(record))
    assert raised


@pytest.mark.parametrize("dialect", [OPENAI, LLAMA])
@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, embed=True),
        replace(SPEC, sampling=Sampling(logprobs=3)),
        replace(SPEC, sampling=Sampling(logit_bias={4: 1.0})),
        replace(SPEC, sampling=Sampling(min_tokens=2)),
        replace(SPEC, prompt=()),
        replace(SPEC, max_tokens=0),
    ],
)
def test_what_cannot_be_asked_for_is_refused(dialect: Any, spec: TaskSpec) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", dialect=dialect)
    with pytest.raises(UsageError):
        endpoint.submit(spec)
    endpoint.close()


def test_only_llama_server_takes_a_grammar() -> None:
    spec = replace(SPEC, sampling=Sampling(grammar='root ::= "a"'))
    LLAMA.check(spec)
    with pytest.raises(UsageError, match="no grammar"):
        OPENAI.check(spec)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://x:0", "::"])
def test_no_url_is_named(url: str) -> None:
    with pytest.raises(UsageError, match="is no endpoint"):
        Endpoint(url, dialect=OPENAI)


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_the_path_of_the_api_may_be_there(tail: str) -> None:
    assert server_url(f"http://h:1/base{tail}") == "http://h:1/base"


payloads = st.lists(st.binary(max_size=20).filter(lambda data: not set(data) & set(b"\r\n")), max_size=6)


@given(payloads, st.data(), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_bytes_come(data: list[bytes], draw: st.DataObject, end: bytes) -> None:
    stream = b"".join(b": ping" + end + b"data: " + each + end + end for each in data)
    cuts = draw.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    reader, found = EventReader(), []
    for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[begin:stop])
    assert found == data


def test_lines_of_one_event_belong_together() -> None:
    assert EventReader().feed(b"event: x\ndata: a\ndata:b\nid: 1\n\n\n\ndata: c\n\n") == [b"a\nb", b"c"]


def test_progress_events_hold_no_tokens() -> None:
    record = answered(
        [head(), llama_progress(0, 3), llama_progress(3, 3), llama_token("a", 7, 1), llama_end(3, 1)],
        "llama-server",
        replace(SPEC, max_tokens=1),
    )
    assert record.output_token_ids == [7]
    assert record.merged_events == 0
