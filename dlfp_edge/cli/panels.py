"""The live view as text: pure functions from what is known to lines that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from rich.text import Text

from dlfp_edge.cli.cells import cut, printable, width, wrap
from dlfp_edge.trace import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_MOST_COLUMNS = 110
"""Wider lines are hard to read."""

_MOST_TEXT_ROWS, _LEAST_TEXT_ROWS = 18, 3
_LABEL_WIDTH = 12
_NARROW = 52
_TALL = 16
"""Rows from which on the gaps have two of them, with the target between."""

_NOTICES = 2
_MOST_BAR = 40
_LATE_S = 0.015
"""A paced token is late when its gap is longer than the pace by more than this."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything one picture shows.

    `documents` is how many background tasks there will be; None where that is open. `gaps_s` are those that readers
    saw, `pace` at how many tokens a second they are shown (None: as they come). `notices` are what was said meanwhile.
    """

    snapshot: Snapshot
    documents: int | None
    text: str
    title: str
    gaps_s: Sequence[float]
    pace: float | None
    elapsed_s: float
    foreground_rate: float
    background_rate: float
    notices: Sequence[str] = ()

    @property
    def limit_s(self) -> float | None:
        """The longest gap that is as wanted."""
        return self.snapshot.target_s if self.pace is None else 1 / self.pace + _LATE_S


def render(frame: Frame, columns: int, rows: int) -> list[Text]:
    """The whole picture, at most `rows` lines of at most `columns` cells."""
    columns = max(2, min(columns, _MOST_COLUMNS))
    status = _most_important(list(_status(frame, columns, tall=rows >= _TALL)), rows - 2 - _LEAST_TEXT_ROWS)
    text_rows = max(_LEAST_TEXT_ROWS, min(_MOST_TEXT_ROWS, rows - len(status) - 2))
    lines = [_rule(frame.title, f"{frame.elapsed_s:,.0f} s", columns)]
    lines += wrapped_tail(frame.text, columns, text_rows)
    lines += [_rule(frame.snapshot.controller, _wanted(frame), columns), *status]
    return lines[: max(1, rows)]


def wrapped_tail(text: str, columns: int, rows: int) -> list[Text]:
    """The last `rows` lines of text broken at words to `columns` cells, filled up with empty lines."""
    lines: list[str] = []
    for paragraph in printable(text.rstrip()[-rows * columns :]).split("\n"):
        lines += wrap(paragraph, columns)
    shown = lines[-rows:] + [""] * (rows - len(lines))
    return [Text(line, style="bold cyan" if line.startswith("▸") else "") for line in shown]


def sparkline(values: Sequence[float], limit: float | None, columns: int) -> Text:
    """The newest values as bars; the middle of the scale is the limit, and what exceeds it is red."""
    newest = values[-columns:]
    top = 2 * limit if limit else max(newest, default=1.0) or 1.0
    return _coloured([(_bar(value / top), _over(value, limit)) for value in newest])


def tall_sparkline(values: Sequence[float], limit: float, columns: int) -> tuple[Text, Text]:
    """The same in two rows, with the limit between them."""
    newest = values[-columns:]
    upper = [(_bar(value / limit - 1) if value > limit else " ", True) for value in newest]
    return _coloured(upper), _coloured([(_bar(value / limit), value > limit) for value in newest])


def progress_bar(done: float, total: float, columns: int) -> Text:
    """How much of a whole is done."""
    filled = min(columns, round(columns * done / total)) if total else 0
    return Text.assemble(("━" * filled, "green"), ("─" * (columns - filled), "dim"))


def _bar(share: float) -> str:
    return _BARS[max(0, min(len(_BARS) - 1, int(share * len(_BARS))))]


def _over(value: float, limit: float | None) -> bool:
    return limit is not None and value > limit


def _coloured(bars: Sequence[tuple[str, bool]]) -> Text:
    line = Text()
    for over, run in groupby(bars, lambda bar: bar[1]):
        line.append("".join(bar for bar, _ in run), style="red" if over else "green")
    return line


_Row = tuple[int, Text]
"""A line and its place among those that stay where there is no room for all: 0 is the last to go."""


def _most_important(rows: list[_Row], most: int) -> list[Text]:
    kept = sorted(range(len(rows)), key=lambda index: rows[index][0])[: max(0, most)]
    return [rows[index][1] for index in sorted(kept)]


def _status(frame: Frame, columns: int, *, tall: bool) -> Iterator[_Row]:
    snapshot, room = frame.snapshot, max(2, columns - _LABEL_WIDTH)
    for step in snapshot.stuck:
        what = step.lane if room < _NARROW else f"a step of the {step.lane} lane has run for"
        words = f"{what} {step.ran_s:,.0f} s, predicted {step.predicted_s:.2g} s"
        yield 0, _labelled("stuck", Text(cut(words, room), style="bold red"), columns)
    yield from _gaps(frame, room, columns, tall=tall)
    yield 4, _labelled("answers", _answers(frame, room), columns)
    if frame.documents != 0:
        yield 2, _labelled("documents", _documents(frame, room), columns)
        yield 6, _labelled("given", Text(cut(_given(snapshot), room)), columns)
    yield (4 if snapshot.paused else 7), _labelled("KV cache", _memory(snapshot, room), columns)
    for message in frame.notices[-_NOTICES:]:
        first, *rest = wrap(_one_line(message), columns)
        yield 3, Text(first, style="yellow")
        if rest:
            yield 5, Text(cut(" ".join(rest), columns), style="yellow")


def _gaps(frame: Frame, room: int, columns: int, *, tall: bool) -> Iterator[_Row]:
    if not frame.gaps_s:
        yield 1, _labelled("gaps", Text("no two tokens yet"), columns)
        return
    first, second = _gap_words(frame, room)
    bars = max(4, min(60, room - max(width(first), width(second)) - 2))
    limit = frame.limit_s
    if tall and limit:
        for importance, label, line, words in zip(
            (8, 1), ("", "gaps"), tall_sparkline(frame.gaps_s, limit, bars), (second, first), strict=True
        ):
            yield importance, _labelled(label, _beside(line, words, bars, room), columns)
        return
    yield 1, _labelled("gaps", _beside(sparkline(frame.gaps_s, limit, bars), first, bars, room), columns)


def _gap_words(frame: Frame, room: int) -> tuple[str, str]:
    """The newest gap against what is wanted, and what the gaps of late were like."""
    gaps, limit, alone = frame.gaps_s, frame.limit_s, frame.snapshot.decode_only_s
    first = f"{gaps[-1] * 1000:.0f} ms"
    if frame.snapshot.target_s is not None and frame.pace is None:
        first += f", target {frame.snapshot.target_s * 1000:.0f}"
    if alone is not None and room >= _NARROW:
        first += f", alone {alone * 1000:.0f}"
    second = f"longest {max(gaps) * 1000:.0f}"
    if room >= _NARROW:
        second = f"p50 {median(gaps) * 1000:.0f}, {second}"
    over = sum(1 for gap in gaps if _over(gap, limit))
    return first, second if limit is None else f"{second}, {over} over"


def _beside(line: Text, words: str, bars: int, room: int) -> Text:
    line.append(" " * max(0, bars - len(line.plain)))
    return line + Text(cut(f"  {words}", max(0, room - bars)))


def _answers(frame: Frame, room: int) -> Text:
    snapshot = frame.snapshot
    running, waiting = snapshot.foreground_running, snapshot.foreground_queued
    where = f"{running} run, {waiting} wait" if room < _NARROW else f"{running} running, {waiting} waiting"
    return Text(cut(f"{frame.foreground_rate:.1f} tok/s, {where}", room))


def _documents(frame: Frame, room: int) -> Text:
    snapshot, total = frame.snapshot, frame.documents
    done = snapshot.background_finished
    where = f", {snapshot.background_running} running, {snapshot.background_queued} waiting"
    rate = f", {frame.background_rate:,.0f} prompt tok/s"
    if total is None:
        return Text(cut(f"{done} done{where}{rate if room >= _NARROW else ''}", room))
    words = f"  {done} of {total}" if room < _NARROW else f"  {done} of {total} done{where}{rate}"
    bars = max(4, min(_MOST_BAR, room - width(words)))
    return progress_bar(done, total, bars) + Text(cut(words, max(0, room - bars)))


def _given(snapshot: Snapshot) -> str:
    if snapshot.budget is None:
        return "no limit"
    count = f"{snapshot.budget:.3g}"
    noun = "thread" if snapshot.placement == "lanes" else "token"
    where = "to the background" if snapshot.placement == "lanes" else "beside a decode"
    return f"{count} {noun}{'' if count == '1' else 's'} {where}"


def _memory(snapshot: Snapshot, room: int) -> Text:
    if not snapshot.kv_cells:
        return Text("-")
    words = f"  {100 * snapshot.kv_used / snapshot.kv_cells:.0f}%"
    words += f" of {snapshot.kv_cells:,} cells" if room >= _NARROW else ""
    words += f", {snapshot.paused} paused" if snapshot.paused else ""
    bars = max(4, min(_MOST_BAR, room - width(words)))
    return progress_bar(snapshot.kv_used, snapshot.kv_cells, bars) + Text(cut(words, max(0, room - bars)))


def _wanted(frame: Frame) -> str:
    if frame.pace is not None:
        return f"shown at {frame.pace:g} tok/s"
    target = frame.snapshot.target_s
    return "no target" if target is None else f"target {target * 1000:.0f} ms"


def _labelled(label: str, content: Text, columns: int) -> Text:
    line = Text.assemble((f"{label:<{_LABEL_WIDTH}}", "dim"), content)
    line.truncate(columns)
    return line


def _rule(left: str, right: str, columns: int) -> Text:
    """A line across with words at both ends; the right ones go first where there is no room."""
    if columns < width(right) + 20:
        right = ""
    end = f" {right} ──" if right else ""
    left = cut(_one_line(left), max(0, columns - len("──  ") - width(end) - 1))
    fill = max(0, columns - len("──  ") - width(left) - width(end))
    line = Text.assemble(("── ", "dim"), (left, "bold"), (f" {'─' * fill}{end}", "dim"))
    line.truncate(columns)
    return line


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
