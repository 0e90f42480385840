"""Tasks: what is asked, how it went, and the handle a caller holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from dlfp_edge.runtime import Logprobs, Sampling


class Class(str, Enum):
    """Whether somebody is watching."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


class Finish(str, Enum):
    """Why a task ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What is asked of the engine.

    `pace` (tokens/s) releases tokens to the reader on that schedule (see `dlfp_edge.playout`); None shows them as they
    come. `deadline_s` counts from arrival: a task that has not ended by then ends with `Finish.DEADLINE`. The answer
    ends before the first of the strings `stop` in its text, whatever else ends it or not. With `embed` the prompt is a
    text whose embedding is wanted; nothing is generated.
    """

    prompt: tuple[int, ...]
    task_class: Class = Class.FOREGROUND
    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    pace: float | None = None
    deadline_s: float | None = None
    embed: bool = False
    label: str = ""
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskRecord:
    """How a task went. Times are seconds on the engine's clock.

    `arrived` is the scheduled arrival where there was a schedule. `token_times` are when each token became available,
    `shown_times` when it was released to the reader (the same without a pace). `contended[i]` says whether background
    work existed at any moment between token i-1 (or the arrival) and token i. `cached_prompt_tokens` were there
    already, from a task whose prompt begins the same. `pauses` is how often the task had to leave for want of KV cells.
    `embedding` has length 1.

    `due_times[i]` is when token i of a paced answer was due at the latest, by the schedule in force when it was shown;
    empty without a pace. `lowest_pace` is what `pace` had to be lowered to, at the least; None where it was kept. A
    paced answer that was cancelled has the tokens that its reader was shown: what had been computed ahead is dropped.

    `pieces[i]` is the text that became certain with token i: "" while a character is incomplete or could begin a stop
    string. One more piece follows where some was still held back after the last token had been shown. `stop_string` is
    the one the text was cut before; the tokens that made it up are among `output_token_ids`. `logprobs[i]` is there for
    each token where the sampling asks for it; `runtime.NOT_CHOSEN` for those that were not the model's choice.
    """

    request_id: str
    task_class: Class
    label: str
    prompt_tokens: int
    arrived: float
    pace: float | None = None
    lowest_pace: float | None = None
    started: float | None = None
    cached_prompt_tokens: int = 0
    pauses: int = 0
    embedding: tuple[float, ...] | None = None
    output_token_ids: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    shown_times: list[float] = field(default_factory=list)
    due_times: list[float] = field(default_factory=list)
    contended: list[bool] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finished: float | None = None
    finish: Finish | None = None
    stop_string: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The answer so far, shown to its reader or not yet."""
        return "".join(self.pieces)

    def keep_shown(self) -> None:
        """Drop the tokens that were not shown."""
        count = len(self.shown_times)
        for values in (self.output_token_ids, self.token_times, self.contended, self.pieces, self.logprobs):
            del values[count:]

    @property
    def failed(self) -> bool:
        """Whether the task ended without the answer it was asked for, and nobody had cancelled it."""
        return self.finish in (Finish.ERROR, Finish.DEADLINE)


OnToken = Callable[[TaskRecord, int], None]
"""Called in a thread of the engine's when a token is released to the reader; the int is its index in the record.

It should return at once: paced answers have one thread together, which shows nobody's token meanwhile, and the others
the engine's own.
"""

OnFinish = Callable[[TaskRecord], None]
"""Called once, after the last token was released: in the thread that released it, else in the engine's own."""
