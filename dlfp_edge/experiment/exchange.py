"""One request over HTTP, as the events of its answer and the moments at which they were read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import httpx

from dlfp_edge.clock import Clock
from dlfp_edge.experiment.dialect import http_reason
from dlfp_edge.experiment.sse import EventReader

_REFUSAL_BYTES = 64 << 10


class ExchangeFailed(Exception):
    """The request was refused, or its answer broke off; the message says how, in one line."""


async def events(
    client: httpx.AsyncClient, url: str, body: Mapping[str, Any], clock: Clock, answered: Callable[[int], None]
) -> AsyncGenerator[tuple[float, bytes], None]:
    """The events of the answer, each with the time at which its last byte was read, before anything was parsed.

    `answered` gets the HTTP status. Raises ExchangeFailed.
    """
    reader = EventReader()
    try:
        async with client.stream("POST", url, json=body) as response:
            answered(response.status_code)
            await _check(response)
            async for chunk in response.aiter_raw():
                now = clock.now()
                for event in reader.feed(chunk):
                    yield now, event
    except httpx.ConnectTimeout:
        raise ExchangeFailed(f"{url} took too long to accept a connection") from None
    except httpx.ConnectError as error:
        raise ExchangeFailed(f"cannot reach {url}: {_said(error)}") from None
    except httpx.HTTPError as error:
        raise ExchangeFailed(f"the connection broke: {_said(error)}") from None
    except ValueError as error:
        raise ExchangeFailed(f"no stream of events: {error}") from None


async def _check(response: httpx.Response) -> None:
    """Raises ExchangeFailed unless a stream of events follows."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    if response.status_code < 300 and kind == "text/event-stream":
        return
    said = bytearray()
    with contextlib.suppress(httpx.HTTPError):  # the status says enough
        async for chunk in response.aiter_raw():
            said += chunk
            if len(said) > _REFUSAL_BYTES:
                break
    reason = http_reason(bytes(said))
    if response.status_code < 300:
        raise ExchangeFailed(f"answered {kind or 'something without a type'}, not a stream of events: {reason[:100]}")
    raise ExchangeFailed(f"HTTP {response.status_code}{': ' if reason else ''}{reason}")


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
