"""The port to runtimes: what the engine asks of whatever executes a step, and what it gets back.

A *runtime* holds one set of weights. It opens one or more *lanes*; a lane is a context with its own KV cache and its
own driver that executes one step after another. Lanes of one runtime run at the same time. A *step* is one iteration
of one lane: some segments of some sequences. The engine is one thread; drivers only execute and post results.

Adapters live outside the core and come through the entry-point group `dlfp_edge.runtimes`; each entry is a
`RuntimeProvider`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dlfp_edge.clock import Clock
from dlfp_edge.errors import UsageError
from dlfp_edge.given import check_number
from dlfp_edge.grammar import compile_grammar
from dlfp_edge.model_reference import HubModel

PREVIOUS = -1
"""A token still on the device: the one the sequence's step in flight will produce (runtimes of depth > 1)."""


class Priority(str, Enum):
    """Which of two lanes the system should run when it cannot run both."""

    NORMAL = "normal"
    LOWEST = "lowest"


class Basis(str, Enum):
    """How a runtime knows that a step was complete."""

    SYNCHRONOUS = "synchronous return"
    DEVICE_EVENT = "device event"
    CALLBACK = "completion callback"
    CADENCE = "scheduler cadence"


class Interruptible(str, Enum):
    """Where a running step can be stopped."""

    NO = "no"
    SEGMENTS = "between segments"
    CALLS = "between calls of a few milliseconds"
    NODES = "between nodes"


class Rollback(str, Enum):
    """How far back a sequence's cells can be dropped and the rest go on to be used."""

    ANY = "any"
    WINDOW = "window"
    NONE = "none"


class Output(str, Enum):
    """What a step is to return for one position."""

    TOKEN = "token"
    EMBEDDING = "embedding"


class Pooling(str, Enum):
    """Which of a text's final hidden states make its embedding."""

    NONE = "none"
    MEAN = "mean"
    LAST = "last"


MOST_LOGPROBS = 20
"""How many of the likeliest tokens a log-probability can be asked for."""

LARGEST_BIAS = 100.0
"""The most that may be added to a logit; with a minus it forbids the token."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """How likely a token was, by the model alone: natural logarithms of the softmax of its logits.

    `chosen` is that of the token itself, `top` the ids and logarithms of the likeliest tokens, likeliest first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


NOT_CHOSEN = Logprobs(0.0, ())
"""That of a token the model was not asked about: one of the end that a grammar gives an answer cut short."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of one sequence are chosen. `temperature` 0 is greedy, and then the other filters do nothing.

    `top_k` 0 keeps every candidate. `seed` None takes a fresh random state. `ignore_eos` forbids every
    end-of-generation token, `min_tokens` those among the first so many tokens. `logit_bias` adds to the logits of token
    ids before anything else looks at them; -100 forbids a token outright, 100 outweighs what any model says. `logprobs`
    asks for the log-probability of each token and of so many of the likeliest ones, by the model alone: before bias,
    forbidden tokens, grammar and temperature.

    `grammar` (GBNF, beginning with the rule `root`) is what the answer must follow, to its end: an answer that
    `max_tokens` cuts ends with the shortest end of its text, the tokens of which nobody chose (`NOT_CHOSEN`). A grammar
    comes before what forbids tokens: one that can only end has ended, whatever `ignore_eos` and `min_tokens` say, and
    forbidden tokens are said where it allows no others, and in the end that `max_tokens` forces.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for what no sampler can apply."""
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_k", self.top_k, 0, 2**31 - 1, whole=True)
        check_number("top_p", self.top_p, 0.001, 1)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repeat_penalty", self.repeat_penalty, 0.01, 100)
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise UsageError(f"seed is {self.seed!r}: give a whole number, or None for a different answer each time")
        if not isinstance(self.ignore_eos, bool):
            raise UsageError(f"ignore_eos is {self.ignore_eos!r}: give True or False")
        check_number("min_tokens", self.min_tokens, 0, 2**31, whole=True)
        if self.logprobs is not None:
            check_number("logprobs", self.logprobs, 0, MOST_LOGPROBS, whole=True)
        self._check_bias()
        if self.grammar is not None:
            if not isinstance(self.grammar, str):
                raise UsageError(f"grammar is {self.grammar!r}: give the text of one")
            compile_grammar(self.grammar)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise UsageError(f"logit_bias is {self.logit_bias!r}: give a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            check_number("a token id of logit_bias", token, 0, 2**31 - 1, whole=True)
            check_number(f"the logit_bias of token {token}", bias, -LARGEST_BIAS, LARGEST_BIAS)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # what the caller's becomes later is not asked


def check_sampling(sampling: object) -> None:
    """Raises UsageError for what is no `Sampling`."""
    if not isinstance(sampling, Sampling):
        raise UsageError(f"sampling is {sampling!r}: give a dlfp_edge.Sampling")


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """What a lane is to be.

    `sequences` is how many KV sequences it can hold at once (ids 0 to sequences - 1), `context` the cells they share.
    `cores` restricts the lane's threads to those CPUs; None leaves them to the system. `threads_invariant` asks for
    output ids that do not depend on the thread count of decode steps, which may cost speed.
    """

    name: str
    priority: Priority
    sequences: int
    context: int
    cores: tuple[int, ...] | None = None
    threads_invariant: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of consecutive tokens of one sequence.

    `start` is the KV cell of the first token and must equal the cells the sequence holds (or will hold, once the step
    in flight completes). `outputs` maps absolute positions in [start, start + len(tokens)) to what is wanted there.
    """

    sequence: int
    start: int
    tokens: tuple[int, ...]
    outputs: Mapping[int, Output] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


class Content(Protocol):
    """KV cells of a sequence in host memory, in whatever form the runtime writes and reads them."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """Cells [start, end) of a sequence, to copy into host memory (`content` None) or back from it.

    Cells are put back at the end of what the sequence holds: `start` must equal that.
    """

    sequence: int
    start: int
    end: int
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of one lane. At most one segment per sequence; `threads` are CPU threads to run it on.

    A step with a `transfer` has no segments: the lane copies KV cells instead.
    """

    segments: tuple[Segment, ...]
    threads: int
    transfer: Transfer | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of all segments together."""
        return sum(len(segment.tokens) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What became of one segment.

    Every input token before `start + consumed` is in the KV cache for certain and its requested outputs are in `tokens`
    (position -> sampled token id), and in `logprobs` where the sequence's sampling asks for them, or summed up in
    `embedding` (final hidden states). What an interruption or error made uncertain has been removed from the cache by
    the runtime, so `consumed` may be less than was executed. `completed` is when this segment was done (runtimes that
    run segments one after another deliver each at its own time). `error` set: this segment failed, the others did not.
    """

    consumed: int
    tokens: Mapping[int, int]
    completed: float
    error: str | None = None
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)
    embedding: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that ended: completed, interrupted or failed.

    `submitted` and `completed` are seconds on `clock`; `completed` is when the device had finished, `basis` how that is
    known. `sampling_s` is the time from there until tokens were available. `lost` names sequences whose KV content is
    all gone; the engine starts them again from their first token. `content` is what a transfer has copied out.
    """

    lane: str
    handle: int
    step: Step
    segments: tuple[SegmentResult, ...]
    submitted: float
    completed: float
    sampling_s: float
    clock: str
    basis: Basis
    interrupted: bool = False
    error: str | None = None
    lost: tuple[int, ...] = ()
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do.

    lanes           how many lanes may run at the same time; 1 where work shares one queue
    batched         a step runs as one batch; otherwise its segments run one after another, decodes first
    depth           steps a lane may have submitted at once; above 1 a decode's token may be `PREVIOUS`
    sequences       most sequences a lane can hold
    context         most KV cells a lane can hold; `sequence_context` most for one sequence (the model's own limit)
    largest_step    most tokens in one step
    ubatch          tokens executed between two points where finished work is safe from an interruption
    tile            total tokens of a step at a multiple of this run efficiently; 1 means no preference
    min_chunk       shortest prefill segment the runtime may be given (a prompt's tail is merged to honour it)
    interruptible   where a running step can be stopped
    fork            sequences of a lane can share a prefix without copying it
    save            KV cells can be copied to host memory and back (`Transfer`)
    rollback        how far back the cells of a sequence can be dropped
    pooling         how embeddings are made of hidden states; none: the runtime gives no embeddings
    outputs         most outputs in one step
    schedule_invariant   output ids do not depend on chunking or on what else is in a step
    decode_threads, prefill_threads   the thread counts to begin with, from the runtime's own probe
    decode_s_by_threads   decode-only step time, one sequence, short context, by thread count; empty if not probed
    decodes_s       the same for several sequences in one step, by threads and their number, for as many as were probed
    decode_s_per_cell   seconds that a decode-only step takes longer, on the count fastest for one sequence, for each KV
                    cell it reads, by number of sequences; of a lane opened `threads_invariant`; may be empty
    stretch_beside   how many times as long decodes take beside the other lane, by threads and sequences; may be empty
    threads_invariant   a lane opened so decodes to the same ids on any thread count
    prefill_tokens_per_s   isolated prefill rate at `prefill_threads`; None if not probed
    priority        what lane priority means here, for people ("thread: SCHED_IDLE", "none")
    priority_effective   whether the probe saw the lower priority work; None where it was not probed
    """

    lanes: int
    batched: bool
    depth: int
    sequences: int
    context: int
    sequence_context: int
    largest_step: int
    ubatch: int
    tile: int
    min_chunk: int
    interruptible: Interruptible
    fork: bool
    save: bool
    rollback: Rollback
    pooling: Pooling
    outputs: int
    schedule_invariant: bool
    decode_threads: int
    prefill_threads: int
    decode_s_by_threads: Mapping[int, float]
    decodes_s: Mapping[int, Mapping[int, float]]
    decode_s_per_cell: Mapping[int, float]
    stretch_beside: Mapping[int, Mapping[int, float]]
    threads_invariant: bool
    prefill_tokens_per_s: float | None
    priority: str
    priority_effective: bool | None

    @property
    def decode_s(self) -> float | None:
        """Decode-only step time at `decode_threads`; None if not probed."""
        return self.decode_s_by_threads.get(self.decode_threads)


class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocabulary: int

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with whatever the model wants at the start of a sequence.

        Raises UsageError where the model has no tokenizer.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for; may be part of a character. Empty for control tokens."""
        ...

    def spell(self, data: bytes) -> list[int]:
        """Token ids that stand for exactly these bytes, not more of them than bytes; characters may be cut.

        Raises UsageError where the vocabulary cannot spell every text.
        """
        ...

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        ...


class Lane(Protocol):
    """A context that executes its own steps in its own driver. All methods are called from the engine's thread.

    `open`, `adopt`, `close`, `truncate` and `fork` may be called while a step is in flight, but only for sequences
    outside it; they take effect before the next step. `sequence_context` is the most KV cells one sequence can hold.
    `reads_all` says that a step reads every KV cell in use, those of sequences outside it too.
    """

    spec: LaneSpec
    sequence_context: int
    reads_all: bool

    def submit(self, step: Step) -> int:
        """Queue a step and return its handle at once; the result comes from `Runtime.wait`.

        Raises ValueError for a step the capabilities rule out. A step that does not fit the KV cache is refused through
        its result's `error`, with every sequence as it was.
        """
        ...

    def interrupt(self, handle: int) -> None:
        """Ask that the step stop as soon as it can; a step that has ended or cannot be stopped is left alone."""
        ...

    def pin(self, cores: Sequence[int] | None) -> None:
        """Restrict the lane's threads to these CPUs from now on, mid-step too; None lifts the restriction."""
        ...

    def open(self, sequence: int, sampling: Sampling) -> None:
        """Start an empty sequence under this id, with its own sampler state."""
        ...

    def adopt(self, sequence: int, sampling: Sampling) -> None:
        """Give an open sequence a new sampler state; its cells stay."""
        ...

    def close(self, sequence: int) -> None:
        """End a sequence and free its KV cells; an id that is not open is ignored."""
        ...

    def keeps(self, sequence: int, length: int) -> bool:
        """Whether the first `length` cells of a sequence would be whole after a `truncate` or `fork` to them.

        Always so under `Rollback.ANY`; a cache that drops what has left a sliding window may have lost some.
        """
        ...

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` cells of a sequence; 0, or a length that it `keeps`."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Give `target` (open and empty) the first `length` cells of `source`."""
        ...

    def kv_used(self) -> int:
        """KV cells in use, shared cells counted once."""
        ...

    def cpu_s(self) -> float | None:
        """CPU-seconds this lane's threads have used so far; None where the system does not say."""
        ...

    def shut(self) -> None:
        """Interrupt what runs, stop the driver and free the context."""
        ...


@runtime_checkable
class ReportsThreads(Protocol):
    """A lane that can say what its threads do; not every system tells."""

    def thread_states(self) -> Mapping[str, int] | None:
        """How many of the lane's compute threads are "ready" (on a CPU or waiting for one), "disk" or "asleep".

        None where the system does not say.
        """
        ...


def refuse_lane(spec: LaneSpec, taken: Sequence[str], most: int) -> None:
    """Raises UsageError unless one more lane can be open beside those `taken`: results are told apart by its name."""
    if spec.name in taken or len(taken) >= most:
        raise UsageError(
            f"lane '{spec.name}' cannot be opened beside {', '.join(taken)} ({most} at most, each once): "
            "close the engine that has them first"
        )


class Runtime(Protocol):
    """One set of weights, and the lanes over it."""

    capabilities: Capabilities
    clock: Clock
    tokenizer: Tokenizer

    def open_lane(self, spec: LaneSpec) -> Lane:
        """Open a lane. Raises UsageError when the memory, the runtime or a lane that is open does not allow it."""
        ...

    def wait(self, until: float | None) -> list[StepResult]:
        """Block until a step of any lane has ended, `wake` was called, or the clock reads `until` (None: no limit)."""
        ...

    def wake(self) -> None:
        """Make a running or the next `wait` return at once; callable from any thread."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a manifest should say: versions, model, hash, threads, priorities obtained. JSON values only."""
        ...

    def close(self) -> None:
        """Shut every lane and free the weights."""
        ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a runtime.

    `model` None takes the provider's default. `cpus` are the CPUs threads may use and `cpu_limit` how many of them at
    once (cgroup quota included). `threads` overrides the probe's prefill threads and bounds the decode threads. `known`
    are the capabilities an earlier load with these options found here: nothing is measured again.
    """

    model: Path | None
    cpus: tuple[int, ...]
    cpu_limit: int
    threads: int | None = None
    exact: bool = False
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    known: Capabilities | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for threads that no runtime can have."""
        if self.threads is not None:
            check_number("threads", self.threads, 1, 2**31, whole=True)


Tell = Callable[[str, int, int], None]
"""Called while a file is fetched: its name, the bytes that are here, and the bytes of all of it."""


class RuntimeProvider(Protocol):
    """What an entry point in `dlfp_edge.runtimes` gives."""

    name: str

    def fetch(self, model: HubModel, tell: Tell | None = None) -> Path:
        """The file of a model on a hub, fetched unless it is here already.

        Raises UsageError for what is not there or may not be had, FetchError where it cannot be fetched now.
        """
        ...

    def load(self, options: LoadOptions) -> Runtime:
        """Load a model. Raises UsageError with one line that names the file and the mend."""
        ...
