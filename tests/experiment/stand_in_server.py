"""A server on loopback that answers as a test says: in either dialect, badly, or not at all."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

STALL = None
"""In an answer: say nothing more, and keep the connection open."""

Part = bytes | None


@dataclass
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class StandIn:
    """A context manager; `answer` makes the parts of the response to each request, head included.

    `closed` is set whenever a client hangs up during a stall.
    """

    answer: Callable[[Asked], Sequence[Part]]
    asked: list[Asked] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __enter__(self) -> StandIn:
        self._loop = asyncio.new_event_loop()
        listening = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()
        assert listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._handle, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            self.asked.append(asked)
            for part in self.answer(asked):
                if part is STALL:
                    await reader.read()
                    self.closed.set()
                    break
                writer.write(part)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    request = (await reader.readline()).split()
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(request[1].decode(), headers, json.loads(body) if body else None)


def head(status: int = 200, kind: str = "text/event-stream", *, chunked: bool = False) -> bytes:
    """A response's head; its end is the end of the connection, or of its chunks."""
    framing = "Transfer-Encoding: chunked\r\n" if chunked else ""
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{framing}\r\n".encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: object) -> bytes:
    """An event of a stream."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def refusal(status: int, message: str) -> list[Part]:
    """An error as such servers send it."""
    return [head(status, "application/json"), json.dumps({"error": {"code": status, "message": message}}).encode()]


def openai_token(text: str, ids: list[int] | None = None, finish: str | None = None) -> bytes:
    """A piece of an answer; `ids` as vLLM names them."""
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    return event({"object": "text_completion", "choices": [choice], "usage": None})


def openai_usage(prompt: int, output: int) -> bytes:
    """The counts at the end."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


def openai_answer(asked: Asked, *, ids: bool = True) -> list[Part]:
    """As many tokens as were asked for, one an event."""
    count = asked.body["max_tokens"]
    tokens = [openai_token(f" t{n}", [n] if ids else None) for n in range(count - 1)]
    last = openai_token(" end", [count - 1] if ids else None, "length")
    return [head(), *tokens, last, openai_usage(len(asked.body["prompt"]), count), DONE]


def llama_progress(processed: int, total: int) -> bytes:
    """llama-server's word on a prompt; it names a token 0 that is none."""
    progress = {"total": total, "cache": 0, "processed": processed, "time_ms": 1}
    return event(
        {"content": "", "tokens": [0], "stop": False, "tokens_predicted": 0, "prompt_progress": progress, "timings": {}}
    )


def llama_token(text: str, token: int, generated: int, ms: float = 0.0) -> bytes:
    """llama-server's word on a token: its id, and how many there are by now."""
    timings = {"predicted_n": generated, "predicted_ms": ms}
    return event({"content": text, "tokens": [token], "stop": False, "tokens_predicted": generated, "timings": timings})


def llama_end(prompt: int, output: int, kind: str = "limit", text: str = "") -> bytes:
    """llama-server's last word."""
    counts = {"tokens_predicted": output, "tokens_evaluated": prompt}
    return event({"content": text, "tokens": [], "stop": True, "stop_type": kind, "stopping_word": "", **counts})


def llama_answer(asked: Asked) -> list[Part]:
    """As many tokens as were asked for, one an event."""
    count, prompt = asked.body["n_predict"], len(asked.body["prompt"])
    tokens = [llama_token(f" t{n}", n, n + 1, 10.0 * n) for n in range(count)]
    return [head(), llama_progress(0, prompt), llama_progress(prompt, prompt), *tokens, llama_end(prompt, count)]


def server_answer(asked: Asked, *, n_vocab: int | None = 1000, native: bool = True) -> list[Part]:
    """A whole server: what it is, and answers in both dialects."""
    if asked.path == "/v1/models":
        meta = {} if n_vocab is None else {"meta": {"n_vocab": n_vocab}}
        return [head(kind="application/json"), json.dumps({"data": [{"id": "stand-in", **meta}]}).encode()]
    if asked.path == "/props" and native:
        return [head(kind="application/json"), json.dumps({"default_generation_settings": {}}).encode()]
    if asked.path == "/completion" and native:
        return llama_answer(asked)
    if asked.path == "/v1/completions":
        return openai_answer(asked)
    return refusal(404, "not found")
