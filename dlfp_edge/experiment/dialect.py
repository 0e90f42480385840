"""How servers are asked for an answer, and what the events of their streams say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dlfp_edge.errors import UsageError
from dlfp_edge.task import Finish, TaskSpec

Prompt = str | list[int]
"""What is sent: token ids, or a text that the server encodes."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one event of a stream says. What a server does not tell is None.

    `ids` are the tokens it names, `generated` how many there are by now, and `engine_s` when the newest one was there,
    by the server's clock since the first. `computed` counts prompt tokens, `cached` those that were there already.
    `last` says that nothing follows.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    generated: int | None = None
    engine_s: float | None = None
    computed: int | None = None
    cached: int | None = None
    finish: Finish | None = None
    stop_string: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    last: bool = False


class Dialect(Protocol):
    """One way of asking for an answer and of streaming it."""

    name: str
    path: str
    tells_progress: bool

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for what cannot be asked for in this dialect."""
        ...

    def body(self, spec: TaskSpec, prompt: Prompt, model: str | None) -> dict[str, Any]:
        """The request."""
        ...

    def read(self, data: bytes) -> Said:
        """What an event says. Raises ValueError, KeyError or TypeError where it is none of this dialect."""
        ...


class OpenAI:
    """`/v1/completions` with streaming. Token ids come where the server offers `return_token_ids`, as vLLM does."""

    name = "openai"
    path = "/v1/completions"
    tells_progress = False

    def check(self, spec: TaskSpec) -> None:
        _check(spec, self.name)
        if spec.sampling.grammar is not None:
            raise UsageError(f"the {self.name} dialect carries no grammar: ask llama-server, or leave it out")

    def body(self, spec: TaskSpec, prompt: Prompt, model: str | None) -> dict[str, Any]:
        sampling = spec.sampling
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": spec.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **_drawing(spec),
        }
        if model is not None:
            body["model"] = model
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        if sampling.repeat_penalty != 1:
            body["repetition_penalty"] = sampling.repeat_penalty
        return body

    def read(self, data: bytes) -> Said:
        if data == b"[DONE]":
            return Said(last=True)
        event = _event(data)
        if event.get("error") or event.get("object") == "error":
            return Said(error=_reason(event.get("error") or event))
        usage = event.get("usage") or {}
        choice = (event.get("choices") or [{}])[0]
        ids = choice.get("token_ids") or ()
        return Said(
            text=str(choice.get("text") or ""),
            ids=tuple(map(int, ids)),
            finish={None: None, "length": Finish.LENGTH}.get(choice.get("finish_reason"), Finish.STOP),
            cached=_number((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
            prompt_tokens=_number(usage.get("prompt_tokens")),
            output_tokens=_number(usage.get("completion_tokens")),
        )


class LlamaServer:
    """llama-server's own `/completion`: each token's id, its time by the server's clock, and the prompt's progress."""

    name = "llama-server"
    path = "/completion"
    tells_progress = True

    def check(self, spec: TaskSpec) -> None:
        _check(spec, self.name)

    def body(self, spec: TaskSpec, prompt: Prompt, model: str | None) -> dict[str, Any]:
        sampling = spec.sampling
        body: dict[str, Any] = {
            "prompt": prompt,
            "n_predict": spec.max_tokens,
            "stream": True,
            "cache_prompt": False,
            "return_tokens": True,
            "timings_per_token": True,
            "return_progress": True,
            "ignore_eos": sampling.ignore_eos,
            "repeat_penalty": sampling.repeat_penalty,
            **_drawing(spec),
        }
        if model is not None:
            body["model"] = model
        if sampling.grammar is not None:
            body["grammar"] = sampling.grammar
        return body

    def read(self, data: bytes) -> Said:
        event = _event(data)
        if event.get("error"):
            return Said(error=_reason(event["error"]))
        timings = event.get("timings") or {}
        progress = event.get("prompt_progress")
        if progress is not None:  # its `tokens` are no tokens of the answer
            return Said(computed=int(progress["processed"]), cached=int(progress.get("cache") or 0))
        done = bool(event["stop"])
        spent_ms = timings.get("predicted_ms")
        return Said(
            text=str(event["content"]),
            ids=tuple(map(int, event.get("tokens") or ())),
            generated=int(event["tokens_predicted"]),
            engine_s=None if spent_ms is None else float(spent_ms) / 1e3,
            cached=_number(timings.get("cache_n")),
            finish=None if not done else Finish.LENGTH if event.get("stop_type") == "limit" else Finish.STOP,
            stop_string=event.get("stopping_word") or None,
            prompt_tokens=int(event["tokens_evaluated"]) if done else None,
            output_tokens=int(event["tokens_predicted"]) if done else None,
            last=done,
        )


DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (OpenAI(), LlamaServer())}


def _check(spec: TaskSpec, name: str) -> None:
    sampling = spec.sampling
    asked = {
        "embeddings": spec.embed,
        "log-probabilities": sampling.logprobs is not None,
        "logit biases": bool(sampling.logit_bias),
        "min_tokens": sampling.min_tokens > 0,
    }
    for what, wanted in asked.items():
        if wanted:
            raise UsageError(f"the {name} dialect carries no {what}: leave them out for this endpoint")


def _drawing(spec: TaskSpec) -> dict[str, Any]:
    """How tokens are chosen, in the words that both dialects share; filters do nothing to a greedy choice."""
    sampling = spec.sampling
    words: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.temperature > 0:
        words |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    if sampling.seed is not None:
        words["seed"] = sampling.seed
    if spec.stop:
        words["stop"] = list(spec.stop)
    return words


def _event(data: bytes) -> dict[str, Any]:
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError("not an object")
    return event


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _reason(error: Any) -> str:
    """The words of an error as servers send them: an object with a message, or text."""
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:300]


def http_reason(body: bytes) -> str:
    """What the body of a refusal says, in one line; "" for nothing, and for a page that is for people."""
    if body.lstrip()[:1] == b"<":
        return ""
    try:
        document = json.loads(body)
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:300]
    if isinstance(document, dict):
        return _reason(document.get("error") or document.get("message") or document.get("detail") or document)
    return _reason(document)
