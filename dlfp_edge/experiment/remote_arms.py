"""Arms that answer over HTTP: llama-server beside us with our settings, and endpoints that run already."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.arms import Named, Others, Speed
from dlfp_edge.experiment.detect import detect, takes_ids
from dlfp_edge.experiment.dialect import DIALECTS
from dlfp_edge.experiment.endpoint import Endpoint, server_url
from dlfp_edge.experiment.peers import PeerSpec, start_peer
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.trial import Opened
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.runtime import Runtime, Tokenizer
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class

PAIR_SLOWDOWN = 1.75
"""What idle priority leaves of a decode's speed, about."""


@dataclass(frozen=True, slots=True)
class PeerOpener:
    """A llama-server, or a pair, with the model and settings of our own runtime, started for each trial.

    `fastest` decode threads are those of its solo.
    """

    spec: PeerSpec
    tokenizer: Tokenizer
    fastest: int | None = None

    @property
    def opening_s(self) -> float:
        return 8.0 if self.spec.pair else 1.5  # a pair's background is long in telling how far it has come

    @property
    def family(self) -> str:
        return "llama-server-pair" if self.spec.pair else "llama-server"

    def plain(self) -> PeerOpener:
        return replace(self, spec=replace(self.spec, n_batch=DEFAULT_N_BATCH, decode_threads=self.fastest))

    @contextmanager
    def open(self, workload: Workload) -> Iterator[Opened]:
        with start_peer(self.spec) as peer, Endpoint(peer.urls, dialect=DIALECTS["llama-server"]) as endpoint:
            yield Opened(endpoint, self.tokenizer, processes=tuple(peer.pids), describe=peer.describe())

    def expected_gap_s(self, speed: Speed) -> float:
        if self.spec.pair:
            return PAIR_SLOWDOWN * speed.decode_s
        return math.inf if self.spec.n_batch == DEFAULT_N_BATCH else speed.beside(self.spec.n_batch)

    def describe(self) -> dict[str, Any]:
        """Threads come from a probe and are not what makes the target what it is; in a pair they are in its name."""
        told = {name: value for name, value in asdict(self.spec).items() if name not in ("threads", "decode_threads")}
        return {**told, "server": _made(self.spec.binary)}


DEFAULT_N_BATCH = 2048
"""llama-server's own."""


def llama_servers(n_batches: tuple[int, ...], binary: Path | None) -> Others:
    """A sweep of llama-server over its `n_batch`: the one thing that bounds what a prompt does to others' tokens."""

    def make(runtime: Runtime, workload: Workload, context: int | None) -> list[Named]:
        spec = _spec(runtime, workload, context, binary)
        return [
            (
                f"llama-server -b {n}",
                PeerOpener(replace(spec, n_batch=n), runtime.tokenizer, spec.decode_threads),
                "llama-server",
            )
            for n in n_batches
        ]

    return make


def llama_server_pairs(binary: Path | None) -> Others:
    """Two llama-servers, the background's at idle priority, over what a careful user would try: decode threads."""

    def make(runtime: Runtime, workload: Workload, context: int | None) -> list[Named]:
        usual = _spec(runtime, workload, context, binary)
        # The least batch that costs nothing: the background tells how far it has come after each.
        spec = replace(usual, pair=True, n_batch=usual.n_ubatch)
        counts = sorted({1, max(1, spec.threads // 2), spec.threads})
        return [
            (
                f"llama-server-pair -t {threads}",
                PeerOpener(replace(spec, decode_threads=threads), runtime.tokenizer, usual.decode_threads),
                "llama-server-pair",
            )
            for threads in counts
        ]

    return make


@dataclass(frozen=True, slots=True)
class EndpointOpener:
    """A server that runs already. Prompts are ids of the tokenizer given, or text where it takes none."""

    url: str
    tokenizer: Tokenizer
    api_key: str | None = None
    opening_s: ClassVar[float] = 0.1

    @property
    def family(self) -> str:
        return self.url

    def plain(self) -> EndpointOpener:
        return self

    @contextmanager
    def open(self, workload: Workload) -> Iterator[Opened]:
        found = detect(self.url, api_key=self.api_key)
        ids = found.dialect.name == "llama-server" or takes_ids(self.url, found.model, api_key=self.api_key)
        described = {"url": self.url, "dialect": found.dialect.name, "model": found.model, "prompts": _SENT[ids]}
        text_of = None if ids else self._text_of
        with Endpoint(
            self.url, dialect=found.dialect, model=found.model, api_key=self.api_key, text_of=text_of
        ) as endpoint:
            yield Opened(endpoint, self.tokenizer, exact_prompts=ids, describe=described)

    def _text_of(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode(errors="replace")

    def expected_gap_s(self, speed: Speed) -> float:
        return math.inf

    def describe(self) -> dict[str, Any]:
        return {"url": self.url}


def _made(binary: Path | None) -> Any:
    """Which build of llama-server it is: a file by its size and time, or the package's version."""
    if binary is None:
        return version("xllamacpp")
    told = binary.stat()
    return {"bytes": told.st_size, "modified": told.st_mtime}


_SENT = {True: "token ids", False: "text"}


def endpoint_at(url: str, api_key: str | None = None) -> Others:
    """The server at a URL, asked with our model's token ids, or their text where it takes none.

    Raises UsageError for what is no URL.
    """
    base = server_url(url)
    return lambda runtime, workload, context: [(base, EndpointOpener(base, runtime.tokenizer, api_key), None)]


def _spec(runtime: Runtime, workload: Workload, context: int | None, binary: Path | None) -> PeerSpec:
    """Our runtime's settings as llama-server's. Raises UsageError where the runtime is not llama.cpp."""
    told, caps, usual = runtime.describe(), runtime.capabilities, sized(Settings(context=context), workload)
    if told.get("runtime") != "llama_cpp":
        raise UsageError("llama-server runs beside the llama_cpp runtime only: leave --peer out")
    if told["exact"]:
        raise UsageError("llama-server has no exact kernels: leave --peer out, or --exact")
    clients = {member: sum(s.clients or s.requests or 1 for s in workload.of_class(member)) for member in Class}
    foreground = min(clients[Class.FOREGROUND], usual.foreground_sequences)
    background = min(clients[Class.BACKGROUND], usual.background_sequences)
    return PeerSpec(
        model=Path(told["model"]["path"]),
        threads=caps.prefill_threads,
        decode_threads=min(caps.decode_s_by_threads, key=caps.decode_s_by_threads.__getitem__, default=None),
        context=usual.context or caps.context,
        slots=max(1, foreground + background),
        n_batch=DEFAULT_N_BATCH,
        n_ubatch=caps.ubatch,
        kv_type=told["kv_type"],
        flash_attention=told["flash_attention"],
        swa_full=not told["windowed"],
        binary=binary,
        gpu_layers=told["gpu_layers"],
    )
