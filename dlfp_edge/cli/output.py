"""Where words go: one JSON document or tables to stdout, everything said on the way to stderr."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from dlfp_edge.cli.cells import printable
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.artefacts import write_json
from dlfp_edge.experiment.jsonlines import to_json

_PIPE_WIDTH = 200
_picture: Callable[[str], None] | None = None


def note(message: str) -> None:
    """Say something on the way to the result; while a picture is up, in it."""
    if _picture is not None:
        _picture(message)
        return
    try:
        print(_for(sys.stderr, message), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


@contextlib.contextmanager
def notes_in_picture(take: Callable[[str], None]) -> Iterator[None]:
    """Hand notes to a picture during the block: lines of others would tear it."""
    global _picture
    _picture = take
    try:
        yield
    finally:
        _picture = None


def picture_is_up() -> bool:
    """Whether notes go to a picture."""
    return _picture is not None


def _for(stream: TextIO, text: str) -> str:
    """Text as a stream may have it: on a terminal, without what terminals obey."""
    return printable(text) if stream.isatty() else text


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and what it will be given, nowhere: its file takes nothing more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Stdout:
    """A stream as stdout: where it takes nothing more that is said by name, whichever library was writing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of the stream. Raises RuntimeFailure."""
        with self._named():
            return self._stream.write(text)

    def flush(self) -> None:
        """As of the stream. Raises RuntimeFailure."""
        with self._named():
            self._stream.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(self._stream)
            raise RuntimeFailure(f"cannot write to stdout: {error.strerror or error}") from None


def print_json(document: Mapping[str, Any]) -> None:
    """The command's one document on stdout."""
    print(to_json(document), flush=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Makes an error of writing the command's file a RuntimeFailure that names it."""
    try:
        yield path
    except OSError as error:
        said = f"{path}: cannot be written: {error.strerror or error}"
        raise RuntimeFailure(f"{said}; the result is above: make room, or give --out another folder") from None


def save(path: Path, document: Mapping[str, Any]) -> None:
    """Write the command's document to a file. Raises RuntimeFailure, which names it, where that is not possible."""
    with writing(path):
        write_json(path, document)


def print_text(title: str, text: str) -> None:
    """Text of a model's or a user's on stdout: as it is, and on a terminal without what terminals obey."""
    print(_for(sys.stdout, f"{title}\n{text}"))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, markdown: bool = False) -> None:
    """A plain table on stdout, or one in Markdown; numbers stand to the right, and a column in which nothing was
    measured is left out.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD, pad_edge=markdown)
    shown = [index for index in range(len(columns)) if not rows or any(row[index] is not None for row in rows)]
    for index in shown:
        numeric = any(isinstance(row[index], int | float) for row in rows)
        widest = max(len(cell(row[index])) for row in rows) if numeric else None
        table.add_column(columns[index], justify="right" if numeric else "left", min_width=widest)
    for row in rows:
        table.add_row(*(cell(row[index]) for index in shown))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(title, style="bold", markup=False)
    console.print(table)


def cell(value: Any) -> str:
    """A value as people read it: three significant digits for fractions, a dash for nothing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
