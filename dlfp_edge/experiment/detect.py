"""What answers at a URL, asked before any load is sent there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.dialect import DIALECTS, Dialect, http_reason
from dlfp_edge.experiment.endpoint import authorised, is_local, server_url

_ANSWER_S = 10.0
_LOADING_S = 120.0
"""Some servers load a model only when it is asked for."""


@dataclass(frozen=True, slots=True)
class Detected:
    """A server: the dialect that tells most of it, its first model, and the number of its token ids where it says."""

    dialect: Dialect
    model: str | None
    n_vocab: int | None


def detect(url: str, *, api_key: str | None = None, timeout_s: float = _ANSWER_S) -> Detected:
    """Ask a server's `/props` (llama-server has them) and `/v1/models` what it is.

    Raises UsageError for what is no URL; RuntimeFailure where nothing answers, or nothing that completes prompts.
    """
    base = server_url(url)
    with httpx.Client(headers=authorised(api_key), timeout=timeout_s, trust_env=not is_local(base)) as client:
        models = _json(client, f"{base}/v1/models", required=True)
        props = _json(client, f"{base}/props", required=False)
    listed = models.get("data") if isinstance(models, dict) else None
    if not isinstance(listed, list):
        raise RuntimeFailure(f"{base}/v1/models answered with no list of models: is it an OpenAI-compatible server?")
    first = listed[0] if listed and isinstance(listed[0], dict) else {}
    native = isinstance(props, dict) and "default_generation_settings" in props
    n_vocab = (first.get("meta") or {}).get("n_vocab")
    return Detected(
        DIALECTS["llama-server" if native else "openai"],
        str(first["id"]) if first.get("id") else None,
        n_vocab if isinstance(n_vocab, int) and n_vocab > 0 else None,
    )


def takes_ids(url: str, model: str | None, *, api_key: str | None = None, timeout_s: float = _LOADING_S) -> bool:
    """Whether a server completes a prompt of token ids: it is asked to, with one id and for one token.

    Raises RuntimeFailure where nothing answers.
    """
    base = server_url(url)
    body = {"prompt": [1], "max_tokens": 1, **({} if model is None else {"model": model})}
    try:
        with httpx.Client(headers=authorised(api_key), timeout=timeout_s, trust_env=not is_local(base)) as client:
            return client.post(f"{base}/v1/completions", json=body).status_code < 300
    except httpx.HTTPError as error:
        raise RuntimeFailure(f"no server answers at {base}: {str(error) or type(error).__name__}") from None


def _json(client: httpx.Client, url: str, *, required: bool) -> Any:
    """The document at a URL; None where there is none and none is required."""
    try:
        answer = client.get(url)
        if answer.status_code < 300:
            return answer.json()
    except httpx.HTTPError as error:
        raise RuntimeFailure(f"no server answers at {url}: {str(error) or type(error).__name__}") from None
    except ValueError:
        answer = None
    if not required:
        return None
    if answer is None:
        raise RuntimeFailure(f"{url} answered with no JSON: is it an OpenAI-compatible server?")
    reason = http_reason(answer.content)
    said = reason or "is it an OpenAI-compatible server?"
    raise RuntimeFailure(f"{url} answered HTTP {answer.status_code}: {said}")
