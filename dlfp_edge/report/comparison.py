"""`report.html` and `frontier.png`: a comparison for people, verdicts first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.artefacts import write_whole
from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.results import Row
from dlfp_edge.report import facts, frontier, tables, verdicts, words
from dlfp_edge.report.controller import Course, courses, plot_courses
from dlfp_edge.report.distributions import plot_survival, shown_arms
from dlfp_edge.report.families import Family, family
from dlfp_edge.report.pictures import styled, to_png, to_svg
from dlfp_edge.report.trials import Trials, Values, read_trials

NORMALISATION = "times what the candidate's family reads alone over what the target reads alone"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page and how to read it."""

    svg: Markup
    caption: str


def write_report(result: Result, folder: Path) -> None:
    """Write `report.html` and `frontier.png` into a comparison's folder, each whole or not at all.

    Raises RuntimeFailure where the folder cannot be read or written.
    """
    try:
        trials = read_trials(folder)
        with styled():
            png = _frontier_png(result)
            page = _page(result, trials)
        write_whole(folder / "frontier.png", png)
        write_whole(folder / "report.html", page.encode("utf-8", "replace"))
    except OSError as error:
        raise RuntimeFailure(f"--out {folder}: cannot write the report: {error.strerror or error}") from None


def _page(result: Result, trials: Trials) -> str:
    resources = files("dlfp_edge.report")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(resources.joinpath("comparison.html").read_text(encoding="utf-8"))
    found = courses(result, trials)
    return template.render(
        result=result,
        title=facts.title(result),
        style=Markup(resources.joinpath("page.css").read_text(encoding="utf-8")),
        families=[each for each in Family if any(family(row) is each for row in result.rows)],
        facts=facts.facts(result),
        streams=facts.streams(result),
        document=json.dumps(
            {"machine": result.machine, "runtime": result.runtime, "workload": result.workload}, indent=2
        ),
        outcomes=verdicts.outcomes(result),
        heads=verdicts.heads(result),
        judged=verdicts.judged(result),
        candidate_trials=verdicts.not_counted(next((r for r in result.rows if r.setting == result.candidate), None)),
        frontier=_frontiers(result),
        points=tables.frontier_lines(result, frontier.marks(result.rows)),
        distributions=_distributions(result, trials),
        tables=tables.tables(result),
        courses=_courses(found),
        unreadable=[path.parent.name for path in trials.unreadable],
        number=words.number,
    )


def _frontier_png(result: Result) -> bytes:
    kind = ", simulated" if result.simulated else ""
    return to_png(frontier.frontier_picture(result.rows, result.candidate, f"Smoothness against background work{kind}"))


def _frontiers(result: Result) -> list[Picture]:
    rows = result.rows
    up = [*frontier.GAPS, *(frontier.SHOWN if any(row.shown.count for row in rows) else ())]
    across = [frontier.RATE]
    if any(row.background_normalised != row.background_tokens_per_s for row in rows):
        across.append(frontier.NORMALISED)
    across.append(frontier.DOCUMENTS)
    return [
        Picture(
            to_svg(
                frontier.plot_frontier(rows, result.candidate, each, up), f"frontier{at}", f"Gaps against {each.title}"
            ),
            f"Gaps against {each.title}" + (f": {NORMALISATION}" if each is frontier.NORMALISED else ""),
        )
        for at, each in enumerate(across)
        if any(each.of(row) is not None for row in rows)
    ]


def _distributions(result: Result, trials: Trials) -> list[Picture]:
    rows = shown_arms(result)
    wanted: list[tuple[str, str, Callable[[Row], Values]]] = [
        ("gaps", "gap between tokens, ms", lambda row: trials.gaps_ms(row.setting)),
        ("shown", "gap shown to a reader, ms", lambda row: trials.shown_ms(row.setting)),
        ("ttft", "time to first token, ms", lambda row: trials.ttft_ms(row.setting)),
    ]
    found = []
    for name, title, values in wanted:
        figure = plot_survival(rows, result.candidate, values, title)
        if figure is not None:
            found.append(Picture(to_svg(figure, name, f"Distribution: {title}"), title))
    return found


def _courses(found: list[Course]) -> Picture | None:
    return Picture(to_svg(plot_courses(found), "courses", "Allowance and step times"), "") if found else None
