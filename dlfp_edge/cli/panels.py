"""The live view as text: pure functions from what is known to lines that fit the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from dlfp_edge.trace import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_STATUS_ROWS = 6
_MOST_TEXT_ROWS = 18
_LABEL_WIDTH = 12
_NARROW = 48


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything one picture shows. `documents` is how many background tasks there will be; None where that is open."""

    snapshot: Snapshot
    documents: int | None
    text: str
    title: str
    gaps_s: Sequence[float]
    elapsed_s: float
    foreground_rate: float
    background_rate: float


def render(frame: Frame, width: int, height: int) -> Text:
    """The whole picture, at most `height` rows of at most `width` cells."""
    rows = min(_MOST_TEXT_ROWS, max(2, height - _STATUS_ROWS - 2))
    lines = [_rule(f"{frame.title}  {frame.foreground_rate:.1f} tok/s", f"{frame.elapsed_s:.0f} s", width)]
    lines += wrapped_tail(frame.text, width, rows)
    lines.append(_rule(frame.snapshot.controller, "", width))
    lines += _status(frame, width)
    return Text("\n").join(lines[:height])


def wrapped_tail(text: str, width: int, rows: int) -> list[Text]:
    """The last `rows` lines of text broken at words to `width` cells, filled up with empty lines."""
    lines: list[str] = []
    for paragraph in text[-rows * width :].splitlines():
        lines += _wrap(paragraph, width)
    shown = lines[-rows:] + [""] * (rows - len(lines))
    return [Text(line, style="bold cyan" if line.startswith("▸") else "") for line in shown]


def sparkline(values: Sequence[float], target: float | None, width: int) -> Text:
    """The newest values as bars; the middle of the scale is the target, and what exceeds it is red."""
    newest = list(values)[-width:]
    top = 2 * target if target else max(newest, default=1.0) or 1.0
    line = Text()
    for over, run in groupby(newest, lambda value: bool(target and value > target)):
        bars = "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in run)
        line.append(bars, style="red" if over else "green")
    return line


def progress_bar(done: int, total: int, width: int) -> Text:
    """How much of the work is done."""
    filled = round(width * done / total) if total else 0
    return Text("━" * filled, style="green") + Text("─" * (width - filled), style="dim")


def _status(frame: Frame, width: int) -> list[Text]:
    room = max(4, width - _LABEL_WIDTH)
    lines = [
        _labelled("gaps", _gaps(frame, room), width),
        _labelled("background", _background(frame, room), width),
        _labelled("given", _given(frame.snapshot), width),
        _labelled("running", _queues(frame.snapshot, room), width),
    ]
    for message in frame.snapshot.messages[-1:]:
        lines += [Text(line, style="yellow") for line in _wrap(message, width)[:2]]
    return lines


def _gaps(frame: Frame, room: int) -> Text:
    words = " -" if not frame.gaps_s else f" {frame.gaps_s[-1] * 1000:.0f} ms"
    target, alone = frame.snapshot.target_s, frame.snapshot.decode_only_s
    if target is not None:
        words += f", target {target * 1000:.0f}"
    if alone is not None and room >= _NARROW:
        words += f", alone {alone * 1000:.0f}"
    return sparkline(frame.gaps_s, target, max(4, min(60, room - len(words)))) + Text(words)


def _background(frame: Frame, room: int) -> Text:
    done, total = frame.snapshot.background_finished, frame.documents
    rate = f", {frame.background_rate:,.0f} prompt tok/s"
    if total is None:
        return Text(f"{done} done{rate}")
    words = f" {done} of {total} done{rate}" if room >= _NARROW else f" {done}/{total}"
    return progress_bar(done, total, max(4, min(60, room - len(words)))) + Text(words)


def _given(snapshot: Snapshot) -> Text:
    if snapshot.budget is None:
        return Text("no limit")
    unit = "threads to background" if snapshot.placement == "lanes" else "tokens beside a decode"
    return Text(f"{snapshot.budget:.4g} {unit}")


def _queues(snapshot: Snapshot, room: int) -> Text:
    used = f"{100 * snapshot.kv_used / snapshot.kv_cells:.0f}%" if snapshot.kv_cells else "-"
    running = (snapshot.foreground_running, snapshot.background_running)
    waiting = (snapshot.foreground_queued, snapshot.background_queued)
    if room < _NARROW:
        return Text(f"{running[0]}+{running[1]}, wait {waiting[0]}+{waiting[1]}, KV {used}")
    return Text(
        f"{running[0]} foreground ({waiting[0]} waiting), {running[1]} background ({waiting[1]} waiting), KV {used}"
    )


def _labelled(label: str, content: Text, width: int) -> Text:
    return _cut(Text(f"{label:<{_LABEL_WIDTH}}", style="dim") + content, width)


def _rule(left: str, right: str, width: int) -> Text:
    line = Text("── ", style="dim") + Text(left, style="bold")
    end = f" {right} ──" if right else ""
    fill = width - cell_len(line.plain) - len(end) - 1
    return _cut(line + Text(f" {'─' * max(0, fill)}{end}", style="dim"), width)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _wrap(paragraph: str, width: int) -> list[str]:
    """Break at spaces, and inside a word that is wider than the line."""
    lines, line, used = [], "", 0
    for word in paragraph.split(" "):
        size = cell_len(word)
        if line and used + 1 + size > width:
            lines.append(line)
            line, used = "", 0
        while size > width:
            head = _fitting(word, width)
            lines.append(word[:head])
            word = word[head:]
            size = cell_len(word)
        line, used = (f"{line} {word}", used + 1 + size) if line else (word, size)
    return [*lines, line]


def _fitting(word: str, width: int) -> int:
    """How many characters of a word fill at most `width` cells, at least one."""
    count, used = 0, 0
    for character in word:
        used += cell_len(character)
        if used > width:
            break
        count += 1
    return max(1, count)
