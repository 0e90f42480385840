"""What a run's figures depend on, for `manifest.json`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from dlfp_edge.device import CpuTopology, Device
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings

SCHEMA_VERSION = 1

_PACKAGES = ("dlfp-edge", "numpy", "pandas", "scipy", "pydantic")


def build_manifest(
    *,
    runtime: Runtime,
    device: Device,
    topology: CpuTopology,
    settings: Settings,
    workload: Workload,
    seed: int,
    scale: float,
) -> dict[str, Any]:
    """Versions, model, machine, settings and the workload as its file has it (`scale` not applied)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        "runtime": runtime.describe(),
        "capabilities": runtime.capabilities,
        "device": device.describe(),
        "topology": topology,
        "settings": settings,
        "workload": workload.as_json(),
        "seed": seed,
        "scale": scale,
    }
