"""`dlfp-edge run`: one model, somebody watching, and work in the background."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlfp_edge.cli import options
from dlfp_edge.cli.fetching import model_file
from dlfp_edge.cli.interrupt import stops_on_interrupt
from dlfp_edge.cli.live import Scene, choose_view, spinner
from dlfp_edge.cli.output import note, print_json
from dlfp_edge.cli.transcript import Transcript
from dlfp_edge.controls import controller_names
from dlfp_edge.settings import Placement
from dlfp_edge.task import Finish

if TYPE_CHECKING:
    from dlfp_edge.device import Device
    from dlfp_edge.engine import Engine
    from dlfp_edge.experiment.session import OnEvent, Outcome, Session
    from dlfp_edge.experiment.workload import Workload
    from dlfp_edge.runtime import Runtime
    from dlfp_edge.settings import Settings

_WORK, _MODEL, _SCHEDULING, _OUTPUT = "What to do", "Model", "Scheduling", "Output"


@dataclass(frozen=True, slots=True)
class _Order:
    """A run as it was asked for, checked as far as that goes without a model."""

    workload: Workload
    settings: Settings
    runtime: str
    model: str | None
    runtime_options: dict[str, str]
    threads: int | None
    exact: bool
    seed: int
    scale: float
    duration_s: float | None
    out: Path
    as_json: bool
    quiet: bool


def run(
    workload: Annotated[
        str | None,
        typer.Argument(
            help="A .toml file, or a bundled workload: demo (the default: a chat beside an ingestion), chat-ingest, "
            "ingest-summary, two-chats, conversations, agent-branches, single-session, chat, rag, agent, decode-heavy."
        ),
    ] = None,
    foreground: Annotated[
        list[str] | None,
        typer.Option(help="A prompt to answer while somebody watches, or @FILE. Repeatable.", rich_help_panel=_WORK),
    ] = None,
    background: Annotated[
        list[Path] | None,
        typer.Option(
            parser=options.path_argument,
            metavar="PATH",
            help="A text file, or a folder of them (not its subfolders), to work through. Repeatable.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    background_prompt: Annotated[
        str | None,
        typer.Option(help="What to do with each file, or @FILE. Default: summarise it.", rich_help_panel=_WORK),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="End a foreground answer before this text. Repeatable.", rich_help_panel=_WORK
        ),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(
            help="Answer the prompts in JSON that validates against this schema: its text, or @FILE.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option(help="Answer the prompts within this grammar (GBNF): its text, or @FILE.", rich_help_panel=_WORK),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(
            help="Show foreground tokens at this many a second, or 'off' as they come. Default: the workload's; "
            "15 for the prompts given here, unless their answers are structured.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help="End after this time: 60, 90s, 2m. Answers under way may go on for 10 s, waiting ones are cancelled.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="Multiply the workload's token counts.", max=1000, rich_help_panel=_WORK)
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.", rich_help_panel=_WORK)] = 0,
    model: Annotated[
        str | None,
        typer.Option(parser=options.model_argument, metavar="MODEL", help=options.MODEL_HELP, rich_help_panel=_MODEL),
    ] = None,
    runtime: Annotated[
        str, typer.Option(help="llama_cpp, or simulated (no model, virtual time).", rich_help_panel=_MODEL)
    ] = "llama_cpp",
    runtime_option: Annotated[
        list[str] | None,
        typer.Option(help=options.RUNTIME_OPTION_HELP, rich_help_panel=_MODEL),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Most CPU threads. Default: probed.", rich_help_panel=_MODEL)
    ] = None,
    ctx: Annotated[int | None, typer.Option(help="KV cells of all lanes together.", rich_help_panel=_MODEL)] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Slower kernels whose output no schedule changes.", rich_help_panel=_MODEL)
    ] = False,
    setting: Annotated[
        str, typer.Option(help="auto, or PLACEMENT/CONTROLLER such as shared/fixed:32.", rich_help_panel=_SCHEDULING)
    ] = "auto",
    placement: Annotated[
        str | None, typer.Option(help="lanes (side by side) or shared (in one step).", rich_help_panel=_SCHEDULING)
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            help=f"lanes: {', '.join(controller_names(Placement.LANES))}. "
            f"shared: {', '.join(controller_names(Placement.SHARED))}.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="edge, or a100 (the paper's values).", rich_help_panel=_SCHEDULING)
    ] = "edge",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A controller's parameter as NAME=VALUE, such as c_min=16. Repeatable.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = None,
    target_itl: Annotated[
        str | None, typer.Option(help="Longest foreground gap to aim at: 80ms.", rich_help_panel=_SCHEDULING)
    ] = None,
    slowdown: Annotated[
        float | None,
        typer.Option(
            help="The same as a multiple of a decode alone: 1.75 in lanes, 3 shared.", rich_help_panel=_SCHEDULING
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=options.path_argument,
            metavar="PATH",
            help="Folder for the run's files. Default: out/run-<time>.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Answer in the foreground and work in the background, on one model.

    With nothing said: the embedded model, a chat beside the ingestion of documents.

    [b]lanes[/b]  two contexts over one set of weights; the operating system lets the foreground go first.

    [b]shared[/b]  one queue; a controller bounds how much background work joins a foreground step.

    [b]ITL[/b]  the gap between two tokens of an answer.  [b]TTFT[/b]  the time to its first token.

    Examples:

    [cyan]dlfp-edge run[/cyan]

    [cyan]dlfp-edge run --setting shared/fcfs[/cyan]   (what a server without protection does)

    [cyan]dlfp-edge run --foreground "A good breakfast starts with" --background notes/[/cyan]

    [cyan]dlfp-edge run demo --target-itl 40ms --pace 12 --json --out out/paced[/cyan]

    Ctrl-C (or SIGTERM) ends a run in order and still writes its summary; a second one stops at once.
    """
    from dlfp_edge.cli.asked import asked_grammar, asked_workload

    followed = asked_grammar(json_schema, grammar)
    asked = asked_workload(workload, foreground or [], background or [], background_prompt, stop or [], followed)
    if pace is not None:
        asked = asked.paced(options.parse_pace(pace))
    options.parse_positive(str(scale), "--scale")
    options.known_runtime(runtime)
    options.existing_model(model)
    order = _Order(
        workload=asked,
        settings=options.build_settings(setting, placement, controller, preset, set_ or [], target_itl, slowdown, ctx),
        runtime=runtime,
        model=model,
        runtime_options=options.parse_options(runtime_option),
        threads=options.at_least_one(threads, "--threads"),
        exact=exact,
        seed=seed,
        scale=scale,
        duration_s=None if duration is None else options.parse_duration(duration, "--duration", bare_unit="s"),
        out=out or options.fresh_directory(Path("out") / time.strftime("run-%Y%m%d-%H%M%S")),
        as_json=as_json,
        quiet=quiet,
    )
    raise typer.Exit(_execute(order))


def _execute(order: _Order) -> int:
    from dlfp_edge.plugins import detect_device

    with options.output_directory(order.out), closing(_load(order)) as loaded:
        measured = _measure(order, loaded, detect_device())
    summary, stopped = measured.outcome.summary(), measured.outcome.stopped
    if order.as_json:
        own = {"answers": measured.answers} if measured.answers else {}
        print_json({**summary, "simulated": measured.simulated, "stopped": stopped, "out": str(order.out), **own})
    else:
        from dlfp_edge.cli.result import print_answers, print_result

        print_answers(measured.answers)
        print_result(summary, measured.simulated)
        print(f"files       {order.out}/  ({', '.join(_written(order, measured)) or 'nothing could be written'})")
    if stopped:
        return measured.interrupted
    return 1 if measured.fault or _nothing_came_of(measured.outcome) else 0


def _nothing_came_of(outcome: Outcome) -> bool:
    """Whether a request failed, or not one was answered in time."""
    return _all_late(outcome) or any(record.finish is Finish.ERROR for record in outcome.records)


def _all_late(outcome: Outcome) -> bool:
    finishes = {record.finish for record in outcome.records}
    return Finish.DEADLINE in finishes and not finishes & {Finish.STOP, Finish.LENGTH}


def _written(order: _Order, measured: _Measured) -> list[str]:
    from dlfp_edge.cli.logs import FILE_NAME

    return [*measured.files, *([FILE_NAME] if (order.out / FILE_NAME).exists() else [])]


def _load(order: _Order) -> Runtime:
    from dlfp_edge.bench.loading import load_runtime

    name = order.model or "the embedded model"
    message = "setting up the simulated runtime" if order.runtime == "simulated" else f"loading {name}, probing threads"
    model = model_file(order.runtime, order.model, quiet=order.quiet)
    with nullcontext() if order.quiet else spinner(f"{message}…", picture=not order.as_json):
        return load_runtime(
            order.runtime,
            model,
            threads=order.threads,
            exact=order.exact,
            seed=order.seed,
            options=order.runtime_options,
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    """What came of a run.

    `answers` are those to the command line's own prompts and files, as `requests.jsonl` has them. `interrupted` is the
    exit code if the run was stopped, `fault` what went wrong with the files.
    """

    outcome: Outcome
    answers: list[dict[str, Any]]
    simulated: bool
    interrupted: int
    files: list[str]
    fault: str | None


def _measure(order: _Order, loaded: Runtime, device: Device) -> _Measured:
    """Run the workload and write its files."""
    from dlfp_edge.cli.asked import OWN
    from dlfp_edge.cli.logs import keep_log_in
    from dlfp_edge.engine import Engine
    from dlfp_edge.experiment.artefacts import Artefacts, request_line
    from dlfp_edge.experiment.manifest import build_manifest
    from dlfp_edge.experiment.session import Session, is_virtual, running
    from dlfp_edge.experiment.sizing import sized

    topology, transcript = device.cpu(), Transcript()
    settings = sized(order.settings, order.workload.scaled(order.scale))
    engine = Engine(loaded, settings, topology)
    with running(engine):
        session = Session(
            engine,
            order.workload,
            seed=order.seed,
            scale=order.scale,
            duration_s=order.duration_s,
            on_event=_listener(transcript),
        )
        virtual = is_virtual(engine)
        with Artefacts(order.out, report=note, patient=virtual) as artefacts:
            session.artefacts = artefacts
            keep_log_in(order.out)
            outcome, interrupted = _watch(order, engine, session, transcript)
            manifest = build_manifest(
                runtime=loaded,
                device=device,
                topology=topology,
                settings=settings,
                workload=order.workload,
                seed=order.seed,
                scale=order.scale,
            )
            artefacts.finish(outcome.summary(), manifest)
    own = outcome.records if order.workload.name == OWN else ()
    answers = [request_line(record) for record in own]
    return _Measured(outcome, answers, virtual, interrupted, artefacts.files(), artefacts.fault)


def _listener(transcript: Transcript) -> OnEvent:
    """Hands what a session tells to the transcript."""
    from dlfp_edge.experiment.session import Finished, SessionEvent, TokenShown

    def on_event(event: SessionEvent) -> None:
        if isinstance(event, TokenShown):
            transcript.on_token(event.record, event.position)
        elif isinstance(event, Finished):
            transcript.on_finish(event.record)

    return on_event


def _watch(order: _Order, engine: Engine, session: Session, transcript: Transcript) -> tuple[Outcome, int]:
    """Run the session under the view that fits, stopping it on Ctrl-C; also the exit code if that happened."""
    from dlfp_edge.cli.asked import documents
    from dlfp_edge.experiment.session import is_virtual

    view = choose_view(order.quiet, order.as_json)
    with (
        stops_on_interrupt(session.stop) as interruption,
        view(engine, transcript, Scene(documents(order.workload), is_virtual(engine))) if view else nullcontext(),
    ):
        outcome = session.run()
    _say_failures(outcome)
    return outcome, interruption.code


def _say_failures(outcome: Outcome) -> None:
    errors = [record.error for record in outcome.records if record.error]
    if errors:
        note(f"{len(errors)} requests failed, the first because: {errors[0]}")
    elif _all_late(outcome):
        note("every request ran into its deadline: give more time, or less work")
