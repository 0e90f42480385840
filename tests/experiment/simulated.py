"""Engines on the simulated runtime, whose time is virtual."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dlfp_edge.engine import Engine
from dlfp_edge.plugins import runtime_provider
from dlfp_edge.runtime import LoadOptions, Runtime
from dlfp_edge.settings import Settings, parse_setting


def settings(setting: str) -> Settings:
    placement, controller = parse_setting(setting)
    return Settings(placement=placement, controller=controller)


def simulated(**options: str) -> Runtime:
    return runtime_provider("simulated").load(LoadOptions(model=None, cpus=(0, 1), cpu_limit=2, options=options))


@contextmanager
def engine(setting: str = "auto", **options: str) -> Iterator[Engine]:
    runtime = simulated(**options)
    made = Engine(runtime, settings(setting))
    try:
        yield made
    finally:
        made.close()
        runtime.close()
