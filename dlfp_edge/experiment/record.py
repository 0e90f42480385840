"""What is kept of a trial: `trial.json`, from which every figure of a comparison is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.experiment.remote import RemoteRecord, clock_differences_s
from dlfp_edge.experiment.trial import Measured
from dlfp_edge.experiment.trial_load import Loaded
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.measure.latency import complete, e2el_s, lateness_s, tpot_s, ttft_s
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.task import Class, Finish, TaskRecord

SCHEMA_VERSION = 1
MOST_MERGED = 0.5
"""The share of foreground answers whose tokens may come in merged events before a trial is void: what a server merges
are the pieces of one character, whatever else it does meanwhile.
"""

CLIENT_LATE_MS = 5.0
"""How much later than the server the client may have its tokens, at the median."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(_Part):
    """One request. Times in seconds; None where it did not come to that.

    `gaps_s` are the raw gaps that ended in the measured time, `contended` says of each whether background work existed
    meanwhile (in a workload without any, all count); both are empty where the server merged tokens (`merged`), since
    gaps are then not gaps between tokens. `shown_s` are the gaps a paced stream's reader saw, `late_s` how long after
    it was due the token at the end of each was shown. `prompt` is a checksum of what was asked; None where that holds
    earlier answers. `ids` is None where the target gives none. `cut` marks one
    that the end of the trial cancelled, `age_s` old. A `failure` is the way's there and back, the engine's, or a
    deadline that passed.
    """

    label: str
    stream: str
    task_class: Class
    ttft_s: float | None
    tpot_s: float | None
    e2el_s: float | None
    gaps_s: list[float]
    contended: list[bool]
    paced: bool = False
    shown_s: list[float]
    late_s: list[float] = Field(default_factory=list)
    tokens: int
    complete: bool
    failed: bool
    cut: bool
    age_s: float
    merged: bool
    failure: Literal["http", "engine", "deadline"] | None = None
    error: str | None = None
    prompt: int | None
    ids: list[int] | None = None


class TrialRecord(_Part):
    """One trial. `status` is "complete", "void" (it does not add up) or "failed" (it did not get that far), the last
    two with a `reason`. Rates are per second of `duration_s`; `background_tokens` of prompts were done in that time.
    `client_late_ms` is how much later than by a server's own clock its tokens were here, at the median and at P99.
    """

    schema_version: int = SCHEMA_VERSION
    arm: str
    seed: int
    repeat: int = 0
    status: Literal["complete", "void", "failed"]
    reason: str | None = None
    fingerprint: str
    took_s: float = Field(description="with opening, warming up and closing")
    duration_s: float = 0.0
    ended_by: str = ""
    requests: list[Request] = Field(default_factory=list)
    background_tokens: float | None = None
    isolated_tokens_per_s: float | None = None
    client_late_ms: tuple[float, float] | None = None
    machine: dict[str, Any] | None = None
    engine: dict[str, Any] | None = None
    target: dict[str, Any] = Field(default_factory=dict)
    condition: dict[str, Any] | None = Field(default=None, description="what was made to go on around the trial")
    over_target: list[float] = Field(default_factory=list, description="contended gaps over the target in force")
    messages: list[str] = Field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether its figures may be used."""
        return self.status == "complete"

    def of_class(self, task_class: Class) -> list[Request]:
        """The requests of one class."""
        return [request for request in self.requests if request.task_class is task_class]


def requests_of(measured: Loaded, workload: Workload) -> list[Request]:
    """The requests of a load, those that arrived before its end."""
    contested = bool(workload.of_class(Class.BACKGROUND))
    found = []
    for record in measured.records:
        if record.arrived <= measured.end:
            stream, index = _origin(record.label, workload)
            own = index % stream.turns == 0
            checksum = measured.asked[record.label].checksum if own else None
            found.append(_request(record, stream.name, checksum, measured.end, contested=contested))
    return found


def client_late_ms(records: Iterable[TaskRecord]) -> tuple[float, float] | None:
    """How much later than by the server's own clock tokens were here, at the median and at P99, where it tells."""
    late = distribution(late_s for record in records for late_s in clock_differences_s(record))
    return None if late.p50 is None or late.p99 is None else (late.p50, late.p99)


def _origin(label: str, workload: Workload) -> tuple[Stream, int]:
    """The stream of a request and its number there; names may hold anything."""
    stream = max((s for s in workload.streams if label.startswith(f"{s.name}/")), key=lambda s: len(s.name))
    return stream, int(label[len(stream.name) + 1 :].split(" ")[0].split("/")[1])


def isolated_tokens_per_s(records: Iterable[TaskRecord]) -> float | None:
    """The prefill rate of prompts that were read alone: their tokens over their times to the first token."""
    done = [(record.prompt_tokens, first) for record in records if (first := ttft_s(record)) is not None]
    took_s = sum(first for _, first in done)
    return sum(tokens for tokens, _ in done) / took_s if took_s else None


def fault(requests: list[Request], measured: Measured, workload: Workload) -> str | None:
    """Why a trial does not add up; None where it does."""
    streams = {stream.name: stream for stream in workload.streams}
    asked = measured.load.asked
    foreground = [request for request in requests if request.task_class is Class.FOREGROUND]
    if measured.load.gone:
        last = next((record.error for record in reversed(measured.load.records) if record.error), None)
        return f"the target failed one request after another: {last}"
    merged = sum(request.merged for request in foreground)
    if merged > MOST_MERGED * len(foreground):
        return f"the server merged tokens of {merged} of {len(foreground)} answers: their gaps are not those of tokens"
    for request in requests:
        wanted, stream = asked[request.label].max_tokens, streams.get(request.stream)
        whole = request.complete and not request.merged and stream is not None and stream.runs_past_end
        if whole and request.tokens != wanted:
            return f"request {request.label} has {request.tokens} tokens of {wanted}"
    late = client_late_ms(measured.load.records)
    if late is not None and late[0] > CLIENT_LATE_MS:
        return f"tokens were here {late[0]:.1f} ms later than the server had them, at the median: the client got no CPU"
    return _miscounted(measured.load, streams) if measured.exact_prompts else None


def _miscounted(load: Loaded, streams: Mapping[str, Stream]) -> str | None:
    """What a server counted otherwise than the client, or did not compute."""
    alone = all(stream.turns == 1 and not stream.shared_prefix_tokens for stream in streams.values())
    for record in load.records:
        if not isinstance(record, RemoteRecord):
            continue
        counted = record.usage_prompt_tokens
        if record.cached_prompt_tokens and alone and not any(stream.texts for stream in streams.values()):
            return "the server found prompts in its prefix cache: turn that off, every trial of a seed asks the same"
        asked = load.asked[record.label].prompt_tokens
        if counted is not None and complete(record) and counted != asked:
            return f"request {record.label} had {asked} prompt tokens, the server counted {counted}"
    return None


def _request(record: TaskRecord, stream: str, prompt: int | None, end: float, *, contested: bool) -> Request:
    merged = bool(getattr(record, "merged_events", 0))
    times = [moment for moment in record.token_times if moment <= end]
    shown = [moment for moment in record.shown_times if moment <= end] if record.pace is not None else []
    done = complete(record) and len(times) == len(record.token_times)
    failed = record.failed and record.finished is not None and record.finished <= end
    gaps = [] if merged else [after - before for before, after in pairwise(times)]
    first = ttft_s(record)
    return Request(
        label=record.label,
        stream=stream,
        task_class=record.task_class,
        ttft_s=first if times else None,
        tpot_s=tpot_s(record) if done else None,
        e2el_s=e2el_s(record) if done else None,
        gaps_s=gaps,
        contended=[not contested or beside for beside in record.contended[1 : len(gaps) + 1]],
        paced=record.pace is not None,
        shown_s=[] if merged else [after - before for before, after in pairwise(shown)],
        late_s=[] if merged else lateness_s(record)[: max(0, len(shown) - 1)],
        tokens=len(record.token_times),
        complete=done,
        failed=failed,
        cut=not done and not failed,
        age_s=end - record.arrived,
        merged=merged,
        failure=_failure(record) if failed else None,
        error=record.error,
        prompt=prompt,
        ids=list(record.output_token_ids) or None,
    )


def _failure(record: TaskRecord) -> Literal["http", "engine", "deadline"]:
    if record.finish is Finish.DEADLINE:
        return "deadline"
    return record.failure or "engine" if isinstance(record, RemoteRecord) else "engine"
