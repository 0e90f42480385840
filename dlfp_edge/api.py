"""The Python API: open a model, submit tasks of either class, iterate their tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dlfp_edge.clock import Clock
from dlfp_edge.control import suitable_placement
from dlfp_edge.engine import Engine
from dlfp_edge.errors import UsageError
from dlfp_edge.given import check_number, check_text, checks_types
from dlfp_edge.grammar import schema_grammar
from dlfp_edge.handle import Task
from dlfp_edge.model_reference import local_model
from dlfp_edge.playout import chat_pace
from dlfp_edge.plugins import detect_device, load, runtime_provider
from dlfp_edge.runtime import LoadOptions, Sampling, Tokenizer, check_sampling
from dlfp_edge.settings import Placement, Settings, parse_controller, parse_setting
from dlfp_edge.task import Class, OnFinish, OnToken, TaskSpec
from dlfp_edge.trace import Snapshot

Prompt: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer[Any]]
"""Text, or token ids."""


class LoadedModel(Protocol):
    """What a caller may want of a runtime, in this process or in another."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class TaskEngine(Protocol):
    """What `Engine` and `WorkerEngine` have in common."""

    messages: list[str]
    failure: Exception | None

    @property
    def clock(self) -> Clock: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def controller_name(self) -> str: ...

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> Task: ...

    def check(self, spec: TaskSpec) -> None: ...

    def hold_background(self, held: bool) -> None: ...

    def forget_prefixes(self) -> None: ...

    def snapshot(self) -> Snapshot: ...

    def close(self) -> None: ...


class Edge:
    """A loaded model with an engine on it. A context manager; safe to use from several threads."""

    def __init__(self, runtime: LoadedModel, engine: TaskEngine) -> None:
        self.runtime = runtime
        self.engine = engine

    def submit(
        self,
        prompt: Prompt,
        *,
        task_class: Class | str = Class.FOREGROUND,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        sampling: Sampling | None = None,
        json_schema: dict[str, Any] | bool | str | None = None,
        pace: float | Literal["chat"] | None = None,
        deadline_s: float | None = None,
        stop: str | Sequence[str] = (),
    ) -> Task:
        """Queue a task; text is tokenised as the model wants. `sampling` overrides `temperature` and `seed`.

        The answer ends before the first place where a string of `stop` stands in its text.

        `pace` (tokens/s) is how fast the reader is to be shown the answer; None shows tokens as they come. "chat" says
        that this is a turn of a conversation which somebody reads as it comes, and has the pace usual there: 15
        tokens/s, none for an answer in a schema or a grammar, in the background, or one of several.

        `json_schema` (a schema or its JSON text; {} for any JSON) makes the answer JSON that validates against it, even
        where `max_tokens` cuts it, though not where a stop string does. A keyword that cannot be enforced is refused.

        Raises UsageError for a task that could never run, QueueFull when too many wait, EngineClosed after `close`.
        """
        if sampling is None:
            sampling = Sampling(temperature=temperature, seed=seed)
        check_sampling(sampling)
        if json_schema is not None:
            sampling = _within(sampling, json_schema)
        chosen = self._class(task_class)
        spec = TaskSpec(
            prompt=self._ids(prompt),
            task_class=chosen,
            max_tokens=max_tokens,
            sampling=sampling,
            pace=chat_pace(chosen, sampling.grammar) if pace == "chat" else pace,
            deadline_s=deadline_s,
            stop=_strings(stop),
        )
        return self.engine.submit(spec)

    def answers(self, prompt: Prompt, n: int, *, seed: int | None = None, **options: Any) -> list[Task]:
        """Queue `n` answers to one prompt, which is computed once; `options` and errors as for `submit`.

        With a `seed` the answers have this one and those after it. At a temperature of 0 all would be the same.
        """
        check_number("n", n, 1, 1000, whole=True)
        if n > 1 and options.get("pace") == "chat":
            options["pace"] = None  # nobody reads several at once
        sampling = options.pop("sampling", None)
        if sampling is None:
            sampling = Sampling(temperature=options.pop("temperature", 0.0), seed=seed)
        check_sampling(sampling)
        first = sampling.seed if seed is None else Sampling(seed=seed).seed
        tasks: list[Task] = []
        try:
            for number in range(n):
                drawn = sampling if first is None else replace(sampling, seed=first + number)
                tasks.append(self.submit(prompt, sampling=drawn, **options))
        except BaseException:  # whoever gets no handle could not cancel what is queued already
            for task in tasks:
                task.cancel()
            raise
        return tasks

    def embed(
        self,
        text: Prompt,
        *,
        task_class: Class | str = Class.FOREGROUND,
        deadline_s: float | None = None,
    ) -> Task:
        """Queue a text to be embedded; the record of the task that has ended holds the `embedding`, of length 1.

        Errors as for `submit`. A model that was not trained for embeddings gives the mean of its hidden states.
        """
        spec = TaskSpec(self._ids(text), self._class(task_class), max_tokens=1, deadline_s=deadline_s, embed=True)
        return self.engine.submit(spec)

    def close(self) -> None:
        """Cancel what is left and free the model; answers stay readable. Safe to repeat."""
        self.engine.close()
        self.runtime.close()

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            check_text(prompt)
            return tuple(self.runtime.tokenizer.encode(prompt))
        if not _are_ids(prompt):
            raise UsageError("the prompt is neither text nor a sequence of token ids: give one of them")
        return tuple(map(int, prompt))

    def _class(self, task_class: Class | str) -> Class:
        if task_class not in [member.value for member in Class]:
            raise UsageError(f"unknown task_class {task_class!r}: use 'foreground' or 'background'")
        return Class(task_class)

    def __enter__(self) -> Edge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@checks_types
def open_engine(
    model: str | Path | None = None,
    *,
    runtime: str = "llama_cpp",
    setting: str = "auto",
    threads: int | None = None,
    exact: bool = False,
    context: int | None = None,
    slowdown: float | None = None,
    target_itl_s: float | None = None,
    runtime_options: Mapping[str, str] | None = None,
    isolated: bool | str = False,
) -> Edge:
    """Load a model (None: the embedded demo model) and start an engine on it.

    `model` is a file, or `hf:owner/repo[@revision][:file]`, which is fetched unless it is here. `setting` is "auto" or
    "placement/controller", with parameters after it: "shared/dlfp:c_min=16"; `context` counts the KV cells of all
    lanes; `runtime_options` are the runtime's own, by name. `isolated` puts model and engine into a process of their
    own, which is started again when it dies (see `dlfp_edge.worker.WorkerEngine`); the address of a worker that
    listens, such as "unix:PATH", uses that one. Raises UsageError with one line that names what is wrong, FetchError
    where the model cannot be fetched.
    """
    placement, controller = parse_setting(setting)
    controller, parameters = parse_controller(controller)
    placement = suitable_placement(placement, controller, parameters=parameters)  # said before a model is loaded
    topology = detect_device().cpu()
    options = LoadOptions(
        model=None if model is None else local_model(model, runtime_provider(runtime)),
        cpus=topology.usable,
        cpu_limit=topology.limit,
        threads=threads,
        exact=exact,
        options=runtime_options or {},
    )
    settings = Settings(
        placement=placement,
        controller=controller,
        parameters=parameters,
        context=context,
        slowdown=slowdown,
        target_itl_s=target_itl_s,
    )
    if isolated is not False:
        return _isolated(options, settings, runtime, None if isolated is True else isolated)
    loaded = load(runtime, options)
    try:
        engine = Engine(loaded, settings, topology)
    except BaseException:
        loaded.close()
        raise
    engine.start()
    return Edge(loaded, engine)


def _strings(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence) or isinstance(stop, bytes | bytearray):
        raise UsageError(f"stop is {stop!r}: give a string or a sequence of strings")
    return tuple(stop)


def _isolated(load: LoadOptions, settings: Settings, runtime: str, address: str | None) -> Edge:
    from dlfp_edge.worker import WorkerEngine
    from dlfp_edge.worker.address import SECRET, parse_address

    try:
        where = None if address is None else parse_address(address)
    except UsageError as error:
        raise UsageError(f"isolated: {error}") from None
    if load.model is not None:
        load = replace(load, model=load.model.absolute())  # a worker may be elsewhere, and this process may move
    engine = WorkerEngine(load, settings, runtime=runtime, address=where, secret=os.environ.get(SECRET))
    return Edge(engine.runtime, engine)


def _within(sampling: Sampling, json_schema: dict[str, Any] | bool | str) -> Sampling:
    """The sampling with the schema's grammar."""
    if sampling.grammar is not None:
        raise UsageError("both json_schema and a grammar are given: give one of them")
    return replace(sampling, grammar=schema_grammar(json_schema))


def _are_ids(prompt: object) -> bool:
    """Bytes are integers too, but whoever gives them means text. Whole numbers of numpy are as good as Python's."""
    if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray):
        return False
    if isinstance(prompt, np.ndarray) and prompt.ndim != 1:
        return False
    return all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt)
