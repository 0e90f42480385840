"""The engine in a process of its own, so that what kills it takes nobody's tasks along.

The *front* (`client.py`) has the engine's interface and its tasks (`tasks.py`); the *worker* (`serve.py`) has the
runtime and the engine. Between them go requests, released tokens, records and readings (`protocol.py`, `messages.py`),
never steps.
"""

from __future__ import annotations

from dlfp_edge.worker.client import WorkerEngine

__all__ = ["WorkerEngine"]
