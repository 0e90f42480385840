"""Adapters found through entry points, so that a third party can add one without touching this repository."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import cast

from dlfp_edge.device import Device
from dlfp_edge.errors import MissingExtra, UsageError, hint
from dlfp_edge.runtime import RuntimeProvider


def runtime_names() -> list[str]:
    """Names of the runtimes installed."""
    return sorted({entry.name for entry in entry_points(group="dlfp_edge.runtimes")})


def runtime_provider(name: str) -> RuntimeProvider:
    """The provider of a runtime. Raises UsageError naming the nearest, MissingExtra where its package is missing."""
    for entry in entry_points(group="dlfp_edge.runtimes"):
        if entry.name == name:
            return cast(RuntimeProvider, _load(entry))
    raise UsageError(f"unknown runtime '{name}': {hint(name, runtime_names(), 'installed are', cutoff=0.4)}")


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
