"""`dlfp-edge compare`: several settings on one loaded model, in windows that alternate."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.fetching import model_file
from dlfp_edge.cli.interrupt import stops_on_interrupt
from dlfp_edge.cli.live import spinner
from dlfp_edge.cli.output import note, print_json, print_table
from dlfp_edge.errors import RuntimeFailure, UsageError

if TYPE_CHECKING:
    from dlfp_edge.experiment.compare import Arm, Comparison

_DEFAULT = "lanes/dlfp,lanes/static,shared/dlfp,shared/fixed:32,shared/unlimited"
_COLUMNS = {
    "setting": "setting",
    "itl_p50": "p50",
    "itl_p99": "p99",
    "itl_max": "max",
    "shown_p99": "shown p99",
    "ttft_max": "TTFT max",
    "p99_over_solo": "p99/solo",
    "p99_over_target": "p99/T",
    "foreground_tokens_per_s": "fg tok/s",
    "background_tokens_per_s": "bg tok/s",
    "background_share": "bg share",
    "documents_per_min": "docs/min",
}


def compare(
    workload: Annotated[str, typer.Argument(help="A bundled workload, or a .toml file.")] = "chat-ingest",
    settings: Annotated[str, typer.Option(help="PLACEMENT/CONTROLLER, with commas.")] = _DEFAULT,
    pace: Annotated[
        str | None, typer.Option(help="Show foreground tokens at this rate, or 'off'; several with commas.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each setting runs.")] = 3,
    window: Annotated[str, typer.Option(help="How long a setting runs in each round: 20s.")] = "20s",
    target_itl: Annotated[str | None, typer.Option(help="Longest foreground gap to aim at: 80ms.")] = None,
    slowdown: Annotated[float | None, typer.Option(help="The same as a multiple of a decode alone.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and of the order.")] = 0,
    scale: Annotated[float, typer.Option(help="Multiply the workload's token counts.")] = 1.0,
    ctx: Annotated[int | None, typer.Option(help="KV cells of all lanes together.")] = None,
    threads: Annotated[int | None, typer.Option(help="Most CPU threads. Default: probed.")] = None,
    model: options.ModelOption = None,
    runtime: Annotated[str, typer.Option(help="llama_cpp, or simulated.")] = "llama_cpp",
    runtime_option: options.RuntimeOptions = None,
    out: Annotated[
        Path,
        typer.Option(parser=options.path_argument, metavar="PATH", help="Folder for compare.json and frontier.png."),
    ] = Path("out/compare"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Compare settings on one model, in alternating windows with the same prompts.

    Every round runs each setting once, in a drawn order, so that heat and other programs fall on all alike. The
    foreground runs alone in windows of its own: [b]solo[/b], what every setting is held against. Background
    throughput is a share of shared/unlimited's, which protects nobody.

    Example: [cyan]dlfp-edge compare chat-ingest --settings lanes/dlfp,shared/unlimited --pace off,12[/cyan]

    Ctrl-C ends with the rounds done so far.
    """
    from dlfp_edge.bench.loading import load_runtime
    from dlfp_edge.cli.logs import keep_log_in
    from dlfp_edge.experiment.compare import Comparer
    from dlfp_edge.experiment.workload import load_workload
    from dlfp_edge.plugins import detect_device

    options.at_least_one(rounds, "--rounds")
    options.parse_positive(str(scale), "--scale")
    window_s = options.parse_duration(window, "--window", bare_unit="s")
    asked = load_workload(workload)
    options.at_least_one(threads, "--threads")
    options.known_runtime(runtime)
    options.existing_model(model)
    given = options.parse_options(runtime_option)
    arms = _arms(settings, pace, target_itl, slowdown, ctx)
    name = model or ("the embedded model" if runtime == "llama_cpp" else runtime)
    written = _Files(out)
    with ExitStack() as stack:
        stack.enter_context(options.output_directory(out))
        file = model_file(runtime, model)
        with spinner(f"loading {name}…", picture=not as_json):
            loaded = stack.enter_context(
                closing(load_runtime(runtime, file, threads=threads, seed=seed, options=given))
            )
        comparer = Comparer(
            loaded,
            asked,
            arms,
            rounds=rounds,
            window_s=window_s,
            seed=seed,
            scale=scale,
            topology=detect_device().cpu(),
            baseline=_baseline(arms),
            progress=note,
        )
        note(f"{comparer.windows} windows of {window_s:g} s: about {_minutes(comparer.windows * window_s)}")
        keep_log_in(out)
        with stops_on_interrupt(comparer.stop) as interruption:
            result = comparer.run(written.save)
        simulated = loaded.clock.name == "virtual"
    _print(result, simulated, written, as_json)
    raise typer.Exit(interruption.code if result.rounds < rounds else 1 if written.fault else 0)


class _Files:
    """The comparison's files. A disk that takes nothing is said once, and ends no comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: str | None = None

    def save(self, result: Comparison) -> None:
        """Bring the files up to date."""
        try:
            result.save(self.folder)
            self.fault = None
        except RuntimeFailure as error:
            if self.fault is None:
                note(f"error: {error}; the comparison goes on")
            self.fault = str(error)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _arms(
    settings: str, pace: str | None, target_itl: str | None, slowdown: float | None, ctx: int | None
) -> list[Arm]:
    """Every setting at every pace."""
    from dlfp_edge.experiment.compare import Arm

    names = [name.strip() for name in settings.split(",") if name.strip()]
    if not names:
        raise UsageError("--settings: name at least one, such as lanes/dlfp")
    paces = [None] if pace is None else [options.parse_pace(part) for part in pace.split(",")]
    arms: list[Arm] = []
    for rate in paces:
        suffix = "" if len(paces) == 1 else " unpaced" if rate is None else f" at {rate:g}/s"
        for name in names:
            if any(arm.label == name + suffix for arm in arms):
                raise UsageError(f"--settings and --pace: '{name + suffix}' is there twice; name each once")
            chosen = options.build_settings(name, None, None, "edge", [], target_itl, slowdown, ctx)
            arms.append(Arm(name + suffix, chosen, rate))
    return arms


def _baseline(arms: list[Arm]) -> str:
    """The first arm without protection, or the name it would have."""
    from dlfp_edge.experiment.compare import BASELINE

    return next((arm.label for arm in arms if arm.label.startswith(BASELINE)), BASELINE)


def _print(result: Comparison, simulated: bool, files: _Files, as_json: bool) -> None:
    if as_json:
        print_json({**result.as_json(), "simulated": simulated, "out": str(files.folder)})
        return
    rows = [tuple(getattr(row, name) for name in _COLUMNS) for row in result.rows]
    source = "simulated" if simulated else "measured"
    title = f"{result.workload}, {result.rounds} rounds of {result.window_s:g} s ({source}); gaps and TTFT in ms"
    print_table(title, tuple(_COLUMNS.values()), rows)
    if result.rounds and not files.fault:
        print(f"files  {files.folder}/  (compare.json, frontier.png)")
