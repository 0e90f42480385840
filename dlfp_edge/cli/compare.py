"""`dlfp-edge compare`: whether a setting helps, in paired trials beside controls and peers."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.fetching import model_file
from dlfp_edge.cli.interrupt import stops_on_interrupt
from dlfp_edge.cli.live import picture_possible, spinner
from dlfp_edge.cli.output import print_json
from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from dlfp_edge.experiment.experiment import Experiment

_DEFAULT = "auto,lanes/static,shared/dlfp,shared/fixed:32,shared/fcfs"
_WHAT, _HOW, _MODEL, _OUTPUT = "What to compare", "How to measure", "Model", "Output"


def compare(
    workload: Annotated[str, typer.Argument(help="A bundled workload, or a .toml file.")] = "chat-ingest",
    settings: Annotated[
        str,
        typer.Option(
            help="PLACEMENT/CONTROLLER, with commas; the first is the candidate. shared/fixed:* is a sweep.",
            rich_help_panel=_WHAT,
        ),
    ] = _DEFAULT,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="llama-server, or llama-server-pair (two, one at idle priority). Repeatable.", rich_help_panel=_WHAT
        ),
    ] = None,
    peer_binary: Annotated[
        Path | None,
        typer.Option(
            parser=options.path_argument,
            metavar="PATH",
            help="A llama-server of your own. Default: the one in the package xllamacpp.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="An OpenAI-compatible server that runs already. Repeatable.", rich_help_panel=_WHAT
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_API_KEY", help="Sent to endpoints as a bearer token.", rich_help_panel=_WHAT),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(help="Show foreground tokens at this rate, or 'off'.", rich_help_panel=_WHAT),
    ] = None,
    target_itl: Annotated[
        str | None, typer.Option(help="Longest foreground gap to aim at: 80ms.", rich_help_panel=_WHAT)
    ] = None,
    slowdown: Annotated[
        float | None, typer.Option(help="The same as a multiple of a decode alone.", rich_help_panel=_WHAT)
    ] = None,
    scale: Annotated[float, typer.Option(help="Multiply the workload's token counts.", rich_help_panel=_WHAT)] = 1.0,
    seeds: Annotated[
        str, typer.Option(help="Seeds of prompts and arrivals, one trial each, with commas.", rich_help_panel=_HOW)
    ] = "801,802,803",
    gaps: Annotated[int, typer.Option(help="A trial ends at so many contended gaps.", rich_help_panel=_HOW)] = 1000,
    cap: Annotated[str, typer.Option(help="A trial ends after this time at the latest.", rich_help_panel=_HOW)] = "60s",
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed in under 4 minutes: no verdicts.", rich_help_panel=_HOW)
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would run and how long, and stop.", rich_help_panel=_HOW)
    ] = False,
    busy_ok: Annotated[
        bool, typer.Option("--busy-ok", help="Measure although other programs want the CPUs.", rich_help_panel=_HOW)
    ] = False,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Kernels with which words cannot depend on the setting.", rich_help_panel=_HOW),
    ] = False,
    ctx: Annotated[int | None, typer.Option(help="KV cells of all lanes together.", rich_help_panel=_MODEL)] = None,
    threads: Annotated[
        int | None, typer.Option(help="Most CPU threads. Default: probed.", rich_help_panel=_MODEL)
    ] = None,
    model: options.ModelOption = None,
    runtime: Annotated[str, typer.Option(help="llama_cpp, or simulated.", rich_help_panel=_MODEL)] = "llama_cpp",
    runtime_option: options.RuntimeOptions = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=options.path_argument,
            metavar="PATH",
            help="Folder of the comparison; one that was cut short goes on there. Default: out/compare-<time>.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Compare settings, and llama-server, in paired trials: same prompts, same arrivals, in a drawn order.

    Every setting runs once with each seed. The foreground runs alone as well: [b]solo[/b], what gaps are held against.
    What the first setting changes is claimed only where the 95% interval over the seeds leaves no doubt.

    Example: [cyan]dlfp-edge compare chat-ingest --settings auto,shared/fixed:* --peer llama-server --out out/a[/cyan]

    Ctrl-C keeps the trials that are done; the same command with the same --out goes on.
    """
    from dlfp_edge.cli.contestants import asked_others, asked_settings
    from dlfp_edge.cli.logs import keep_log_in
    from dlfp_edge.cli.verdicts import print_plan
    from dlfp_edge.experiment.detect import detect
    from dlfp_edge.experiment.experiment import Question, open_experiment
    from dlfp_edge.experiment.machine import refuse_busy
    from dlfp_edge.experiment.workload import load_workload

    options.at_least_one(gaps, "--gaps")
    options.parse_positive(str(scale), "--scale")
    options.at_least_one(threads, "--threads")
    options.known_runtime(runtime)
    options.existing_model(model)
    asked = load_workload(workload).scaled(scale)
    drawn = _seeds(seeds)
    contestants = asked_settings(settings, target_itl, slowdown, ctx, quick=quick)
    others = asked_others(peer or [], peer_binary, endpoint or [], api_key, runtime, quick=quick)
    if len(contestants) + len(others) < 2:
        raise UsageError("--settings: there is nothing to compare with: name a control too, such as shared/fcfs")
    question = Question(
        workload=asked if pace is None else asked.paced(options.parse_pace(pace)),
        scale=scale,
        settings=contestants,
        others=others,
        seeds=drawn[:1] if quick else drawn,
        gaps=gaps,
        cap_s=options.parse_duration(cap, "--cap", bare_unit="s"),
        quick=quick,
        exact=exact,
        threads=threads,
        options=options.parse_options(runtime_option),
    )
    folder = out or options.fresh_directory(Path("out") / time.strftime("compare-%Y%m%d-%H%M%S"))
    with ExitStack() as stack:
        if not plan:
            stack.enter_context(options.output_directory(folder))
        if not plan:
            for url in endpoint or ():
                detect(url, api_key=api_key or None)
        file = model_file(runtime, model)
        name = model or ("the embedded model" if runtime == "llama_cpp" else runtime)
        with spinner(f"loading {name}…", picture=not as_json):
            experiment = stack.enter_context(closing(open_experiment(question, runtime, file, folder=folder)))
        if plan:
            print_plan(experiment, as_json)
            return
        keep_log_in(folder)
        if not (busy_ok or experiment.simulated):
            refuse_busy()
        code = _run(experiment, as_json)
    raise typer.Exit(code)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--seeds: '{text}' is no list of whole numbers, such as 801,802,803") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds: '{text}' must be different numbers, none below 0")
    return seeds


def _run(experiment: Experiment, as_json: bool) -> int:
    """Run the experiment and print its result; the exit code."""
    from dlfp_edge.cli.trials import Progress
    from dlfp_edge.cli.verdicts import print_result

    picture = not as_json and picture_possible()
    with Progress(experiment, picture=picture) as progress, stops_on_interrupt(experiment.stop) as interruption:
        result = experiment.run(progress.before, progress.after)
    with spinner("writing the report…", picture=not as_json):
        from dlfp_edge.report.comparison import write_report

        write_report(result, experiment.folder)
    if as_json:
        print_json({**result.model_dump(mode="json"), "out": str(experiment.folder)})
    else:
        print_result(result, experiment.folder)
    if not result.complete:
        return interruption.code
    return 1 if result.trials.get("failed") else 0
