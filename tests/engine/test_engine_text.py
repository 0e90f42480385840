"""What readers of an answer get: stop strings, text that was held back, log-probabilities, on virtual time."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import Class, Engine, Finish, Sampling, Settings, Task, TaskSpec, Token, UsageError, open_engine
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.runtimes.simulated.tokens import END, ByteTokenizer
from dlfp_edge.settings import Placement

from .stop_oracle import BROKEN, FRAGMENTS, cut, stops_for

MODES = {"lanes": Placement.LANES, "batched": Placement.SHARED, "depth2": Placement.SHARED}


def saying(data: bytes, **more: Any) -> Sampling:
    """Every token is one of these bytes."""
    return Sampling(logit_bias=dict.fromkeys(data, 100.0), ignore_eos=True, **more)


def engine_on(mode: str) -> Engine:
    runtime = SimulatedRuntime(mode=mode, end_probability=0.05)
    return Engine(runtime, Settings(placement=MODES[mode], context=6000))


def run(engine: Engine, spec: TaskSpec, cancel_after: float | None = None) -> Task:
    task = engine.submit(spec)
    if cancel_after is not None:
        engine.call_at(engine.clock.now() + cancel_after, task.cancel)
    engine.run_until(lambda: False)
    return task


def joined(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)


def certain(ids: Sequence[int]) -> str:
    """What tokens say so far, without the beginning of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(ByteTokenizer().token_bytes, ids)))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), prompt=st.lists(st.integers(0, 255), min_size=1, max_size=3))
def test_every_reader_gets_the_answer_up_to_the_first_stop_string(
    mode: str, data: st.DataObject, prompt: list[int]
) -> None:
    alphabet = data.draw(st.sampled_from([*BROKEN, *(text.encode() for text in FRAGMENTS), b""])) + b"ab"
    spec = {"prompt": tuple(prompt), "task_class": data.draw(st.sampled_from(Class)), "sampling": saying(alphabet)}
    most = data.draw(st.integers(1, 80))
    engine = engine_on(mode)
    whole = run(engine, TaskSpec(max_tokens=80, **spec)).record  # type: ignore[arg-type]
    first = run(engine, TaskSpec(max_tokens=most, **spec)).text  # type: ignore[arg-type]
    stops = data.draw(stops_for(first))
    pace = data.draw(st.sampled_from([None, 12.0]))
    task = run(engine, TaskSpec(max_tokens=most, stop=tuple(stops), pace=pace, **spec))  # type: ignore[arg-type]
    engine.close()

    async def collect() -> list[Token]:
        return [token async for token in task]

    text, stopped = cut(first, stops)
    record, tokens = task.record, list(task)
    assert task.text == record.text == joined(tokens) == joined(asyncio.run(collect())) == text
    assert [token.id for token in tokens] == record.output_token_ids == whole.output_token_ids[: len(tokens)]
    assert record.stop_string == stopped
    assert record.finish is (Finish.LENGTH if stopped is None else Finish.STOP)
    assert engine.snapshot().foreground_running == engine.snapshot().background_running == 0
    if len(stops) == 1 and stopped is not None and stopped in certain(record.output_token_ids):
        assert stopped not in certain(record.output_token_ids[:-1]), "tokens after the stop string were decoded"


@settings(max_examples=40, deadline=None)
@given(cancel_after=st.floats(0.0, 3.0), pace=st.sampled_from([None, 12.0]), deadline=st.booleans())
def test_an_answer_ended_early_shows_all_its_text_once(cancel_after: float, pace: float | None, deadline: bool) -> None:
    engine = engine_on("lanes")
    spec = TaskSpec(
        (1,),
        max_tokens=100,
        sampling=saying("aé\n".encode()),
        pace=pace,
        deadline_s=cancel_after if deadline else None,
        stop=("\n\nx", "aax", "éx"),
    )
    task = run(engine, spec, None if deadline else cancel_after)
    engine.close()
    record, tokens = task.record, list(task)
    said = b"".join(map(ByteTokenizer().token_bytes, record.output_token_ids)).decode("utf-8", "replace")
    assert joined(tokens) == task.text == record.text == said
    assert [token.id for token in tokens if token.id is not None] == record.output_token_ids
    assert record.stop_string is None


def test_text_held_back_until_the_end_comes_after_the_last_token() -> None:
    engine = engine_on("lanes")
    spec = TaskSpec((1,), max_tokens=1000, sampling=saying(b"a"), stop=("a" * 250,))
    task = run(engine, spec, cancel_after=1.0)
    count = len(task.record.output_token_ids)
    assert task.record.finish is Finish.CANCELLED
    assert list(task) == [*[Token(ord("a"), "")] * count, Token(None, "a" * count)]
    engine.close()


def test_at_its_length_an_answer_lets_go_of_what_it_held_back() -> None:
    engine = engine_on("lanes")
    task = run(engine, TaskSpec((1,), max_tokens=10, sampling=saying(b"a"), stop=("a" * 11,)))
    assert [token.text for token in task] == [""] * 9 + ["a" * 10]
    assert task.record.finish is Finish.LENGTH
    engine.close()


def test_a_stop_string_in_what_was_held_back_ends_the_answer() -> None:
    engine = engine_on("lanes")
    task = run(engine, TaskSpec((1,), max_tokens=3, sampling=saying(b"a"), stop=("aaaa", "aa")))
    assert (task.text, task.record.finish, task.record.stop_string) == ("", Finish.STOP, "aa")
    engine.close()


def test_a_paced_answer_stops_when_the_token_is_there_not_when_it_is_shown() -> None:
    engine = engine_on("lanes")
    task = run(engine, TaskSpec((1,), max_tokens=1000, sampling=saying(b"ab"), pace=0.2, stop=("bab",)))
    record = task.record
    assert record.finish is Finish.STOP
    assert record.finished == record.token_times[-1] < record.shown_times[-1]
    assert record.text + "bab" == certain(record.output_token_ids)
    engine.close()


def test_the_text_so_far_is_what_was_shown() -> None:
    engine = engine_on("lanes")
    task = engine.submit(TaskSpec((1,), max_tokens=40, sampling=saying(b"ab"), pace=12.0))
    engine.run_until(lambda: len(task.record.token_times) > len(task.record.shown_times) > 2)
    assert task.text == task.record.text[: len(task.record.shown_times)] != task.record.text
    engine.run_until(lambda: task.done)
    assert task.text == task.record.text
    engine.close()


def test_the_end_token_waits_for_min_tokens() -> None:
    engine = engine_on("lanes")
    sampling = Sampling(logit_bias={END: 100}, min_tokens=7)
    task = run(engine, TaskSpec((1,), max_tokens=20, sampling=sampling))
    assert len(task.record.output_token_ids) == 8
    assert task.record.finish is Finish.STOP
    engine.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_in_the_record_one_a_token(temperature: float) -> None:
    engine = engine_on("depth2")
    task = run(engine, TaskSpec((1,), max_tokens=9, sampling=Sampling(temperature=temperature, logprobs=3)))
    plain = run(engine, TaskSpec((1,), max_tokens=9))
    record = task.record
    assert len(record.logprobs) == len(record.output_token_ids)
    for token, logprobs in zip(record.output_token_ids, record.logprobs, strict=True):
        assert logprobs.top[0] == (token, logprobs.chosen)
        assert [one for _, one in logprobs.top] == sorted((one for _, one in logprobs.top), reverse=True)
        assert len({token for token, _ in logprobs.top}) == 3
    assert plain.record.logprobs == []
    engine.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stop": "x"}, "stop is 'x': give a tuple"),
        ({"stop": ("",)}, "stop string ''"),
        ({"stop": ("x", 5)}, "stop string 5"),
        ({"stop": ("x" * 257,)}, "1 to 256 characters"),
        ({"stop": ("\udcff",)}, "surrogate"),
        ({"stop": tuple("abcdefghijklmnopq")}, "17 stop strings"),
        ({"sampling": Sampling(logit_bias={1000: 1})}, r"outside 0\.\.999"),
        ({"sampling": Sampling(min_tokens=17), "max_tokens": 16}, "min_tokens is 17"),
    ],
)
def test_what_no_answer_can_follow_is_refused_at_once(given: dict[str, Any], says: str) -> None:
    engine = engine_on("lanes")
    with pytest.raises(UsageError, match=says):
        engine.submit(TaskSpec((1,), **given))
    engine.close()


@pytest.mark.parametrize(
    "given",
    [
        {"logprobs": 21},
        {"logprobs": -1},
        {"logprobs": True},
        {"min_tokens": -1},
        {"min_tokens": 1.5},
        {"logit_bias": {5: 100.5}},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": {5: "1"}},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {-1: 1}},
        {"logit_bias": [5]},
    ],
)
def test_sampling_out_of_range_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        Sampling(**given)


def test_a_bias_is_that_of_the_moment_it_was_given() -> None:
    bias = {5: 1.0}
    sampling = Sampling(logit_bias=bias)
    bias[5] = 2.0
    assert sampling == Sampling(logit_bias={5: 1.0})
    assert hash(sampling) == hash(Sampling(logit_bias={5: 1.0}))


@pytest.mark.parametrize("stop", ["bab", ["x", "bab"]])
def test_stop_strings_from_python(stop: str | list[str]) -> None:
    with open_engine(runtime="simulated") as edge:
        task = edge.submit([1], max_tokens=500, sampling=saying(b"ab"), stop=stop)
        assert task.wait(30).stop_string == "bab"
        assert "bab" not in task.text


@pytest.mark.parametrize("stop", [5, b"x", None, {"x"}])
def test_a_stop_that_is_no_string_is_refused(stop: Any) -> None:
    with open_engine(runtime="simulated") as edge, pytest.raises(UsageError, match="stop is"):
        edge.submit([1], stop=stop)
