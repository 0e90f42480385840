"""Where words go: one JSON document or tables to stdout, everything said on the way to stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from dlfp_edge.errors import RuntimeFailure

_PIPE_WIDTH = 160


def note(message: str) -> None:
    """Say something on the way to the result."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds, and what it will be given, nowhere: its file takes nothing more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _to_stdout() -> Iterator[None]:
    """Names stdout where it takes nothing more."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(sys.stdout)
        raise RuntimeFailure(f"cannot write to stdout: {error.strerror or error}") from None


def print_json(document: Mapping[str, Any]) -> None:
    """The command's one document on stdout."""
    with _to_stdout():
        print(to_json(document), flush=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document beside the others of its kind, creating the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(document) + "\n", encoding="utf-8")


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON: what is not a finite number becomes null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A plain table on stdout; numbers stand to the right, and a column in which nothing was measured is left out."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [index for index in range(len(columns)) if not rows or any(row[index] is not None for row in rows)]
    for index in shown:
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(columns[index], justify="right" if numeric else "left", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(cell(row[index]) for index in shown))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    with _to_stdout():
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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
