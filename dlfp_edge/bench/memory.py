"""What a second lane costs in memory. Each figure comes from a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlfp_edge.bench.child import answer_parent, in_child
from dlfp_edge.bench.forecast import forecaster
from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Report
from dlfp_edge.bench.steps import open_lane, prefill, random_tokens, run_step
from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import LaneSpec, LoadOptions, Priority, Step

_TOKENS = 512
_SEQUENCES = 4


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a process in MB: after loading and with lanes in use, measured and as expected where it is known."""

    loaded: float
    used: float
    expected_loaded: float | None
    expected_used: float | None


def memory(runtime: str, model: Path | None, context: int, options: Mapping[str, str]) -> Report:
    """Resident memory with one lane of `context` cells, and with two that halve them; a prefill has run in each."""
    if context < 2 * _TOKENS:
        raise UsageError(f"--ctx: {context} is too few for a prefill in each of two lanes; give at least {2 * _TOKENS}")
    rows: list[tuple[Any, ...]] = []
    for label, cells in (("one lane", [context]), ("two lanes", [context // 2, context // 2])):
        found = Resident(**in_child(__name__, runtime, None if model is None else str(model), cells, dict(options)))
        measured = (found.loaded, found.used, found.used - found.loaded)
        rows.append((label, sum(cells), *measured, found.expected_loaded, found.expected_used))
    return Report(
        "memory",
        "Resident memory in MB",
        (
            "lanes",
            "KV cells",
            "model loaded",
            "lanes used",
            "difference",
            "loaded, as predicted",
            "used, as predicted",
        ),
        rows,
        facts={"simulated": runtime == "simulated", "runtime": {"runtime": runtime}},
    )


def resident(runtime_name: str, model: Path | None, cells: list[int], options: Mapping[str, str]) -> Resident:
    """Memory of this process after loading, and after a prefill in a lane of each size."""
    import psutil

    process = psutil.Process()
    lanes = [
        LaneSpec(f"bench-{priority.value}", priority, _SEQUENCES, count)
        for count, priority in zip(cells, Priority, strict=False)
    ]
    forecast = forecaster(runtime_name)
    asked = LoadOptions(model, cpus=(0,), cpu_limit=1, options=options)
    expected = None if forecast is None else forecast.expected_resident(asked, lanes, _TOKENS)
    before = process.memory_info().rss
    runtime = load_runtime(runtime_name, model, options=options)
    loaded = process.memory_info().rss
    for spec in lanes:
        lane = open_lane(runtime, spec.sequences, spec.context, spec.priority)
        tokens = random_tokens(runtime, min(_TOKENS, runtime.capabilities.largest_step))
        run_step(runtime, lane, Step((prefill(0, 0, tokens),), runtime.capabilities.prefill_threads))
    used = process.memory_info().rss
    runtime.close()
    known = [None, None] if expected is None else [(before + more) / 1e6 for more in expected]
    return Resident(loaded / 1e6, used / 1e6, *known)


def _answer(runtime: str, model: str | None, cells: list[int], options: dict[str, str]) -> dict[str, Any]:
    return asdict(resident(runtime, None if model is None else Path(model), cells, options))


if __name__ == "__main__":
    answer_parent(_answer)
