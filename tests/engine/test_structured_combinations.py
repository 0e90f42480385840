"""Answers in a grammar that have stop strings, log-probabilities, a bias or a least length too, on virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import Engine, Finish, Sampling, Settings, Task, TaskSpec, open_engine
from dlfp_edge.grammar import schema_grammar
from dlfp_edge.runtime import NOT_CHOSEN
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.runtimes.simulated.tokens import END
from dlfp_edge.settings import Placement

from .stop_oracle import cut

WORDS = schema_grammar({"type": "array", "items": {"enum": ["red", "green", "größe"]}, "minItems": 2})
LONG_END = 'root ::= [a-y]* "THE END"'


def answer(
    grammar: str,
    *,
    max_tokens: int = 60,
    stop: tuple[str, ...] = (),
    pace: float | None = None,
    placement: Placement = Placement.LANES,
    mode: str = "lanes",
    **sampling: Any,
) -> Task:
    engine = Engine(SimulatedRuntime(mode=mode, end_probability=0.05), Settings(placement=placement, context=6000))
    how = Sampling(**{"temperature": 1.0, "seed": 1, "grammar": grammar, **sampling})
    task = engine.submit(TaskSpec((1, 2, 3), max_tokens=max_tokens, sampling=how, stop=stop, pace=pace))
    engine.run_until(lambda: task.done)
    engine.close()
    return task


@pytest.mark.parametrize(("mode", "placement"), [("lanes", Placement.LANES), ("depth2", Placement.SHARED)])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99), max_tokens=st.integers(13, 60), pace=st.sampled_from([None, 12.0]))
def test_a_stop_string_cuts_the_answer_there_and_nothing_else_changes(
    mode: str, placement: Placement, data: st.DataObject, seed: int, max_tokens: int, pace: float | None
) -> None:
    how: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "mode": mode, "placement": placement, "logprobs": 1}
    whole = answer(WORDS, **how)
    json.loads(whole.text)
    start = data.draw(st.integers(0, len(whole.text) - 1))
    stops = (whole.text[start : start + data.draw(st.integers(1, 5))], data.draw(st.sampled_from(["Z", "größe", "]"])))
    text, stopped = cut(whole.text, list(stops))
    record = answer(WORDS, stop=stops, pace=pace, **how).record
    count = len(record.output_token_ids)
    assert (record.text, record.stop_string, record.finish) == (text, stopped, Finish.STOP)
    assert record.output_token_ids == whole.record.output_token_ids[:count]
    assert record.logprobs == whole.record.logprobs[:count]
    assert len(record.logprobs) == len(record.shown_times) == len(record.contended) == count
    if stops[1] == "Z":
        before = bytes(record.output_token_ids[:-1]).decode(errors="ignore")
        assert stops[0] not in before, "tokens after the stop string were delivered"


def test_a_stop_string_in_the_end_that_the_limit_forces() -> None:
    record = answer(LONG_END, max_tokens=12, stop=("E E",), logprobs=2, ignore_eos=True).record
    assert bytes(record.output_token_ids)[-5:] == b"THE E", "what was to come after it was delivered"
    assert (record.text[-2:], record.stop_string, record.finish) == ("TH", "E E", Finish.STOP)
    assert len(record.logprobs) == len(record.output_token_ids) == len(record.token_times) == 10


def test_a_stop_string_that_does_not_come_hides_nothing() -> None:
    record = answer(LONG_END, max_tokens=12, stop=("END!", "DD")).record
    assert (len(record.text), record.text[-7:], record.stop_string) == (12, "THE END", None)
    assert record.finish is Finish.LENGTH


def test_a_schema_and_stop_strings_from_python() -> None:
    with open_engine(runtime="simulated") as edge:
        task = edge.submit("x", json_schema={"const": {"a": [1, 2]}}, stop=[", ", "2]"])
        record = task.wait(30)
        assert "".join(token.text for token in task) == record.text == '{"a":[1,'
        assert (record.stop_string, record.finish) == ("2]", Finish.STOP)


def test_logprobs_are_there_for_every_token_and_say_which_nobody_chose() -> None:
    record = answer(LONG_END, max_tokens=12, logprobs=3).record
    assert len(record.logprobs) == len(record.output_token_ids) == 12
    assert record.logprobs[5:] == [NOT_CHOSEN] * 7
    for token, one in zip(record.output_token_ids[:5], record.logprobs[:5], strict=True):
        assert one.top[0] == (token, one.chosen)
        assert one.chosen < 0
    assert answer(LONG_END, max_tokens=12).record.logprobs == []


def test_a_forbidden_token_is_gone_round() -> None:
    either = 'root ::= "yes" | "no"'
    for forbidden, said in (("y", "no"), ("n", "yes")):
        record = answer(either, logit_bias={ord(forbidden): -100}).record
        assert (record.text, record.finish) == (said, Finish.STOP)
    assert answer(either, logit_bias={ord("y"): 100}).text == "yes"
    assert answer(either, logit_bias={ord("x"): 100, ord("n"): -100}).text == "yes", "the grammar has no x"


@pytest.mark.parametrize("text", ["yes", "größe"])
def test_a_forbidden_token_without_which_the_grammar_cannot_go_on_is_said(text: str) -> None:
    record = answer(f'root ::= "{text}"', logit_bias={**dict.fromkeys(text.encode(), -100.0), END: -100.0}).record
    assert (record.text, record.finish) == (text, Finish.STOP)


def test_an_answer_that_can_only_end_does_not_wait_for_min_tokens() -> None:
    for text in ("", "ab"):
        record = answer(f'root ::= "{text}"', min_tokens=8, ignore_eos=True, logit_bias={END: -100}).record
        assert (record.text, record.finish) == (text, Finish.STOP)
    record = answer("root ::= [a-z]*", min_tokens=8, logit_bias={END: 100}).record
    assert (len(record.text), record.output_token_ids[8:], record.finish) == (8, [END], Finish.STOP)


def test_each_answer_that_takes_over_a_prompts_cells_begins_its_grammar_anew() -> None:
    engine = Engine(SimulatedRuntime(mode="sequential"), Settings(placement=Placement.SHARED, context=6000))
    prompt = tuple(range(200)) * 4
    for grammar, said in (('root ::= "abc"', "abc"), ('root ::= "xyz"', "xyz"), ('root ::= "abc"', "abc")):
        task = engine.submit(TaskSpec(prompt, max_tokens=8, sampling=Sampling(grammar=grammar, min_tokens=2)))
        engine.run_until(lambda task=task: task.done)  # type: ignore[misc]
        assert (task.text, task.record.finish) == (said, Finish.STOP)
    assert task.record.cached_prompt_tokens > 0
    engine.close()


def test_an_embedding_has_no_answer_that_could_keep_to_a_grammar() -> None:
    engine = Engine(SimulatedRuntime(), Settings(context=6000))
    sampling = Sampling(grammar='root ::= "a"{400}')
    task = engine.submit(TaskSpec((1, 2, 3), max_tokens=1, sampling=sampling, embed=True))
    engine.run_until(lambda: task.done)
    assert task.record.embedding is not None
    assert (task.record.finish, task.record.output_token_ids) == (Finish.STOP, [])
    engine.close()
