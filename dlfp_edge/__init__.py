"""One language model serves someone who is watching and works through documents nobody waits for, at the same time."""

from __future__ import annotations

from dlfp_edge.api import Edge, open_engine
from dlfp_edge.engine import Engine
from dlfp_edge.errors import DlfpError, EngineClosed, QueueFull, UsageError
from dlfp_edge.handle import Task, Token
from dlfp_edge.runtime import Sampling
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, Finish, TaskRecord, TaskSpec

__all__ = [
    "Class",
    "DlfpError",
    "Edge",
    "Engine",
    "EngineClosed",
    "Finish",
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
