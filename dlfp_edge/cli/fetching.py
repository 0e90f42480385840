"""A model's file before it is loaded: fetched first, with a picture of how far that is, where it is on a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dlfp_edge.cli.live import picture_possible
from dlfp_edge.cli.output import note
from dlfp_edge.model_reference import local_model

if TYPE_CHECKING:
    from dlfp_edge.runtime import Tell


def model_file(runtime: str, model: str | None, *, quiet: bool = False) -> Path | None:
    """The model's file, once it is here; None stays the runtime's default."""
    from dlfp_edge.plugins import runtime_provider

    if model is None:
        return None
    with _telling(quiet) as tell:
        return local_model(model, runtime_provider(runtime), tell)


@contextmanager
def _telling(quiet: bool) -> Iterator[Tell | None]:
    """Says how far a download is: a bar on a terminal, else one line a file."""
    if quiet:
        yield None
        return
    if not picture_possible():
        yield _say_once()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def draw(name: str, here: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name.rpartition("/")[2])
            bar.update(tasks[name], completed=here, total=total)

        yield draw


def _say_once() -> Tell:
    said = set()

    def say(name: str, here: int, total: int) -> None:
        if name not in said:
            said.add(name)
            rest = f", {here / 1e6:,.0f} MB of it are here" if here else ""
            note(f"fetching {name}: {total / 1e6:,.0f} MB{rest}")

    return say
