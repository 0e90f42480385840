"""Prompts: exact, repeatable, and free of tokens that mean something to the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.prompts import Prompt, prompt_source
from dlfp_edge.experiment.workload import Workload


class WordTokenizer:
    """Id 1 starts a sequence, 2 ends it, ids under 10 are control tokens, and each letter is a token."""

    vocabulary = 1000
    begin = (1,)

    def encode(self, text: str) -> list[int]:
        return [*self.begin, *(100 + ord(letter) for letter in text)]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token < 10 else b"x"

    def spell(self, data: bytes) -> list[int]:
        raise UsageError("the vocabulary has one letter")

    def is_end(self, token: int) -> bool:
        return token in (2, 500)


class NoTokenizer(WordTokenizer):
    """A model of random weights: no text, no control tokens."""

    def encode(self, text: str) -> list[int]:
        raise UsageError("the model has no tokenizer")

    def token_bytes(self, token: int) -> bytes:
        return b""


def workload(stream: dict[str, Any]) -> Workload:
    full = {"name": "s", "class": "background", "clients": 2, "max_tokens": 4, **stream}
    return Workload.model_validate({"name": "w", "description": "", "duration_s": 1.0, "stream": [full]})


def prompt(stream: dict[str, Any], *, seed: int = 0, client: int = 0, index: int = 0, bare: bool = False) -> Prompt:
    made = workload(stream)
    tokenizer = NoTokenizer() if bare else WordTokenizer()
    return prompt_source(made, made.streams[0], tokenizer, seed)(client, index)


@given(
    total=st.integers(1, 300),
    shared=st.integers(0, 300),
    seed=st.integers(0, 2**32),
    client=st.integers(0, 9),
    bare=st.booleans(),
)
def test_the_length_is_exact(total: int, shared: int, seed: int, client: int, bare: bool) -> None:
    shared = min(shared, total - 1)
    stream = {"prompt_tokens": total, "shared_prefix_tokens": shared}
    made = prompt(stream, seed=seed, client=client, bare=bare)
    assert len(made.tokens) == total
    assert made.head in (shared, 1)
    assert made == prompt(stream, seed=seed, client=client, bare=bare)
    assert made.tokens[:shared] == prompt(stream, seed=seed, client=client + 1, bare=bare).tokens[:shared]


@given(st.integers(0, 1000))
def test_random_ids_stand_for_text_after_the_start_token(seed: int) -> None:
    tokens = prompt({"prompt_tokens": 200, "shared_prefix_tokens": 20}, seed=seed).tokens
    assert tokens[0] == 1
    assert all(10 <= token < 1000 and token != 500 for token in tokens[1:])


def test_a_model_without_a_tokenizer_gets_ids_of_its_vocabulary() -> None:
    tokens = prompt({"prompt_tokens": 500}, bare=True).tokens
    assert min(tokens) >= 0
    assert max(tokens) < 1000


def test_prompts_differ_by_seed_client_and_index() -> None:
    stream = {"prompt_tokens": 32}
    made = {
        prompt(stream, seed=seed, client=client, index=index).tokens
        for seed in (0, 1)
        for client in (0, 1)
        for index in (0, 1)
    }
    assert len(made) == 8


def test_texts_are_taken_in_turn_after_the_instruction() -> None:
    made = workload({"texts": ["a", "b"], "instruction": "i"}).with_texts("s", {"a": "AA\n", "b": "B"}, "I: ")
    source = prompt_source(made, made.streams[0], WordTokenizer(), 0)
    instruction = WordTokenizer().encode("I: ")
    assert source(0, 0) == Prompt((*instruction, 165, 165), 4, "a")
    assert source(1, 0) == Prompt((*instruction, 166), 4, "b")
    assert source(0, 1) == source(0, 0)


def test_texts_need_a_tokenizer() -> None:
    made = workload({"texts": ["a"]}).with_texts("s", {"a": "A"})
    with pytest.raises(UsageError, match="tokenizer"):
        prompt_source(made, made.streams[0], NoTokenizer(), 0)
