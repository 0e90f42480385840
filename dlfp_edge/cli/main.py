"""The application: its commands, and how any failure becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from dlfp_edge.cli import bench, compare, load, models, prove, prove_gpus, run, worker
from dlfp_edge.cli.interrupt import INTERRUPTED, TERMINATED, Terminated, ends_on_sigterm
from dlfp_edge.cli.options import path_argument
from dlfp_edge.cli.output import Stdout, discard, note
from dlfp_edge.errors import DlfpError, UsageError

PROGRAM = "dlfp-edge"

app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("load")(load.load)
app.command("worker")(worker.worker)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
prove.app.command("gpus")(prove_gpus.gpus)
app.add_typer(prove.app, name="prove")


@app.callback(invoke_without_command=True)
def describe(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            envvar="DLFP_EDGE_LOG",
            metavar="LEVEL",
            help="How much is logged, to the file and to stderr: debug, info, warning or error. Default: info to the "
            "file, warning to stderr.",
        ),
    ] = None,
    log_file: Annotated[
        Path | None,
        typer.Option(
            parser=path_argument, metavar="PATH", help="Append the log to this file. Default: log.jsonl in --out."
        ),
    ] = None,
) -> None:
    """One language model answers someone who is watching and works through documents, at the same time.

    [b]foreground[/b]  what somebody watches; its gaps between tokens (ITL) are kept near what they would be alone.
    [b]background[/b]  what nobody waits for; it gets nearly all of the rest of the machine.

    Try it:  [cyan]dlfp-edge run[/cyan]

    See a setting without protection:  [cyan]dlfp-edge run --setting shared/fcfs[/cyan]

    Your own work:  [cyan]dlfp-edge run --foreground "A good breakfast starts with" --background notes/[/cyan]
    """
    if version:
        from importlib.metadata import version as installed_version

        print(f"{PROGRAM} {installed_version('dlfp-edge')}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    else:
        from dlfp_edge.cli import logs

        context.call_on_close(logs.start(log_level or None, log_file).close)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0 well, 2 wrong input, 1 other failures, 130 interrupted, 143 terminated."""
    if not _open_streams():
        return _report("cannot write to stdout: it is closed", 1)
    with redirect_stdout(cast(TextIO, Stdout(sys.stdout))):
        return _run(arguments)


def _open_streams() -> bool:
    """Whether there is a stdout. Numbers of closed streams are taken, so that no file of a run gets their output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return sys.stdout is not None


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with ends_on_sigterm():
            code = app(None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False)
        if code == INTERRUPTED:
            return _interrupted()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Terminated:
        note(f"{PROGRAM}: terminated")
        return TERMINATED
    except BrokenPipeError:
        discard(sys.stdout)
        return 1
    except UsageError as error:
        return _fail(error, 2)
    except Exception as error:
        return _fail(error, 2 if _is_command_line_error(error) else 1)


def _is_command_line_error(error: Exception) -> bool:
    """Whether typer itself could not read the command line."""
    return isinstance(error, typer.BadParameter.__mro__[1])


def _fail(error: Exception, code: int) -> int:
    if os.environ.get("DLFP_EDGE_DEBUG") == "1":
        raise error
    format_message = getattr(error, "format_message", None)
    message = format_message() if format_message else str(error)
    if "No such option: --log-" in message:
        message += f" (it goes before the command: {PROGRAM} --log-level debug run)"
    if not isinstance(error, DlfpError) and format_message is None:
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return _report(" ".join(message.split()), code)


def _interrupted() -> int:
    note(f"{PROGRAM}: interrupted")
    return INTERRUPTED


def _report(message: str, code: int) -> int:
    note(f"{PROGRAM}: error: {message}")
    return code


if __name__ == "__main__":
    sys.exit(main())
