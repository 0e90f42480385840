"""Adapters found through entry points, so that a third party can add one without touching this repository."""

from __future__ import annotations

import logging
import time
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from dlfp_edge.device import Device
from dlfp_edge.errors import MissingExtra, UsageError, hint
from dlfp_edge.runtime import LoadOptions, Runtime, RuntimeProvider

_log = logging.getLogger(__name__)


def runtime_names() -> list[str]:
    """Names of the runtimes installed."""
    return sorted({entry.name for entry in entry_points(group="dlfp_edge.runtimes")})


def runtime_provider(name: str) -> RuntimeProvider:
    """The provider of a runtime. Raises UsageError naming the nearest, MissingExtra where its package is missing."""
    for entry in entry_points(group="dlfp_edge.runtimes"):
        if entry.name == name:
            return cast(RuntimeProvider, _load(entry))
    raise UsageError(f"unknown runtime '{name}': {hint(name, runtime_names(), 'installed are', cutoff=0.4)}")


def load(name: str, options: LoadOptions) -> Runtime:
    """Load a model on a runtime. Raises UsageError with one line that says what is wrong."""
    began = time.monotonic()
    runtime = runtime_provider(name).load(options)
    caps = runtime.capabilities
    fields = {
        "runtime": name,
        "model": None if options.model is None else str(options.model),
        "seconds": round(time.monotonic() - began, 3),
        "decode_threads": caps.decode_threads,
        "prefill_threads": caps.prefill_threads,
        "decode_s_by_threads": dict(caps.decode_s_by_threads),
        "decodes_s": {threads: dict(times) for threads, times in caps.decodes_s.items()},
        "decode_s_per_cell": dict(caps.decode_s_per_cell),
        "prefill_tokens_per_s": caps.prefill_tokens_per_s,
        "priority": caps.priority,
        "priority_effective": caps.priority_effective,
    }
    _log.info("model loaded", extra={"fields": fields})
    return runtime


def detect_device() -> Device:
    """The adapter for the machine this runs on; a specific one before the generic one."""
    found: list[Device] = []
    for entry in entry_points(group="dlfp_edge.devices"):
        device = cast(Device, _load(entry))
        if device.supported():
            found.append(device)
    found.sort(key=lambda device: device.name == "generic")
    if not found:
        raise UsageError("no device adapter fits this machine: reinstall dlfp-edge, which brings 'generic'")
    return found[0]


def _load(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except ModuleNotFoundError as missing:
        extra = entry.name.replace("_", "-")
        raise MissingExtra(
            f"'{entry.name}' needs the package '{missing.name}': pip install 'dlfp-edge[{extra}]'"
        ) from missing
