"""`dlfp-edge load`: the load generator alone, against an endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.cells import printable
from dlfp_edge.cli.interrupt import stops_on_interrupt
from dlfp_edge.cli.live import picture_possible, progress_bar
from dlfp_edge.cli.output import cell, note, print_json, print_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dlfp_edge.experiment.detect import Detected
    from dlfp_edge.experiment.load import Generator, Load
    from dlfp_edge.experiment.load_summary import LoadSummary
    from dlfp_edge.experiment.workload import Workload
    from dlfp_edge.runtime import Tokenizer

_RUNTIME = "llama_cpp"
_DRAWN_S, _LINE_S = 0.5, 5.0
"""How often progress is drawn on a terminal, and how often a line says it elsewhere."""


class TokenizerMaker(Protocol):
    """A runtime provider that can open a model's tokenizer without its weights."""

    def tokenizer(self, model: Path) -> AbstractContextManager[Tokenizer]:
        """The tokenizer of a model file. Raises UsageError."""
        ...


def load(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8080.", metavar="URL")],
    workload: Annotated[str, typer.Argument(help="A bundled workload, or a .toml file.")] = "chat-ingest",
    duration: Annotated[
        str | None, typer.Option(help="How long to send: 60, 90s or 2m. Default: the workload's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts, arrivals and drawn tokens.", min=0)] = 0,
    scale: Annotated[float, typer.Option(help="Multiply the workload's token counts.")] = 1.0,
    pace: Annotated[str | None, typer.Option(help="Show foreground tokens at this rate, or 'off'.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            parser=options.model_argument,
            metavar="MODEL",
            help="The served model's GGUF, or hf:owner/repo: its tokenizer makes prompts of exact lengths.",
        ),
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="What the server calls the model. Default: its first.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = None,
    warmups: Annotated[int, typer.Option(help="Requests sent before anything counts.", min=0)] = 3,
    out: Annotated[
        Path | None,
        typer.Option(parser=options.path_argument, metavar="PATH", help="Folder for the run's files. Default: none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Send a workload to a server and measure what its clients see.

    For llama-server and any server with an OpenAI-compatible [b]/v1/completions[/b] that streams. Each request has a
    connection of its own.

    Example: [cyan]dlfp-edge load http://127.0.0.1:8080 chat-ingest --duration 60s --out out/load[/cyan]

    Ctrl-C ends with what was measured so far. The exit code is 1 where a request failed.
    """
    from dlfp_edge.experiment.detect import detect
    from dlfp_edge.experiment.workload import load_workload

    options.parse_positive(str(scale), "--scale")
    asked = load_workload(workload)
    if pace is not None:
        asked = asked.paced(options.parse_pace(pace))
    duration_s = None if duration is None else options.parse_duration(duration, "--duration", bare_unit="s")
    options.existing_model(model)
    key = api_key or None
    with ExitStack() as stack:
        if out is not None:
            stack.enter_context(options.output_directory(out))
        found = detect(url, api_key=key)
        order = _Order(url, asked, seed, scale, duration_s, model_name or found.model, key, warmups, out)
        tokenizer, notes = stack.enter_context(_tokenizer(found, model))
        raise typer.Exit(_execute(order, found, tokenizer, notes, as_json))


@dataclass(frozen=True, slots=True)
class _Order:
    """A run as it was asked for."""

    url: str
    workload: Workload
    seed: int
    scale: float
    duration_s: float | None
    model: str | None
    api_key: str | None
    warmups: int
    out: Path | None


@contextmanager
def _tokenizer(found: Detected, model: str | None) -> Iterator[tuple[Tokenizer, list[str]]]:
    """What prompts are made with, and what is to be said about their lengths."""
    from dlfp_edge.cli.fetching import model_file
    from dlfp_edge.experiment.words import IdsOnly, Words
    from dlfp_edge.plugins import runtime_provider

    if model is not None:
        file = model_file(_RUNTIME, model)
        assert file is not None
        with cast(TokenizerMaker, runtime_provider(_RUNTIME)).tokenizer(file) as tokenizer:
            yield tokenizer, []
    elif found.n_vocab is not None:
        yield IdsOnly(found.n_vocab), ["prompts are random ids of the server's vocabulary"]
    else:
        yield Words(), ["prompts are words, so their lengths in tokens are the server's: give --model for exact ones"]


def _execute(order: _Order, found: Detected, tokenizer: Tokenizer, notes: list[str], as_json: bool) -> int:
    from dlfp_edge.experiment.artefacts import Artefacts
    from dlfp_edge.experiment.endpoint import Endpoint
    from dlfp_edge.experiment.load import Generator
    from dlfp_edge.experiment.load_summary import summarize
    from dlfp_edge.experiment.words import Words

    for line in notes:
        note(line)
    with ExitStack() as stack:
        artefacts = None if order.out is None else stack.enter_context(Artefacts(order.out, report=note))
        endpoint = stack.enter_context(
            Endpoint(
                order.url,
                dialect=found.dialect,
                model=order.model,
                api_key=order.api_key,
                text_of=tokenizer.text_of if isinstance(tokenizer, Words) else None,
            )
        )
        with _progress(order) as tell:
            generator = Generator(
                endpoint,
                order.workload.scaled(order.scale),
                tokenizer,
                seed=order.seed,
                duration_s=order.duration_s,
                artefacts=artefacts,
                watch=tell,
            )
            measured, code = _run(generator, order)
        summary = summarize(
            measured,
            endpoint=order.url,
            dialect=found.dialect.name,
            model=order.model,
            seed=order.seed,
            scale=order.scale,
            warmups=order.warmups,
            notes=notes,
        )
        if artefacts is not None:
            artefacts.finish(summary.model_dump(mode="json"), _manifest(order, found))
    _print(summary, order.out, as_json)
    if measured.stopped:
        return code
    failed = any(record.failed for record in measured.records)
    return 1 if failed or not measured.records or (artefacts is not None and artefacts.fault) else 0


def _run(generator: Generator, order: _Order) -> tuple[Load, int]:
    with stops_on_interrupt(generator.stop) as interruption:
        generator.warm_up(order.warmups)
        measured = generator.run()
    return measured, interruption.code


@contextmanager
def _progress(order: _Order) -> Iterator[Callable[[Load], None]]:
    """Tells now and then how far the run is."""
    whole_s = order.duration_s or order.workload.duration_s
    every_s = _DRAWN_S if picture_possible() else _LINE_S
    with progress_bar() as draw:
        told = time.monotonic()

        def tell(measured: Load) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told < every_s or measured.end is not None:
                return
            told = now
            failed = sum(record.failed for record in list(measured.records))
            done = 0.0 if whole_s is None else min(1.0, (now - measured.start) / whole_s)
            draw(done, f"{len(measured.records)} requests have ended, {failed} of them failed")

        yield tell


def _manifest(order: _Order, found: Detected) -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    return {
        "schema_version": 1,
        "versions": {"python": platform.python_version(), "dlfp-edge": version("dlfp-edge"), "httpx": version("httpx")},
        "endpoint": order.url,
        "dialect": found.dialect.name,
        "model": order.model,
        "workload": order.workload.as_json(),
        "seed": order.seed,
        "scale": order.scale,
    }


_COLUMNS = ("ms", "p50", "p90", "p99", "max", "count")
_KINDS = {
    "ttft_ms": "time to first token (TTFT)",
    "itl_ms": "gap between tokens (ITL)",
    "contended_itl_ms": "  while background requests are under way",
    "shown_itl_ms": "  as shown at its pace",
    "lateness_ms": "  shown after it was due",
    "tpot_ms": "time per token after the first (TPOT)",
    "e2el_ms": "whole answer (E2EL)",
}


def _print(summary: LoadSummary, out: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({**summary.model_dump(mode="json"), "out": None if out is None else str(out)})
        return
    for name, figures in summary.classes.items():
        rows = []
        for field, words in _KINDS.items():
            spread = getattr(figures, field)
            if spread.count:
                rows.append((words, spread.p50, spread.p90, spread.p99, spread.max, spread.count))
        print_table(f"{name}, {cell(summary.duration_s)} s", _COLUMNS, rows)
        print(
            f"requests    {figures.requests}: {figures.complete} complete, {figures.http_failures} HTTP failures, "
            f"{figures.engine_failures} engine failures, {figures.missed_deadlines} past their deadline, "
            f"{figures.cancelled} cut off at the end"
        )
        print(
            f"rate        {cell(figures.output_tokens_per_s)} tok/s out, {cell(figures.prompt_tokens_per_s)} tok/s of "
            "complete requests' prompts"
        )
        if figures.merged_events:
            print(
                f"merged      {figures.merged_events} events held several tokens: "
                f"the gaps of {figures.itl_void} requests count nowhere"
            )
        print()
    differ = summary.clock_difference_ms
    if differ.count:
        print(
            f"clocks      client and engine token times differ by {cell(differ.p50)} ms at the median, "
            f"{cell(differ.p99)} ms at P99"
        )
    for error in summary.errors[:3]:
        print(f"failed      {printable(error)}")
    if out is not None:
        print(f"files       {out}/  (requests.jsonl, summary.json, manifest.json)")
