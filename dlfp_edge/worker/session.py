"""The worker's side of one connection: a front's engine, from its hello until it has gone."""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from dlfp_edge.engine import Engine
from dlfp_edge.errors import DlfpError, EngineClosed, UsageError
from dlfp_edge.handle import Task
from dlfp_edge.plugins import detect_device, load, runtime_names
from dlfp_edge.runtime import Runtime
from dlfp_edge.task import Class, TaskRecord
from dlfp_edge.worker.messages import CAPABILITIES, LIMITS, OPTIONS, SETTINGS, SNAPSHOT, SPEC
from dlfp_edge.worker.outbox import Outbox
from dlfp_edge.worker.protocol import Message, ProtocolError, Wire, check_hello, hello

ANSWERING = 4
"""Questions that are answered at once."""


class Session:
    """Serves one front. With a `secret`, only one that knows it."""

    def __init__(self, wire: Wire, secret: str | None = None) -> None:
        self._wire = wire
        self._secret = secret
        self._engine: Engine | None = None
        self._runtime: Runtime | None = None
        self._outbox: Outbox | None = None
        self._opening: threading.Thread | None = None
        self._tasks: dict[str, Task] = {}
        self._answering = ThreadPoolExecutor(ANSWERING, "dlfp-worker-answer")
        self._told = 0
        self._broken = False

    @property
    def loading(self) -> bool:
        """Whether the model is being loaded."""
        return self._opening is not None and self._opening.is_alive()

    def run(self) -> bool:
        """Serve until the front closes (True) or has gone; `close` comes next.

        Raises ProtocolError, once the front knows.
        """
        try:
            self._greet(self._wire.receive())
            while (message := self._wire.receive()) is not None:
                if message["kind"] == "close":
                    return True
                self._handle(message)
        except ProtocolError as error:
            with contextlib.suppress(OSError, ValueError):
                self._wire.send("failed", blame="protocol", error=str(error))
            raise
        except OSError:
            """The front has gone while it was answered."""
        return False

    def close(self) -> None:
        """Cancel what is left, tell how it ended, and free the model."""
        if self._opening is not None:
            self._opening.join()
        self._answering.shutdown(cancel_futures=True)
        if self._engine is not None:
            self._engine.close()
        if self._outbox is not None:
            self._outbox.close()
        if self._runtime is not None:
            self._runtime.close()
        with contextlib.suppress(OSError, ValueError):
            self._wire.send("closed")

    def _greet(self, message: Message | None) -> None:
        self._wire.send("hello", **hello(), now=time.monotonic(), pid=os.getpid(), runtimes=runtime_names())
        theirs = check_hello(message, "front")
        if self._secret is not None and not hmac.compare_digest(
            self._secret.encode(), str(theirs.get("secret")).encode()
        ):
            raise ProtocolError("the front does not know this worker's secret: set DLFP_EDGE_WORKER_SECRET for both")

    def _handle(self, message: Message) -> None:
        kind = message["kind"]
        handlers: dict[str, Callable[[Message], None]] = {
            "open": self._open,
            "submit": self._submit,
            "cancel": self._cancel,
            "hold": self._hold,
            "forget": self._forget,
            "ask": self._ask,
            "ping": self._ping,
        }
        if kind not in handlers:
            raise ProtocolError(f"a message of the unknown kind '{kind[:40]}'")
        try:
            handlers[kind](message)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a '{kind}' message that cannot be read: {error!r}") from None

    # --- loading -------------------------------------------------------------------------------------------------

    def _open(self, message: Message) -> None:
        """Load in a thread of its own, so that pings are answered meanwhile."""
        if self._opening is not None:
            raise ProtocolError("a second 'open': one connection has one engine")
        self._opening = threading.Thread(target=self._load, args=(message,), name="dlfp-worker-open", daemon=True)
        self._opening.start()

    def _load(self, message: Message) -> None:
        began = time.monotonic()
        try:
            self._load_engine(message)
            reply = {"kind": "ready", **self._describe(), "load_s": time.monotonic() - began}
        except UsageError as error:
            reply = {"kind": "failed", "blame": "usage", "error": str(error)}
        except Exception as error:
            text = str(error) if isinstance(error, DlfpError) else f"{type(error).__name__}: {error}"
            reply = {"kind": "failed", "blame": "engine", "error": text}
        with contextlib.suppress(OSError, ValueError):
            self._wire.send(**reply)

    def _load_engine(self, message: Message) -> None:
        topology = detect_device().cpu()
        options = replace(OPTIONS.decode(message["load"]), cpus=topology.usable, cpu_limit=topology.limit)
        runtime = load(str(message["runtime"]), options)
        try:
            if runtime.clock.name == "virtual":
                raise UsageError("a worker needs real time: give the simulated runtime the option clock=real")
            engine = Engine(runtime, SETTINGS.decode(message["settings"]), topology)
        except BaseException:
            runtime.close()
            raise
        self._runtime = runtime
        self._outbox = Outbox(self._wire, runtime.tokenizer, self._tell_messages)
        self._engine = engine
        engine.start()

    def _describe(self) -> dict[str, Any]:
        runtime, engine = self._runtime, self._engine
        assert runtime is not None
        assert engine is not None
        tokenizer = runtime.tokenizer
        self._told = len(engine.messages)
        return {
            "placement": engine.placement.value,
            "controller": engine.controller_name,
            "capabilities": CAPABILITIES.encode(runtime.capabilities),
            "limits": LIMITS.encode(engine.limits),
            "end_tokens": [token for token in range(tokenizer.vocabulary) if tokenizer.is_end(token)],
            "snapshot": SNAPSHOT.encode(engine.snapshot()),
            "messages": engine.messages[: self._told],
        }

    # --- requests ------------------------------------------------------------------------------------------------

    def _submit(self, message: Message) -> None:
        engine, outbox = self._opened()
        name = str(message["task"])
        try:
            spec = SPEC.decode(message["spec"])
            task = engine.submit(
                spec,
                arrived=float(message["arrived"]),
                on_token=None if spec.task_class is Class.BACKGROUND else lambda r, at: outbox.released(name, r, at),
                on_finish=lambda record: self._ended(name, record),
            )
        except EngineClosed as error:
            self._break(str(error))
        except DlfpError as error:
            self._wire.send("refused", task=name, error=str(error))
        else:
            self._tasks[name] = task
            if task.done:
                self._tasks.pop(name, None)
            self._wire.send("accepted", task=name)

    def _cancel(self, message: Message) -> None:
        task = self._tasks.get(str(message["task"]))
        if task is not None:
            task.cancel()

    def _hold(self, message: Message) -> None:
        self._opened()[0].hold_background(bool(message["held"]))

    def _forget(self, message: Message) -> None:
        if self._engine is not None:  # one that is still being opened keeps nothing
            self._engine.forget_prefixes()

    def _ping(self, message: Message) -> None:
        """Answer from the engine's own thread, if it is there: one that hangs must not look alive."""
        engine, outbox = self._engine, self._outbox
        if engine is None or outbox is None:
            self._wire.send("pong")
        else:
            engine.call_at(engine.clock.now(), lambda: outbox.say("pong"))

    def _ask(self, message: Message) -> None:
        """Answer from a thread of its own: a long text or a model's hash takes seconds, and pings go on meanwhile."""
        engine, _ = self._opened()
        number, what = int(message["ask"]), str(message["what"])
        answers: dict[str, Callable[[], Any]] = {
            "snapshot": lambda: SNAPSHOT.encode(engine.snapshot()),
            "describe": lambda: to_jsonable_python(engine.runtime.describe()),
            "encode": lambda: engine.runtime.tokenizer.encode(str(message["text"])),
            "bytes": lambda: engine.runtime.tokenizer.token_bytes(int(message["token"])).decode("latin-1"),
            "spell": lambda: engine.runtime.tokenizer.spell(str(message["data"]).encode("latin-1")),
            "check": lambda: engine.check(SPEC.decode(message["spec"])),
        }
        if what not in answers:
            raise ProtocolError(f"a question of the unknown kind '{what[:40]}'")
        self._answering.submit(self._answer, number, answers[what])

    def _answer(self, number: int, answer: Callable[[], Any]) -> None:
        try:
            reply = {"value": answer()}
        except Exception as error:
            reply = {"error": str(error) if isinstance(error, DlfpError) else f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError, ValueError):
            self._wire.send("answer", ask=number, **reply)

    def _opened(self) -> tuple[Engine, Outbox]:
        if self._engine is None or self._outbox is None:
            raise ProtocolError("a request before the engine was open")
        return self._engine, self._outbox

    # --- what the engine's threads tell --------------------------------------------------------------------------

    def _ended(self, name: str, record: TaskRecord) -> None:
        """A task has ended; those that an engine's failure ends are for the next worker to do."""
        engine, outbox = self._opened()
        self._tasks.pop(name, None)
        if engine.failure is not None:
            self._break(f"the engine failed: {engine.failure}")
        else:
            outbox.finished(name, record)

    def _break(self, error: str) -> None:
        if not self._broken:
            self._broken = True
            self._opened()[1].say("failed", blame="engine", error=error)

    def _tell_messages(self) -> None:
        if self._engine is None or self._outbox is None:
            return
        new = self._engine.messages[self._told :]
        self._told += len(new)
        for text in new:
            self._outbox.say("notice", text=text)
