"""Recorded arrivals to replay: CSV or JSONL, in our columns or those of a published trace."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from dlfp_edge.errors import UsageError
from dlfp_edge.task import Class

MOST_TOKENS = 10_000_000
"""No model reads more: a larger number in a trace is a slip."""


class TraceRequest(NamedTuple):
    """A row: seconds after the first row of the file, and the exact numbers of tokens in and out."""

    arrival_s: float
    prompt_tokens: int
    max_tokens: int


class _Format(NamedTuple):
    """The columns of a kind of trace, and what its arrivals are given in."""

    arrival: str
    prompt: str
    output: str
    unit: Literal["s", "ms", "date"]


_FORMATS = (
    _Format("arrival_s", "prompt_tokens", "max_tokens", "s"),
    _Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", "date"),  # Azure LLM inference traces
    _Format("Timestamp", "Request tokens", "Response tokens", "s"),  # BurstGPT
    _Format("timestamp", "input_length", "output_length", "ms"),  # Mooncake
)
_CLASS = "class"


def parse_trace(text: str, name: str, task_class: Class, *, shown: str) -> tuple[TraceRequest, ...]:
    """The requests of one class in a trace; without a column `class` every row is one of them.

    The end of `name`, .csv or .jsonl, says how to read it. Raises UsageError with one line that names `shown`, the row
    (counted from 1, header and empty lines apart) and the mend.
    """
    frame = _frame(text, name, shown)
    if not len(frame):
        raise UsageError(f"{shown}: holds no row: give it a line for each request")
    columns = _format(frame, shown)
    arrivals = _arrivals(frame[columns.arrival], columns, shown)
    prompts = _tokens(frame[columns.prompt], shown)
    outputs = _tokens(frame[columns.output], shown)
    wanted = _of_class(frame, task_class, shown)
    rows = zip(arrivals, prompts, outputs, wanted, strict=True)
    requests = tuple(TraceRequest(when, prompt, output) for when, prompt, output, ours in rows if ours)
    if not requests:
        raise UsageError(f"{shown}: no row is of class '{task_class.value}': correct the column, or remove the stream")
    return requests


def _frame(text: str, name: str, shown: str) -> pd.DataFrame:
    """The cells as they are written, as text; what is missing is ""."""
    if name.endswith(".csv"):
        return _csv(text, shown)
    if name.endswith(".jsonl"):
        return _jsonl(text, shown)
    raise UsageError(f"{shown}: a trace is a .csv or a .jsonl file: name it so")


def _csv(text: str, shown: str) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # else cells beyond the header are dropped
            frame = pd.read_csv(
                StringIO(text), dtype=str, index_col=False, keep_default_na=False, skipinitialspace=True
            )
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except pd.errors.ParserWarning:
        raise UsageError(f"{shown}: row 1 has more cells than the header: correct the file") from None
    except pd.errors.ParserError as error:
        reason = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise UsageError(f"{shown}: not valid CSV: {reason}: correct the file") from None
    return frame.fillna("")


def _jsonl(text: str, shown: str) -> pd.DataFrame:
    rows = []
    for number, line in enumerate((line for line in text.split("\n") if line.strip()), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{shown}: row {number} is not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"{shown}: row {number} is no JSON object: write one like {{...}} a line")
        rows.append({key: str(value) for key, value in row.items()})
    return pd.DataFrame(rows).fillna("")


def _format(frame: pd.DataFrame, shown: str) -> _Format:
    """The format with all of its columns there. Where none has, the complaint is about the one that comes nearest."""

    def missing(columns: _Format) -> list[str]:
        return [name for name in columns[:3] if name not in frame]

    nearest = min(_FORMATS, key=lambda columns: len(missing(columns)))
    if lacks := missing(nearest):
        known = "; ".join(", ".join(columns[:3]) for columns in _FORMATS)
        raise UsageError(f"{shown}: missing column '{lacks[0]}': a trace has the columns of one of these: {known}")
    return nearest


def _arrivals(cells: pd.Series[str], columns: _Format, shown: str) -> list[float]:
    if columns.unit == "date":
        dates = pd.to_datetime(cells, errors="coerce", utc=True, format="ISO8601")
        _refuse(cells, dates.isna(), "is no date and time", "correct the row or remove it", shown)
        moments = (dates - dates.iloc[0]).dt.total_seconds()
    else:
        numbers = _numbers(cells)
        _refuse(cells, ~(numbers >= 0.0), "is no time of at least 0", "correct the row or remove it", shown)
        moments = (numbers - numbers.iloc[0]) / (1e3 if columns.unit == "ms" else 1.0)
    early = moments.diff() < 0.0
    _refuse(cells, early, "is earlier than the row before", f"sort the rows by '{columns.arrival}'", shown)
    return [float(moment) for moment in moments]


def _tokens(cells: pd.Series[str], shown: str) -> list[int]:
    numbers = _numbers(cells)
    wrong = ~((numbers >= 1.0) & (numbers <= MOST_TOKENS) & (numbers % 1.0 == 0.0))
    problem = f"is no whole number of tokens from 1 to {MOST_TOKENS:,}"
    _refuse(cells, wrong, problem, "correct the row or remove it", shown)
    return [int(number) for number in numbers]


def _of_class(frame: pd.DataFrame, task_class: Class, shown: str) -> list[bool]:
    if _CLASS not in frame:
        return [True] * len(frame)
    cells = frame[_CLASS].str.strip()
    known = [member.value for member in Class]
    _refuse(cells, ~cells.isin(known), "is not 'foreground' or 'background'", "correct the row", shown)
    return [bool(ours) for ours in cells == task_class.value]


def _numbers(cells: pd.Series[str]) -> pd.Series[float]:
    """The numbers, NaN where a cell holds none that is finite."""
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    return numbers.where(np.isfinite(numbers))


def _refuse(
    cells: pd.Series[str], wrong: Sequence[bool] | pd.Series[bool], problem: str, mend: str, shown: str
) -> None:
    """Complain about the first cell that is wrong."""
    if not np.any(wrong):
        return
    row = int(np.argmax(wrong))
    given = repr(cells.iloc[row])
    raise UsageError(f"{shown}: row {row + 1}: '{cells.name}' {given[:40]} {problem}: {mend}")
