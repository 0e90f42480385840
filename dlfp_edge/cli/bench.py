"""`dlfp-edge bench`: what a model, the scheduler and the machine cost. The measuring code is in `dlfp_edge.bench`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlfp_edge.cli.fetching import model_file
from dlfp_edge.cli.live import progress_bar, spinner
from dlfp_edge.cli.options import (
    ModelOption,
    RuntimeOptions,
    at_least_one,
    existing_model,
    known_runtime,
    output_directory,
    parse_options,
    parse_positive,
    path_argument,
)
from dlfp_edge.cli.output import note, print_json, print_table, save, writing
from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from dlfp_edge.bench.report import Report
    from dlfp_edge.runtime import Runtime

app = typer.Typer(
    help="Measure what a model, the scheduler and the machine cost.", rich_markup_mode="rich", no_args_is_help=True
)

RuntimeOption = Annotated[str, typer.Option("--runtime", help="llama_cpp, or simulated.")]
OutOption = Annotated[
    Path, typer.Option("--out", parser=path_argument, metavar="PATH", help="Folder for the bench's JSON file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the JSON document instead of a table.")]

_LLAMA = "llama_cpp"
_OUT = Path("out/bench")


@app.command()
def overhead(
    streams: Annotated[str, typer.Option(help="Numbers of decoding streams, with commas.")] = "1,8,64",
    tokens: Annotated[int, typer.Option(help="Tokens each stream decodes.")] = 200,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """The scheduler's own time per step, on simulated steps that take no time, beside a model's real steps."""
    from dlfp_edge.bench.overhead import decode_steps_s
    from dlfp_edge.bench.overhead import overhead as measure

    counts = _numbers(streams, "--streams")
    at_least_one(tokens, "--tokens")
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        real_s = decode_steps_s(loaded, counts, progress)
    _deliver(measure(counts, tokens, real_s), out, as_json)


@app.command()
def curve(
    threads: Annotated[str | None, typer.Option(help="Thread counts, with commas. Default: 1 and the probed.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each step; the median counts.")] = 3,
    largest: Annotated[int, typer.Option(help="Most tokens in a step.")] = 2048,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """A model's step time by the tokens in the step and by threads, as a table and a picture."""
    from dlfp_edge.bench.curve import curve as measure
    from dlfp_edge.bench.curve import plot
    from dlfp_edge.plugins import detect_device

    at_least_one(repeats, "--repeats")
    at_least_one(largest, "--largest")
    wanted = None if threads is None else _numbers(threads, "--threads")
    usable = detect_device().cpu().limit
    if wanted and max(wanted) > usable:
        raise UsageError(f"--threads: {max(wanted)} is more than the {usable} CPUs this process may use")
    with _loaded(runtime, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, wanted or [1, loaded.capabilities.prefill_threads], repeats, largest, progress)
    _deliver(report, out, as_json)
    with writing(out / "curve.png") as picture:
        plot(report, picture)


@app.command()
def predictor(
    largest: Annotated[int, typer.Option(help="Most prompt tokens in a step: near what the target allows.")] = 512,
    seconds: Annotated[float, typer.Option(help="How long steps are timed, once contexts are filled.")] = 45.0,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """The constants of shared/predictor on this device: a latency model of steps, fitted to about a minute of them."""
    from dlfp_edge.bench.predictor import predictor as measure

    if largest < 8:
        raise UsageError(f"--largest: {largest} tokens say little about prompts; give 8 or more")
    parse_positive(str(seconds), "--seconds")
    with _loaded(runtime, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, largest, seconds, progress)
    _deliver(report, out, as_json)


@app.command()
def gil(
    seconds: Annotated[float, typer.Option(help="How long each probe runs.")] = 10.0,
    interruptions: Annotated[int, typer.Option(help="How many long steps are interrupted.")] = 30,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Waiting for the interpreter's lock, and the time to interrupt a step, with every core busy."""
    from dlfp_edge.bench.gil import gil as measure
    from dlfp_edge.plugins import detect_device

    parse_positive(str(seconds), "--seconds")
    at_least_one(interruptions, "--interruptions")
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, detect_device().cpu().usable, seconds, interruptions, progress)
    _deliver(report, out, as_json)


@app.command()
def preempt(
    arrivals: Annotated[int, typer.Option(help="Arrivals at random moments.")] = 40,
    periods: Annotated[str, typer.Option(help="Seconds between steady arrivals, with commas.")] = "1,5,10",
    seconds: Annotated[float, typer.Option(help="How long each steady series runs.")] = 30.0,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """How quickly a foreground arrival takes over from a background prefill in shared steps, and what it wastes."""
    from dlfp_edge.bench.preempt import preempt as measure

    at_least_one(arrivals, "--arrivals")
    parse_positive(str(seconds), "--seconds")
    periods_s = [parse_positive(part, "--periods") for part in periods.split(",")]
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, arrivals, periods_s, seconds, progress)
    _deliver(report, out, as_json)


@app.command()
def memory(
    ctx: Annotated[int, typer.Option(help="KV cells of all lanes together.")] = 16384,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Resident memory with one lane and with two, each in a process of its own, beside what was predicted."""
    from dlfp_edge.bench.memory import memory as measure

    at_least_one(ctx, "--ctx")
    known_runtime(runtime)
    existing_model(model)
    options = parse_options(runtime_option)
    with output_directory(out):
        file = model_file(runtime, model)
        with spinner("measuring in processes of their own…", picture=not as_json):
            report = measure(runtime, file, ctx, options)
        _deliver(report, out, as_json)


@app.command()
def exact(
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Whether greedy output ids are the same under every setting as alone (exact kernels)."""
    from dlfp_edge.bench.exact import exact as measure

    with _loaded(_LLAMA, model, out, runtime_option, exact=True) as loaded, progress_bar() as progress:
        report = measure(loaded, progress)
    _deliver(report, out, as_json)


@app.command()
def words(
    contexts: Annotated[str, typer.Option(help="Prompt lengths, with commas.")] = "100,600,4000",
    tokens: Annotated[int, typer.Option(help="Tokens to compare.")] = 64,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Whether the foreground says the same words with and without background (lanes, default kernels)."""
    from dlfp_edge.bench.words import words as measure

    at_least_one(tokens, "--tokens")
    lengths = _numbers(contexts, "--contexts")
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, lengths, tokens, progress)
    _deliver(report, out, as_json)


@app.command()
def waves(
    documents: Annotated[int, typer.Option(help="Documents to finish in each part.")] = 16,
    rounds: Annotated[int, typer.Option(help="How often each part runs.")] = 2,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Documents finished per minute beside a chat, as a batch and one at a time."""
    from dlfp_edge.bench.waves import waves as measure

    at_least_one(documents, "--documents")
    at_least_one(rounds, "--rounds")
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, documents, rounds, progress)
    _deliver(report, out, as_json)


@app.command()
def turns(
    shared: Annotated[int, typer.Option(help="Tokens said before.")] = 2000,
    new: Annotated[int, typer.Option(help="New tokens of the second turn.")] = 64,
    rounds: Annotated[int, typer.Option(help="How many conversations.")] = 10,
    model: ModelOption = None,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """The first token of a conversation's second turn, against a prompt that holds its new tokens alone."""
    from dlfp_edge.bench.turns import turns as measure

    for value, option in ((shared, "--shared"), (new, "--new"), (rounds, "--rounds")):
        at_least_one(value, option)
    with _loaded(_LLAMA, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, shared, new, rounds, progress)
    _deliver(report, out, as_json)


@app.command()
def crowded(
    exact: Annotated[bool, typer.Option("--exact", help="Kernels whose output no schedule changes.")] = False,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Eight conversations and 40 documents in a context for three: answers, gaps, words, and memory as predicted."""
    from dlfp_edge.bench.crowded import crowded as measure

    known_runtime(runtime)
    existing_model(model)
    options = parse_options(runtime_option)
    with output_directory(out):
        file = model_file(runtime, model)
        with progress_bar() as progress:
            report = measure(runtime, file, exact, options, progress)
        _deliver(report, out, as_json)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long, on the runtime's clock.")] = 5.0,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Whether memory and overhead stay flat under arrivals, cancels and pauses, and nothing is left over."""
    from dlfp_edge.bench.soak import soak as measure

    parse_positive(str(minutes), "--minutes")
    with _loaded(runtime, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, 60 * minutes, progress)
    _deliver(report, out, as_json)


@app.command()
def restarts(
    kills: Annotated[int, typer.Option(help="How often the worker is killed.")] = 20,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """What a worker process killed at random moments costs answers, documents and time; exits with 1 if too much."""
    from dlfp_edge.bench.restarts import restarts as measure

    at_least_one(kills, "--kills")
    known_runtime(runtime)
    existing_model(model)
    options = parse_options(runtime_option)
    with output_directory(out), progress_bar() as progress:
        report = measure(runtime, model_file(runtime, model), options, kills, progress)
        _deliver(report, out, as_json)
    if report.facts["broken"]:
        raise typer.Exit(1)


@app.command()
def schemas(
    count: Annotated[int, typer.Option(help="How many of the hundred schemas.", max=100)] = 100,
    model: ModelOption = None,
    runtime: RuntimeOption = _LLAMA,
    runtime_option: RuntimeOptions = None,
    out: OutOption = _OUT,
    as_json: JsonOption = False,
) -> None:
    """Whether answers keep to JSON schemas at every length, and what choosing tokens within a grammar costs."""
    from dlfp_edge.bench.schemas import schemas as measure

    at_least_one(count, "--count")
    with _loaded(runtime, model, out, runtime_option) as loaded, progress_bar() as progress:
        report = measure(loaded, count, progress)
    _deliver(report, out, as_json)


@contextmanager
def _loaded(
    name: str, model: str | None, out: Path, runtime_option: list[str] | None, exact: bool = False
) -> Iterator[Runtime]:
    from dlfp_edge.bench.loading import load_runtime
    from dlfp_edge.cli.logs import keep_log_in

    known_runtime(name)
    existing_model(model)
    options = parse_options(runtime_option)
    with output_directory(out):
        file = model_file(name, model)
        note(f"loading {model or 'the embedded model'}, probing threads…" if name == _LLAMA else f"setting up {name}…")
        with closing(load_runtime(name, file, exact=exact, options=options)) as runtime:
            keep_log_in(out)
            yield runtime


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{option}: '{text}' is not a list of whole numbers above zero, such as 1,8,64")
    return numbers


def _deliver(report: Report, out: Path, as_json: bool) -> None:
    """Print the report, and write it beside the others."""
    document = {**report.as_json(), "cpus": os.cpu_count()}
    path = out / f"{report.name}.json"
    if as_json:
        print_json(document)
        save(path, document)
        return
    simulated = document.get("simulated") and "imulated" not in report.title
    print_table(f"{report.title} (simulated)" if simulated else report.title, report.columns, report.rows)
    for line in report.notes:
        print(line)
    save(path, document)
    print(f"written to {path}")
