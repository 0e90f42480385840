"""`dlfp-edge worker`: an engine for a front in another process, which says what to load and what to do."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from dlfp_edge.cli.output import note
from dlfp_edge.errors import UsageError


def worker(
    listen: Annotated[
        str | None,
        typer.Option(help="unix:PATH or 127.0.0.1:PORT. Default: stdin and stdout.", metavar="ADDRESS"),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen at an address that other machines reach (in clear text).")
    ] = False,
    parent: Annotated[int | None, typer.Option(help="End with the process of this id.", hidden=True)] = None,
) -> None:
    """Run a model and its engine for one front at a time.

    A front is a program with [cyan]open_engine(..., isolated=True)[/cyan], which starts a worker of its own and starts
    it again when it dies, or [cyan]isolated="unix:PATH"[/cyan], which uses one that listens there.

    A worker on TCP and its front must both have the same word in DLFP_EDGE_WORKER_SECRET.
    """
    from dlfp_edge.worker.address import parse_address
    from dlfp_edge.worker.serve import serve_at, serve_stdio

    if listen is None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # its front ends it this way, whatever it is doing
        serve_stdio(parent)
    address = parse_address(listen)
    if not address.local and not allow_remote:
        raise UsageError(
            f"other machines reach {address}, and nothing is encrypted: give --allow-remote if you mean it"
        )
    serve_at(address, note)
