"""An HTTP endpoint as a target for load: requests go out and tokens come back in one thread, by the client's clock."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.errors import EngineClosed, UsageError
from dlfp_edge.experiment.dialect import Dialect
from dlfp_edge.experiment.exchange import events
from dlfp_edge.experiment.remote import Presence, RemoteRecord, RemoteRequest
from dlfp_edge.given import check_arrival, check_not_in, check_number
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskSpec

_log = logging.getLogger(__name__)

CONNECT_S = 10.0
"""How long a server may take to accept a connection."""

SILENCE_S = 600.0
"""How long a request may wait for the next word: for its turn too, where the server has a queue."""


class Endpoint:
    """A `dlfp_edge.experiment.client.LoadTarget` that answers over HTTP; a context manager that starts and closes it.

    `urls` is the server's, or one for each class. `text_of` turns a prompt's ids into the text to send instead, for
    servers that take no ids. Each request has a connection of its own, so that none holds a server's thread while idle;
    connecting counts as part of its latency. Every callback and every action of `call_at` runs in the endpoint's
    thread. `failure` is what an action raised: nothing further can be relied on then.

    Raises UsageError for a URL that is none.
    """

    def __init__(
        self,
        urls: str | Mapping[Class, str],
        *,
        dialect: Dialect,
        model: str | None = None,
        api_key: str | None = None,
        text_of: Callable[[Sequence[int]], str] | None = None,
        connect_s: float = CONNECT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        given = dict.fromkeys(Class, urls) if isinstance(urls, str) else urls
        self.urls = {task_class: server_url(given[task_class]) for task_class in Class}
        self.dialect = dialect
        self.model = model
        self.clock: Clock = SystemClock()
        self.failure: Exception | None = None
        self._text_of = text_of
        self._silence_s = silence_s
        self._client = _client(self.urls.values(), api_key, connect_s)
        self._loop = asyncio.new_event_loop()
        self._presence = Presence()
        self._numbers = itertools.count()
        self._live: dict[str, RemoteRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send. What was submitted before goes out now."""
        self._thread = threading.Thread(target=self._run, name="endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel what is under way, so that every record ends, and close every connection; safe to repeat.

        Raises UsageError in a callback, whose thread this waits for.
        """
        check_not_in(self._thread)
        if self._loop.is_closed():
            return
        if self._thread is None:
            self.start()
        assert self._thread is not None
        self._post(self._begin_close)
        self._thread.join()

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for a request that the dialect cannot carry, or that no server could run."""
        check_number("max_tokens", spec.max_tokens, 1, 1e9, whole=True)
        if not spec.prompt:
            raise UsageError("the prompt is empty: give it at least one token")
        self.dialect.check(spec)

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> RemoteRequest:
        """Send a request, from any thread; `arrived` is its scheduled arrival, by default now.

        Whatever becomes of it, it ends with a record. Raises UsageError as `check` does; EngineClosed after `close`.
        """
        self.check(spec)
        if arrived is not None:
            check_arrival(arrived)
        if self._closed:
            raise EngineClosed("the endpoint is closed: open another")
        record = RemoteRecord(
            request_id=f"e{next(self._numbers)}",
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=self.clock.now() if arrived is None else arrived,
            pace=spec.pace,
        )

        def ended(record: Any) -> None:
            self._live.pop(record.request_id, None)
            if on_finish is not None:
                on_finish(record)

        request = RemoteRequest(
            spec, record, self.dialect, self.clock, self._loop, self._presence, self._cancel, on_token, ended
        )
        self._post(lambda: self._begin(request))
        return request

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` in the endpoint's thread when its clock reads `when`, which is that of the loop too."""
        self._post(lambda: self._loop.call_at(when, self._act, action))

    def _post(self, action: Callable[[], object]) -> None:
        """Have the loop run something. Once it is closed, nothing is left that anything could be done to."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    # Everything below runs in the loop's thread.

    def _begin(self, request: RemoteRequest) -> None:
        if self._closed:
            request.end(Finish.CANCELLED)
        if request.record.finish is not None:
            return
        self._live[request.request_id] = request
        spec, record = request.spec, request.record
        prompt = list(spec.prompt) if self._text_of is None else self._text_of(spec.prompt)
        body = self.dialect.body(spec, prompt, self.model)
        url = self.urls[spec.task_class] + self.dialect.path

        def answered(status: int) -> None:
            record.http_status = status

        self._keep(request.begin(events(self._client, url, body, self.clock, answered), self._silence_s))

    def _cancel(self, request: RemoteRequest) -> None:
        self._post(lambda: request.end(Finish.CANCELLED))

    def _act(self, action: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            action()
        except Exception as error:
            _log.error("an action at the endpoint failed", exc_info=error)
            self.failure = self.failure or error

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin_close(self) -> None:
        if not self._closed:
            self._closed = True
            for request in list(self._live.values()):
                request.end(Finish.CANCELLED)
            self._closing = self._loop.create_task(self._shut())

    async def _shut(self) -> None:
        """Stop the loop once every connection is closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        self._loop.stop()


def server_url(url: str) -> str:
    """The server's address without the path of an API. Raises UsageError for what is no http or https URL."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"'{url}' is no endpoint: give a URL such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def authorised(api_key: str | None) -> dict[str, str]:
    """The headers of a request with an API key."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _client(urls: Iterable[str], api_key: str | None, connect_s: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={"Accept": "text/event-stream", "Accept-Encoding": "identity", **authorised(api_key)},
        timeout=httpx.Timeout(None, connect=connect_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        trust_env=not all(map(is_local, urls)),  # no proxy lies between this machine and itself
    )
