"""The figures of a load run: its `summary.json`. Latencies are ms, as the client saw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.experiment.load import Load
from dlfp_edge.experiment.remote import RemoteRecord, clock_differences_s
from dlfp_edge.measure.latency import (
    complete,
    contended_gaps_s,
    e2el_s,
    gaps_s,
    late_tokens,
    lateness_s,
    shown_gaps_s,
    tpot_s,
    ttft_s,
)
from dlfp_edge.measure.percentiles import Distribution, distribution
from dlfp_edge.task import Class, Finish, TaskRecord

SCHEMA_VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassLoad(_Part):
    """The requests of one class. Gaps of requests with merged events are in no ITL figure."""

    requests: int = Field(description="ended, however they ended")
    complete: int
    http_failures: int = Field(description="refused, not reached, broken off or silent")
    engine_failures: int = Field(description="the server itself said or showed that it could not answer")
    missed_deadlines: int
    cancelled: int = Field(description="cut off at the end of the run")
    merged_events: int = Field(description="events that carried several tokens, or tokens that were not counted")
    itl_void: int = Field(description="requests with such events")
    prompt_tokens: int = Field(description="of complete requests, by the server's count where it has one")
    output_tokens: int
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    ttft_ms: Distribution
    itl_ms: Distribution
    contended_itl_ms: Distribution = Field(description="the gaps while background requests were under way")
    shown_itl_ms: Distribution = Field(description="gaps between a paced stream's tokens being shown")
    late_tokens: int
    lateness_ms: Distribution = Field(description="how long after it was due a paced token was shown")
    tpot_ms: Distribution
    e2el_ms: Distribution


class LoadSummary(_Part):
    """A load run."""

    schema_version: int = SCHEMA_VERSION
    workload: str
    endpoint: str
    dialect: str
    model: str | None
    seed: int
    scale: float
    warmups: int
    duration_s: float
    stopped: bool
    classes: dict[str, ClassLoad]
    clock_difference_ms: Distribution = Field(
        description="how much later the client had a token than the server, the one that came fastest aside"
    )
    errors: list[str] = Field(description="why requests failed, each reason once")
    notes: list[str]


def summarize(
    load: Load,
    *,
    endpoint: str,
    dialect: str,
    model: str | None,
    seed: int,
    scale: float,
    warmups: int,
    notes: list[str],
) -> LoadSummary:
    """The figures of a run."""
    present = {stream.task_class for stream in load.workload.streams}
    return LoadSummary(
        workload=load.workload.name,
        endpoint=endpoint,
        dialect=dialect,
        model=model,
        seed=seed,
        scale=scale,
        warmups=warmups,
        duration_s=load.duration_s,
        stopped=load.stopped,
        classes={each.value: _class(load, each) for each in Class if each in present},
        clock_difference_ms=distribution(s for record in load.records for s in clock_differences_s(record)),
        errors=list(dict.fromkeys(record.error for record in load.records if record.error)),
        notes=notes,
    )


def _class(load: Load, task_class: Class) -> ClassLoad:
    records = [record for record in load.records if record.task_class is task_class]
    sound = [record for record in records if not _merged(record)]
    whole = [record for record in records if complete(record)]
    output = sum(len(record.token_times) for record in records)
    prompt = sum(_prompt_tokens(record) for record in whole)
    return ClassLoad(
        requests=len(records),
        complete=len(whole),
        http_failures=sum(_failure(record) == "http" for record in records),
        engine_failures=sum(_failure(record) == "engine" for record in records),
        missed_deadlines=sum(record.finish is Finish.DEADLINE for record in records),
        cancelled=sum(record.finish is Finish.CANCELLED for record in records),
        merged_events=sum(_merged(record) for record in records),
        itl_void=len(records) - len(sound),
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_s=output / load.duration_s if load.duration_s else None,
        prompt_tokens_per_s=prompt / load.duration_s if load.duration_s else None,
        ttft_ms=_each(records, ttft_s),
        itl_ms=_pooled(sound, gaps_s),
        contended_itl_ms=_pooled(sound, contended_gaps_s),
        shown_itl_ms=_pooled(sound, shown_gaps_s),
        late_tokens=sum(map(late_tokens, sound)),
        lateness_ms=_pooled(sound, lateness_s),
        tpot_ms=_each(records, tpot_s),
        e2el_ms=_each(records, e2el_s),
    )


def _each(records: Sequence[TaskRecord], figure: Callable[[TaskRecord], float | None]) -> Distribution:
    return distribution(value for record in records if (value := figure(record)) is not None)


def _pooled(records: Sequence[TaskRecord], figures: Callable[[TaskRecord], list[float]]) -> Distribution:
    return distribution(value for record in records for value in figures(record))


def _merged(record: TaskRecord) -> int:
    return record.merged_events if isinstance(record, RemoteRecord) else 0


def _failure(record: TaskRecord) -> str | None:
    return record.failure if isinstance(record, RemoteRecord) else None


def _prompt_tokens(record: TaskRecord) -> int:
    told = record.usage_prompt_tokens if isinstance(record, RemoteRecord) else None
    return record.prompt_tokens if told is None else told
