"""Loading a runtime for a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dlfp_edge.plugins import detect_device, load
from dlfp_edge.runtime import LoadOptions, Runtime


def load_runtime(
    name: str,
    model: Path | None = None,
    *,
    threads: int | None = None,
    exact: bool = False,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
) -> Runtime:
    """Load a model on every CPU this process may use. Raises UsageError with one line that says what is wrong."""
    cpu = detect_device().cpu()
    return load(
        name,
        LoadOptions(
            model=model,
            cpus=cpu.usable,
            cpu_limit=cpu.limit,
            threads=threads,
            exact=exact,
            seed=seed,
            options=options or {},
        ),
    )
