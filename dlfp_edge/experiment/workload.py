"""What a run asks of a model: a workload is a TOML file of request streams, bundled or the user's own."""

from __future__ import annotations

import difflib
import importlib.resources
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.complaint import one_line
from dlfp_edge.experiment.gates import STRICT, Gate, SloTable
from dlfp_edge.experiment.trace import TraceRequest, parse_trace
from dlfp_edge.given import check_stop
from dlfp_edge.measure.slo import Slo
from dlfp_edge.task import Class

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_PACKAGE = "dlfp_edge.workloads"
_BY_TRACE = ("prompt_tokens", "shared_prefix_tokens", "max_tokens", "texts", "instruction", "think_s")
"""Keys that have no place beside `trace`, which says for each request what they would say for all."""


class Stream(BaseModel):
    """Requests of one kind, sent by clients that wait for each answer, at random times, or as a trace has them.

    `clients` makes a closed loop: each client sends its next request `think_s` after its last one ended, the first one
    at `start_s`. `rate` makes an open loop: Poisson arrivals per second, `requests` of them, latency counted from the
    scheduled arrival. `trace` names a file of arrivals with the prompt and answer tokens of each (`trace.parse_trace`),
    which come `speed` times as fast as recorded, the first `requests` of them or all. The prompts are random ids
    (`prompt_tokens` of them, of which the stream's requests share the first `shared_prefix_tokens`), or text files
    (`texts`, taken in turn, each after the text of `instruction`). Paths are relative to the workload's file. With
    `turns` each client holds conversations: its first prompt begins one, and each of the next `turns` - 1 is all that
    was said so far and `prompt_tokens` more. `deadline_s` counts from arrival, `pace` is tokens/s shown to the reader.
    An answer ends before the first of the strings `stop` and follows `grammar` (GBNF). At a `temperature` above 0, the
    default, tokens are drawn by the run's seed.
    """

    model_config = STRICT

    name: str = Field(min_length=1)
    kind: Literal["foreground", "background"] = Field(alias="class")
    clients: int | None = Field(default=None, ge=1)
    think_s: float = Field(default=0.0, ge=0)
    start_s: float = Field(default=0.0, ge=0)
    rate: float | None = Field(default=None, gt=0)
    burst: int = Field(default=1, ge=1)
    requests: int | None = Field(default=None, ge=1)
    prompt_tokens: int | None = Field(default=None, ge=1)
    shared_prefix_tokens: int = Field(default=0, ge=0)
    turns: int = Field(default=1, ge=1)
    texts: list[str] = Field(default_factory=list)
    instruction: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    trace: str | None = None
    speed: float = Field(default=1.0, gt=0)
    ignore_eos: bool | None = None
    stop: list[str] = Field(default_factory=list)
    temperature: float = Field(default=0.0, ge=0, le=100)
    repeat_penalty: float = Field(default=1.0, ge=0.01, le=100)
    grammar: str | None = None
    pace: float | None = Field(default=None, gt=0)
    deadline_s: float | None = Field(default=None, gt=0)
    _rows: tuple[TraceRequest, ...] = PrivateAttr(default=())

    @property
    def rows(self) -> tuple[TraceRequest, ...]:
        """The requests of the stream's trace, as recorded; () without a trace."""
        return self._rows

    @property
    def task_class(self) -> Class:
        """The class of the stream's tasks."""
        return Class(self.kind)

    @property
    def runs_past_end(self) -> bool:
        """Whether end tokens are forbidden: by default for random prompts, so that every answer has `max_tokens`."""
        return not self.texts if self.ignore_eos is None else self.ignore_eos

    def prompt_length(self, index: int) -> int:
        """Tokens of the prompt of request number `index` of a client, by itself; 0 for texts, which a model counts."""
        return self._rows[index].prompt_tokens if self._rows else self.prompt_tokens or 0

    def answer_length(self, index: int) -> int:
        """The most tokens of the answer to request number `index` of a client."""
        return self._rows[index].max_tokens if self._rows else self.max_tokens or 0

    def with_rows(self, rows: Sequence[TraceRequest]) -> Stream:
        """The stream with its trace, of which it takes `requests` rows or all. Raises UsageError where it has fewer."""
        count = len(rows) if self.requests is None else self.requests
        if count > len(rows):
            raise UsageError(f"'requests' is {count}, but the trace has {len(rows)} for it: give at most that")
        stream = self.model_copy(update={"requests": count})
        stream._rows = tuple(rows[:count])
        return stream

    def scaled(self, factor: float) -> Stream:
        """The stream with its token counts multiplied, each at least 1; text prompts keep their length."""
        prompt = None if self.prompt_tokens is None else _scale(self.prompt_tokens, factor)
        shared = _scale(self.shared_prefix_tokens, factor) if self.shared_prefix_tokens else 0
        stream = self.model_copy(
            update={
                "prompt_tokens": prompt,
                "shared_prefix_tokens": min(shared, (prompt or 1) - 1),
                "max_tokens": None if self.max_tokens is None else _scale(self.max_tokens, factor),
            }
        )
        stream._rows = tuple(
            row._replace(prompt_tokens=_scale(row.prompt_tokens, factor), max_tokens=_scale(row.max_tokens, factor))
            for row in self._rows
        )
        return stream

    def one_by_one(self, requests: int, most_tokens: int) -> Stream:
        """So many requests like the stream's own, one after another, with short answers and prompts of their own.

        Texts stay what they are.
        """
        stream = self.model_copy(
            update={
                "name": self.name if self.texts else f"{self.name} alone",
                "clients": 1,
                "requests": requests,
                "prompt_tokens": None if self.texts else self.prompt_length(0),
                "max_tokens": min(self.answer_length(0), most_tokens),
                **dict.fromkeys(("rate", "trace", "pace"), None),
                **dict.fromkeys(("think_s", "start_s"), 0.0),
                "turns": 1,
                "burst": 1,
            }
        )
        stream._rows = ()
        return stream

    @property
    def longest(self) -> int:
        """The number of the request with the most tokens, prompt and answer together; 0 where all have as many."""
        return max(range(len(self._rows)), key=lambda index: sum(self._rows[index][1:]), default=0)

    @property
    def longest_prompt(self) -> int | None:
        """Prompt tokens of the longest request, in a conversation its last; None for texts, which a model counts."""
        if self.texts:
            return None
        first = self.prompt_length(self.longest)
        later = first - self.shared_prefix_tokens + self.answer_length(self.longest)
        return first + (self.turns - 1) * later

    @model_validator(mode="after")
    def _arrivals(self) -> Stream:
        if [self.clients, self.rate, self.trace].count(None) != 2:
            raise ValueError(
                "needs either 'clients' (a closed loop), 'rate' (arrivals per second) or 'trace' (a file of arrivals)"
            )
        if self.rate is not None and self.requests is None:
            raise ValueError("'rate' needs 'requests', how many arrivals there are")
        if self.rate is not None and self.think_s:
            raise ValueError("'think_s' goes with 'clients', not with 'rate'")
        if self.rate is None and self.burst > 1:
            raise ValueError("'burst' goes with 'rate': so many requests arrive at once")
        if self.trace is None and self.speed != 1.0:
            raise ValueError("'speed' goes with 'trace'")
        if self.turns > 1 and (self.clients is None or self.texts):
            raise ValueError("'turns' goes with 'clients' and 'prompt_tokens': the next turn follows the last answer")
        return self

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: list[str]) -> list[str]:
        try:
            check_stop(tuple(stop))
        except UsageError as error:
            raise ValueError(str(error)) from None
        return stop

    @model_validator(mode="after")
    def _prompts(self) -> Stream:
        if self.trace is not None:
            for name in _BY_TRACE:
                if getattr(self, name):
                    raise ValueError(f"'{name}' does not go with 'trace', which says it for each request: remove it")
            return self
        if self.max_tokens is None:
            raise ValueError("missing key 'max_tokens': add it")
        if (self.prompt_tokens is None) == (not self.texts):
            raise ValueError("needs either 'prompt_tokens' (random ids) or 'texts' (files)")
        if self.instruction is not None and not self.texts:
            raise ValueError("'instruction' goes with 'texts'; random prompts have 'shared_prefix_tokens'")
        if self.shared_prefix_tokens and self.shared_prefix_tokens >= (self.prompt_tokens or 0):
            raise ValueError("'shared_prefix_tokens' must be less than 'prompt_tokens'")
        return self


class Workload(BaseModel):
    """Streams that run at the same time, for `duration_s`, or until every stream with `requests` has ended.

    `slo` is what its foreground requests are held to, `gates` what a setting must keep to win a comparison.
    """

    model_config = STRICT

    name: str = Field(min_length=1)
    description: str
    duration_s: float | None = Field(default=None, gt=0)
    streams: list[Stream] = Field(alias="stream", min_length=1)
    slo_table: SloTable | None = Field(default=None, alias="slo")
    gates: list[Gate] = Field(default_factory=list, alias="gate")
    _texts: dict[str, dict[str, str]] = PrivateAttr(default_factory=dict)
    _instructions: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def slo(self) -> Slo | None:
        """The objectives that the file states for its foreground requests."""
        return None if self.slo_table is None else self.slo_table.slo

    def text(self, stream: Stream, name: str) -> str:
        """The content of one of the stream's texts."""
        return self._texts[stream.name][name]

    def instruction(self, stream: Stream) -> str:
        """The content of the stream's instruction; "" where it has none."""
        return self._instructions.get(stream.name, "")

    def checksum(self) -> int:
        """Of what the files that the workload names hold: its texts and traces."""
        rows = [stream.rows for stream in self.streams]
        return zlib.crc32(repr((sorted(self._texts.items()), sorted(self._instructions.items()), rows)).encode())

    def of_class(self, task_class: Class) -> list[Stream]:
        """The streams of one class."""
        return [stream for stream in self.streams if stream.task_class is task_class]

    def with_texts(self, stream: str, texts: Mapping[str, str], instruction: str = "") -> Workload:
        """The same workload with the content of what one stream names, by name: another may name other texts so."""
        workload = self.model_copy()
        workload._texts = {**self._texts, stream: dict(texts)}
        workload._instructions = {**self._instructions, stream: instruction}
        return workload

    def with_streams(self, streams: list[Stream]) -> Workload:
        """The same workload with other streams."""
        return self.model_copy(update={"streams": streams})

    def scaled(self, factor: float) -> Workload:
        """The workload with the token counts of its streams multiplied. Raises UsageError unless `factor` > 0."""
        if not (math.isfinite(factor) and factor > 0):
            raise UsageError(f"scale {factor:g} must be a number above 0")
        return self.with_streams([stream.scaled(factor) for stream in self.streams])

    def paced(self, pace: float | None) -> Workload:
        """The workload with its foreground streams shown at `pace` tokens/s; None shows tokens as they come."""
        return self.with_streams(
            [s.model_copy(update={"pace": pace}) if s.task_class is Class.FOREGROUND else s for s in self.streams]
        )

    def as_json(self) -> dict[str, Any]:
        """The workload in the words of its file, for a manifest."""
        return self.model_dump(mode="json", by_alias=True)

    @model_validator(mode="after")
    def _ends(self) -> Workload:
        names = [stream.name for stream in self.streams]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two streams are named '{name}': give each its own 'name'")
        if self.duration_s is None and all(s.requests is None and s.trace is None for s in self.streams):
            raise ValueError("never ends: give it 'duration_s', or a stream 'requests'")
        return self


_TABLES: dict[str, type[BaseModel]] = {"": Workload, "stream": Stream, "gate": Gate, "slo": SloTable}


def workload_names() -> list[str]:
    """The bundled workloads."""
    entries = importlib.resources.files(_PACKAGE).iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def load_workload(source: str) -> Workload:
    """A bundled workload by name, or a workload file by path (anything that ends in .toml or has a separator).

    Raises UsageError with one line that names the file, the key at fault and the mend.
    """
    if source.endswith(".toml") or "/" in source or "\\" in source:
        path = Path(source)
        return _read(path, path.parent, source)
    names = workload_names()
    if source not in names:
        near = difflib.get_close_matches(source, names, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(
            f"unknown workload '{source}': {hint}workloads are {', '.join(names)}, or a path to a .toml file"
        )
    bundle = importlib.resources.files(_PACKAGE)
    return _read(bundle / f"{source}.toml", bundle, f"{source}.toml")


def _read(file: Traversable, folder: Traversable, shown: str) -> Workload:
    try:
        table = tomllib.loads(_read_text(file, shown))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{shown}: not valid TOML: {error}") from None
    try:
        workload = Workload.model_validate(table)
    except ValidationError as error:
        raise UsageError(f"{shown}: {one_line(error, table, _TABLES)}") from None
    workload = workload.with_streams([_with_trace(stream, folder, shown) for stream in workload.streams])
    for stream in workload.streams:
        where = f"{shown}: stream {stream.name!r}: "
        texts = {name: _read_text(folder / name, where + name) for name in stream.texts}
        for name, text in texts.items():
            if not text.strip():
                raise UsageError(f"{where}text {name} is empty: remove it or fill it")
        own = stream.instruction
        workload = workload.with_texts(stream.name, texts, _read_text(folder / own, where + own) if own else "")
    return workload


def _with_trace(stream: Stream, folder: Traversable, shown: str) -> Stream:
    if stream.trace is None:
        return stream
    where = f"{shown}: stream {stream.name!r}: "
    text = _read_text(folder / stream.trace, where + stream.trace)
    rows = parse_trace(text, stream.trace, stream.task_class, shown=where + stream.trace)
    try:
        return stream.with_rows(rows)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None


def _read_text(file: Traversable, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(f"{shown}: cannot read the file: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: the file is not UTF-8 text") from None
    except ValueError as error:
        raise UsageError(f"{shown}: no name of a file: {error}") from None


def _scale(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))
