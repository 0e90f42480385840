"""The tables of a report, as text cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.results import Over, Row
from dlfp_edge.measure.percentiles import Distribution
from dlfp_edge.report.families import Family, alone, family
from dlfp_edge.report.words import number, percent


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table: the first cell names it, `family` colours it."""

    name: str
    family: Family
    candidate: bool
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `heads` are those of the cells after the name."""

    title: str
    note: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The heads, and whether text stands below rather than figures."""
        longest = [max((len(line.cells[at]) for line in self.lines), default=0) for at in range(len(self.heads))]
        return [(head, length > _LONGEST_FIGURE) for head, length in zip(self.heads, longest, strict=True)]


_LONGEST_FIGURE = 14


def tables(result: Result) -> list[Table]:
    """Every figure of every arm, a table for each question."""
    paced = any(row.shown.count for row in result.rows)
    found = [_distributions("Gaps between tokens, raw", "ms; contended ones, of solo arms all", result, _itl)]
    if paced:
        found.append(_distributions("Gaps shown to readers", "ms; streams with a pace", result, lambda row: row.shown))
        found.append(_lateness(result))
    found += [
        _distributions("All gaps, contended or not", "ms", result, lambda row: row.all_itl),
        _over_solo(result),
        _distributions("TTFT", "ms from the scheduled arrival", result, lambda row: row.ttft),
        _distributions("TPOT", "ms; mean gap of a request", result, lambda row: row.tpot),
        _distributions("E2EL", "ms from the scheduled arrival; complete answers", result, lambda row: row.e2el),
        _objectives(result),
        _work(result),
        _soundness(result),
        _machine(result),
    ]
    return found


def _itl(row: Row) -> Distribution:
    return row.itl


def _table(title: str, note: str, result: Result, columns: Sequence[tuple[str, Callable[[Row], str]]]) -> Table:
    return Table(
        title,
        note,
        tuple(head for head, _ in columns),
        tuple(
            Line(row.setting, family(row), row.setting == result.candidate, tuple(cell(row) for _, cell in columns))
            for row in result.rows
        ),
    )


def _distributions(title: str, note: str, result: Result, of: Callable[[Row], Distribution]) -> Table:
    def figure(name: str) -> Callable[[Row], str]:
        return lambda row: number(getattr(of(row), name))

    names = (("mean", "mean"), ("P50", "p50"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("P99.9", "p999"))
    columns = [("count", lambda row: f"{of(row).count:,}"), *((head, figure(name)) for head, name in names)]
    return _table(title, note, result, [*columns, ("max", figure("max"))])


def _lateness(result: Result) -> Table:
    return _table(
        "Late tokens",
        "of streams with a pace: shown after they were due, by the schedule in force; late from 15 ms on",
        result,
        [
            ("late", lambda row: percent(row.late_share)),
            ("P50, ms", lambda row: number(row.lateness.p50)),
            ("P99, ms", lambda row: number(row.lateness.p99)),
            ("max, ms", lambda row: number(row.lateness.max)),
        ],
    )


def _over_solo(result: Result) -> Table:
    """Pooled first, then a line for each stream where there are several."""
    several = len({name for row in result.rows for name in row.streams}) > 1
    lines = []
    for row in result.rows:
        first = row.setting == result.candidate
        lines.append(Line(row.setting, family(row), first, ("all", *_over(row.over_solo))))
        if several:
            streams = row.streams.items()
            lines += [Line(row.setting, family(row), first, (name, *_over(over))) for name, over in streams]
    return Table(
        "Gaps against solo",
        "shares of gaps above multiples of the stream's median gap alone, and the sum of what gaps exceed it by",
        ("stream", "above 2x", "above 5x", "above 10x", "excess, s", "excess, s per 1,000 gaps"),
        tuple(lines),
    )


def _over(over: Over) -> tuple[str, ...]:
    shares = (percent(over.over_2x), percent(over.over_5x), percent(over.over_10x))
    return (*shares, number(over.excess_s), number(over.excess_per_1000_s))


def _objectives(result: Result) -> Table:
    return _table(
        "Objectives (SLO) and goodput",
        "shares of foreground requests that met all three; failed ones missed",
        result,
        (
            ("requests", lambda row: f"{row.requests:,}"),
            ("SLO met", lambda row: percent(row.slo_share)),
            ("goodput, requests/s", lambda row: number(row.goodput_per_s)),
            ("objectives and where they are from", lambda row: row.slo or "none known: nothing was measured alone"),
        ),
    )


def _work(result: Result) -> Table:
    return _table(
        "Work done",
        "normalised: times what the candidate's family reads alone over what this target does",
        result,
        (
            ("seconds", lambda row: number(row.seconds)),
            ("answer tokens/s", lambda row: number(row.output_tokens_per_s)),
            ("background tokens/s", lambda row: number(row.background_tokens_per_s)),
            ("normalised", lambda row: number(row.background_normalised)),
            ("documents/min", lambda row: number(row.documents_per_min)),
            ("prefill alone, of the candidate's", lambda row: number(row.prefill_ratio)),
            ("solo gap, of the candidate's", lambda row: number(row.decode_ratio)),
        ),
    )


def _soundness(result: Result) -> Table:
    against = f"same words as {result.baseline}" if result.baseline else "same words"
    return _table(
        "Failures and agreement",
        "trials that do not count, requests that failed, and answers with the same words, as far as both go",
        result,
        (
            ("trials", lambda row: str(row.trials)),
            ("void", lambda row: str(row.void)),
            ("failed", lambda row: str(row.failed_trials)),
            ("HTTP failures", lambda row: str(row.http_failures)),
            ("engine failures", lambda row: str(row.engine_failures)),
            ("deadlines missed", lambda row: str(row.missed_deadlines)),
            ("answers with merged tokens", lambda row: str(row.merged_answers)),
            (against, lambda row: _agreement(row, result.baseline)),
        ),
    )


def _agreement(row: Row, baseline: str | None) -> str:
    agreed = row.agreement
    if agreed is None or not agreed.answers:
        return "unavailable"
    answers = f"{agreed.alike} of {agreed.answers} answers ({percent(agreed.share)})"
    said = f"{answers}, {agreed.same:,} of {agreed.tokens:,} tokens"
    return f"with itself, run again: {said}" if row.setting == baseline else said


def _machine(result: Result) -> Table:
    return _table(
        "Machine meanwhile",
        "CPUs' worth of work by what was measured, by other programs, and what a host took; highest resident memory",
        result,
        (
            ("own CPUs", lambda row: number(row.own_cpus)),
            ("foreign CPUs", lambda row: number(row.foreign_cpus)),
            ("steal CPUs", lambda row: number(row.steal_cpus)),
            ("memory, MiB", lambda row: number(None if row.memory_bytes is None else row.memory_bytes / 2**20)),
            ("energy, J per token", _energy),
        ),
    )


def _energy(row: Row) -> str:
    if row.energy_j_per_token is not None:
        return number(row.energy_j_per_token)
    return f"unavailable: {row.unavailable.get('energy_j_per_token', 'not sampled')}"


def frontier_lines(result: Result, marks: Mapping[str, str]) -> Table:
    """The points of the pictures, the smoothest first, with their numbers where `marks` are such."""
    rows = sorted((row for row in result.rows if row.seen.p99 is not None), key=lambda row: row.seen.p99 or 0.0)
    paced = any(row.shown.count for row in rows)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("P99 gap, ms", lambda row: number(row.itl.p99)),
        ("longest, ms", lambda row: number(row.itl.max)),
        ("background tokens/s", lambda row: number(row.background_tokens_per_s)),
        ("normalised", lambda row: number(row.background_normalised)),
        ("documents/min", lambda row: number(row.documents_per_min)),
        ("trials", lambda row: str(row.trials)),
    ]
    if paced:
        columns[2:2] = [
            ("P99 shown, ms", lambda row: number(row.shown.p99)),
            ("longest shown, ms", lambda row: number(row.shown.max)),
        ]
    if any(mark != setting for setting, mark in marks.items()):
        columns.insert(0, ("no.", lambda row: marks.get(row.setting, "solo" if alone(row) else "")))
    lines = tuple(
        Line(
            row.setting,
            family(row),
            row.setting == result.candidate,
            tuple(cell(row) for _, cell in columns),
        )
        for row in rows
    )
    return Table("", "", tuple(head for head, _ in columns), lines)
