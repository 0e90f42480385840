"""Prompts with an exact number of tokens, the same for the same seed.

A prompt depends only on (seed, stream, client, index), so two runs that schedule differently ask the same questions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.runtime import Tokenizer

POOL = 8192
"""Ids that random prompts are drawn from. Checking a whole vocabulary would take seconds for no more variety."""

_SHARED, _ARRIVALS = 2**32 - 1, 2**32 - 2


class Prompt(NamedTuple):
    """The ids of a prompt, how many of the first of them begin every prompt of the stream, and its text's name."""

    tokens: tuple[int, ...]
    head: int
    name: str = ""

    def after(self, said: tuple[int, ...]) -> Prompt:
        """The prompt as the next turn of a conversation: what was said so far, and its own part."""
        return self._replace(tokens=said + self.tokens[self.head :])


PromptSource = Callable[[int, int], Prompt]
"""From a client's number and the index of its request to the prompt."""


def prompt_source(workload: Workload, stream: Stream, tokenizer: Tokenizer, seed: int) -> PromptSource:
    """The prompts of one stream. Raises UsageError where its texts need a tokenizer that the model lacks."""
    if stream.texts:
        return _texts(workload, stream, tokenizer)
    return _random(stream, tokenizer, seed)


def arrival_times(stream: Stream, seed: int) -> list[float]:
    """When an open loop's requests arrive, in seconds from the stream's start.

    A trace's are those it has, at the stream's speed; a rate's have exponential gaps, as in the paper, between
    bursts of as many as it says.
    """
    if stream.rows:
        return [row.arrival_s / stream.speed for row in stream.rows]
    if stream.rate is None or stream.requests is None:
        raise ValueError(f"stream '{stream.name}' has no arrival rate")
    bursts = -(-stream.requests // stream.burst)
    gaps = _generator(seed, stream, _ARRIVALS).exponential(stream.burst / stream.rate, bursts)
    return [float(moment) for moment in np.repeat(np.cumsum(gaps), stream.burst)[: stream.requests]]


def _random(stream: Stream, tokenizer: Tokenizer, seed: int) -> PromptSource:
    pool, start = _pool(tokenizer, seed), _start(tokenizer)
    drawn = _draw(_generator(seed, stream, _SHARED), pool, stream.shared_prefix_tokens)
    shared = (start + drawn)[: stream.shared_prefix_tokens]

    def source(client: int, index: int) -> Prompt:
        total = stream.prompt_length(index)
        head = shared or start[:total]
        own = _draw(_generator(seed, stream, client, index), pool, total - len(head))
        return Prompt((*head, *own), len(head))

    return source


def _texts(workload: Workload, stream: Stream, tokenizer: Tokenizer) -> PromptSource:
    start = len(tokenizer.encode(""))
    instruction = tokenizer.encode(workload.instruction(stream)) if stream.instruction else []
    prompts = []
    for name in stream.texts:
        tokens = tokenizer.encode(
            workload.text(stream, name).rstrip()
        )  # a model would see the end of the file as an answer
        prompts.append(Prompt((*instruction, *(tokens[start:] if instruction else tokens)), len(instruction), name))

    def source(client: int, index: int) -> Prompt:
        return prompts[(index * (stream.clients or 1) + client) % len(prompts)]

    return source


def _start(tokenizer: Tokenizer) -> list[int]:
    try:
        return tokenizer.encode("")
    except UsageError:  # random weights without a tokenizer need no start token either
        return []


def _pool(tokenizer: Tokenizer, seed: int) -> npt.NDArray[np.int64]:
    """Ids that stand for text. A model without a tokenizer knows no control tokens, so any id will do."""
    candidates = np.random.default_rng(seed).permutation(tokenizer.vocabulary)
    try:
        tokenizer.encode("")
    except UsageError:
        return candidates[:POOL]
    kept: list[int] = []
    for token in candidates.tolist():
        if tokenizer.token_bytes(token) and not tokenizer.is_end(token):
            kept.append(token)
        if len(kept) == POOL:
            break
    if not kept:
        raise UsageError("the model's tokenizer has no token that stands for text: check the model file")
    return np.array(kept)


def _draw(generator: np.random.Generator, pool: npt.NDArray[np.int64], count: int) -> list[int]:
    drawn: list[int] = generator.choice(pool, max(0, count)).tolist()
    return drawn


def _generator(seed: int, stream: Stream, *key: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(stream.name.encode()), *key])
