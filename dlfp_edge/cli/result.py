"""A run's figures as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlfp_edge.cli.output import cell, print_table, print_text
from dlfp_edge.task import Finish

_COLUMNS = ("foreground, ms", "p50", "p99", "max", "count")


def print_result(summary: Mapping[str, Any], simulated: bool) -> None:
    """The short table at the end of a run."""
    print_table(_title(summary, simulated), _COLUMNS, latency_rows(summary))
    for line in sentences(summary):
        print(line)


def print_answers(answers: Sequence[Mapping[str, Any]]) -> None:
    """Each answer under the name of its prompt or file."""
    for answer in answers:
        name = answer["label"].partition(" ")[2] or answer["label"]
        print_text(f"▸ {name}", f"{answer['text'].strip()}{_not_whole(answer)}\n")


def _not_whole(answer: Mapping[str, Any]) -> str:
    finish = Finish(answer["finish"])
    return "" if finish in (Finish.STOP, Finish.LENGTH) else f" [{answer['error'] or finish.value}]"


def latency_rows(summary: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The foreground's latencies; kinds that did not occur are left out."""
    foreground = summary["foreground"]
    kinds = [
        ("gap between tokens (ITL)", foreground["itl_ms"]),
        ("  while background works", foreground["contended_itl_ms"]),
        ("  as shown at its pace", foreground["shown_itl_ms"]),
        ("  alone (solo windows)", summary["solo_itl_ms"]),
        ("time to first token (TTFT)", foreground["ttft_ms"]),
        ("  alone (solo windows)", summary["solo_ttft_ms"]),
    ]
    return [
        (name, figures["p50"], figures["p99"], figures.get("max"), figures["count"])
        for name, figures in kinds
        if figures["count"]
    ]


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """The rest in words."""
    foreground, background = summary["foreground"], summary["background"]
    lines = []
    if foreground["requests"]:
        lines.append(f"foreground  {cell(foreground['output_tokens_per_s'])} tok/s, {_ended(foreground)}")
    if background["requests"]:
        lines.append(
            f"background  {cell(background['finished_per_min'])} documents/min, "
            f"{cell(background['prompt_tokens_per_s'])} prompt tok/s, {_ended(background)}"
        )
    lines += _pace(foreground)
    return [*lines, f"scheduling  {summary['controller']}, {_target(summary)}"]


def _pace(foreground: Mapping[str, Any]) -> list[str]:
    """Whether paced answers were shown in time, where there are any."""
    late, lowered = foreground["late_tokens"], foreground["lowered_pace"]
    if late["count"] is None:
        return []
    share, most = cell(100 * late["share"]), cell(late["max_ms"])
    line = f"pace        {share}% of tokens late, at most {most} ms after they were due"
    if lowered["requests"]:
        line += f"; lowered to {cell(lowered['tokens_per_s'])} tok/s: decoding is no faster here"
    return [line]


def _target(summary: Mapping[str, Any]) -> str:
    """The target changes as streams come and go: gaps are held against that of their own step, not the last one."""
    target, over = summary["target_itl_ms"], summary["itl_over_target"]
    if target is None:
        return "no target"
    if not over["count"]:
        return f"last target {cell(target)} ms"
    return (
        f"gap / target of its own step: P99 {cell(over['p99'])}, max {cell(over['max'])}; last target {cell(target)} ms"
    )


def _title(summary: Mapping[str, Any], simulated: bool) -> str:
    source = "simulated: no device took part" if simulated else "measured"
    return f"{summary['workload']}, {cell(summary['duration_s'])} s ({source})"


def _ended(figures: Mapping[str, Any]) -> str:
    words = f"{figures['requests']} request{'' if figures['requests'] == 1 else 's'}"
    if figures["cancelled"]:
        words += f", {figures['cancelled']} cut off at the end"
    return words + (f", {figures['failed']} failed" if figures["failed"] else "")
