"""Whether the foreground says the same words with and without background, in lanes with the default kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlfp_edge.bench.jobs import EndlessBackground, foreground, running, wait_all
from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Placement, Settings

_BACKGROUND_PROMPT = 1500


def words(runtime: Runtime, contexts: Iterable[int], tokens: int, progress: Progress) -> Report:
    """Greedy foreground ids at several contexts, alone and beside an endless background."""
    specs = [foreground(runtime, context, tokens, seed=context) for context in contexts]
    cells = max(len(spec.prompt) for spec in specs) + tokens + 3 * _BACKGROUND_PROMPT
    rows: list[tuple[Any, ...]] = []
    with running(runtime, Settings(placement=Placement.LANES, context=2 * cells, background_sequences=2)) as engine:
        progress(0, "alone")
        alone = [wait_all([engine.submit(spec)])[0].output_token_ids for spec in specs]
        load = EndlessBackground(engine, _BACKGROUND_PROMPT)
        progress(0.5, "beside background")
        beside = [wait_all([engine.submit(spec)])[0].output_token_ids for spec in specs]
        load.stop()
    for spec, first, second in zip(specs, alone, beside, strict=True):
        equal = sum(1 for one, other in zip(first, second, strict=True) if one == other)
        rows.append((len(spec.prompt), tokens, equal, first == second))
    return Report(
        "words",
        "Foreground ids with and without background, in lanes",
        ("context", "tokens", "equal", "all equal"),
        rows,
        facts=measured_on(runtime),
    )
