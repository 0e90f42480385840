"""One language model serves someone who is watching and works through documents nobody waits for, at the same time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlfp_edge.api import Edge, open_engine
    from dlfp_edge.engine import Engine
    from dlfp_edge.errors import DlfpError, EngineClosed, FetchError, QueueFull, UsageError
    from dlfp_edge.handle import Task, Token
    from dlfp_edge.runtime import Logprobs, Sampling
    from dlfp_edge.settings import Settings
    from dlfp_edge.task import Class, Finish, TaskRecord, TaskSpec

__all__ = [
    "Class",
    "DlfpError",
    "Edge",
    "Engine",
    "EngineClosed",
    "FetchError",
    "Finish",
    "Logprobs",
    "QueueFull",
    "Sampling",
    "Settings",
    "Task",
    "TaskRecord",
    "TaskSpec",
    "Token",
    "UsageError",
    "open_engine",
]

# Imported when asked for: the command must be able to answer Ctrl-C before everything is there.
_HOMES = {
    "api": ("Edge", "open_engine"),
    "engine": ("Engine",),
    "errors": ("DlfpError", "EngineClosed", "FetchError", "QueueFull", "UsageError"),
    "handle": ("Task", "Token"),
    "runtime": ("Logprobs", "Sampling"),
    "settings": ("Settings",),
    "task": ("Class", "Finish", "TaskRecord", "TaskSpec"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"dlfp_edge.{module}"), name)
        raise AttributeError(f"module 'dlfp_edge' has no attribute '{name}'")
