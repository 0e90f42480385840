"""What a second lane costs in memory. Each figure comes from a process of its own: memory given back stays resident."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Report
from dlfp_edge.bench.steps import open_lane, prefill, random_tokens, run_step
from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.runtime import Priority, Step

_TOKENS = 512
_SEQUENCES = 4
_WRONG_INPUT = 2


def memory(runtime: str, model: Path | None, context: int) -> Report:
    """Resident memory with one lane of `context` cells, and with two that halve them; a prefill has run in each."""
    if context < 2 * _TOKENS:
        raise UsageError(f"--ctx: {context} is too few for a prefill in each of two lanes; give at least {2 * _TOKENS}")
    rows: list[tuple[Any, ...]] = []
    for label, cells in (("one lane", [context]), ("two lanes", [context // 2, context // 2])):
        loaded_mb, used_mb = _in_process(runtime, model, cells)
        rows.append((label, sum(cells), loaded_mb, used_mb, used_mb - loaded_mb))
    return Report(
        "memory",
        "Resident memory in MB",
        ("lanes", "KV cells", "model loaded", "lanes used", "difference"),
        rows,
        facts={"simulated": runtime == "simulated", "runtime": {"runtime": runtime}},
    )


def resident_mb(runtime_name: str, model: Path | None, cells: list[int]) -> tuple[float, float]:
    """Memory of this process after loading, and after a prefill in a lane of each size."""
    import psutil

    process = psutil.Process()
    runtime = load_runtime(runtime_name, model)
    loaded = process.memory_info().rss
    for index, count in enumerate(cells):
        lane = open_lane(runtime, _SEQUENCES, count, Priority.LOWEST if index else Priority.NORMAL)
        tokens = random_tokens(runtime, min(_TOKENS, runtime.capabilities.largest_step))
        run_step(runtime, lane, Step((prefill(0, 0, tokens),), runtime.capabilities.prefill_threads))
    used = process.memory_info().rss
    runtime.close()
    return loaded / 1e6, used / 1e6


def _in_process(runtime: str, model: Path | None, cells: list[int]) -> tuple[float, float]:
    order = json.dumps([runtime, None if model is None else str(model), cells])
    done = subprocess.run(
        [sys.executable, "-m", __name__, order], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if done.returncode == _WRONG_INPUT:
        raise UsageError(last)
    if done.returncode != 0:
        raise RuntimeFailure(f"the measuring process failed: {last}")
    loaded_mb, used_mb = json.loads(done.stdout.strip().splitlines()[-1])
    return float(loaded_mb), float(used_mb)


if __name__ == "__main__":
    name, path, wanted = json.loads(sys.argv[1])
    try:
        print(json.dumps(resident_mb(name, None if path is None else Path(path), wanted)))
    except UsageError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(_WRONG_INPUT)
