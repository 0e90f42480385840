"""What a second lane costs in memory. Each figure comes from a process of its own: memory given back stays resident."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Report
from dlfp_edge.bench.steps import open_lane, prefill, random_tokens, run_step
from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import LaneSpec, LoadOptions, Priority, Step

_TOKENS = 512
_SEQUENCES = 4
_WRONG_INPUT = 2


class Forecaster(Protocol):
    """A runtime provider that works memory out before it is taken."""

    def expected_resident(self, options: LoadOptions, lanes: Sequence[LaneSpec], filled: int) -> tuple[int, int]:
        """Bytes that loading adds, and those with `filled` cells of each lane in use."""
        ...


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a process in MB: after loading and with lanes in use, measured and as expected where it is known."""

    loaded: float
    used: float
    expected_loaded: float | None
    expected_used: float | None


def memory(runtime: str, model: Path | None, context: int) -> Report:
    """Resident memory with one lane of `context` cells, and with two that halve them; a prefill has run in each."""
    if context < 2 * _TOKENS:
        raise UsageError(f"--ctx: {context} is too few for a prefill in each of two lanes; give at least {2 * _TOKENS}")
    rows: list[tuple[Any, ...]] = []
    for label, cells in (("one lane", [context]), ("two lanes", [context // 2, context // 2])):
        found = _in_process(runtime, model, cells)
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


def resident(runtime_name: str, model: Path | None, cells: list[int]) -> Resident:
    """Memory of this process after loading, and after a prefill in a lane of each size."""
    import psutil

    process = psutil.Process()
    lanes = [
        LaneSpec(f"bench-{priority.value}", priority, _SEQUENCES, count)
        for count, priority in zip(cells, Priority, strict=False)
    ]
    expected = _expected(runtime_name, model, lanes)
    before = process.memory_info().rss
    runtime = load_runtime(runtime_name, model)
    loaded = process.memory_info().rss
    for spec in lanes:
        lane = open_lane(runtime, spec.sequences, spec.context, spec.priority)
        tokens = random_tokens(runtime, min(_TOKENS, runtime.capabilities.largest_step))
        run_step(runtime, lane, Step((prefill(0, 0, tokens),), runtime.capabilities.prefill_threads))
    used = process.memory_info().rss
    runtime.close()
    known = [None, None] if expected is None else [(before + more) / 1e6 for more in expected]
    return Resident(loaded / 1e6, used / 1e6, *known)


def _expected(name: str, model: Path | None, lanes: Sequence[LaneSpec]) -> tuple[int, int] | None:
    """What the provider expects, if it does; its packages are loaded then, and no longer part of what loading adds."""
    provider = runtime_provider(name)
    if not hasattr(provider, "expected_resident"):
        return None
    options = LoadOptions(model, cpus=(0,), cpu_limit=1)
    return cast(Forecaster, provider).expected_resident(options, lanes, _TOKENS)


def _in_process(runtime: str, model: Path | None, cells: list[int]) -> Resident:
    order = json.dumps([runtime, None if model is None else str(model), cells])
    done = subprocess.run(
        [sys.executable, "-m", __name__, order], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if done.returncode == _WRONG_INPUT:
        raise UsageError(last)
    if done.returncode != 0:
        raise RuntimeFailure(f"the measuring process failed: {last}")
    return Resident(**json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    name, path, wanted = json.loads(sys.argv[1])
    try:
        print(json.dumps(asdict(resident(name, None if path is None else Path(path), wanted))))
    except UsageError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(_WRONG_INPUT)
