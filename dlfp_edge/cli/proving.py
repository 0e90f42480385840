"""How the words of a proof's file become models, settings and peers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlfp_edge.cli.contestants import asked_others, asked_settings
from dlfp_edge.cli.fetching import model_file
from dlfp_edge.errors import UsageError

if TYPE_CHECKING:
    from dlfp_edge.experiment.arms import Others
    from dlfp_edge.prove.questions import Means, Setting
    from dlfp_edge.prove.spec import Cell
    from dlfp_edge.runtime import Runtime

EMBEDDED, SYNTH, REAL = "embedded", "synth:", "llama_cpp"


def means() -> Means:
    """What the command line makes of a cell."""
    from dlfp_edge.prove.questions import Means

    return Means(settings=_settings, others=_others, load=_load, runtime=_runtime)


def _runtime(cell: Cell) -> str:
    return "simulated" if cell.simulated else REAL


def _settings(cell: Cell, names: Sequence[str]) -> tuple[Setting, ...]:
    target = None if cell.target_itl_ms is None else f"{cell.target_itl_ms:f}ms"
    return asked_settings(",".join(names), target, cell.slowdown, None, quick=False)


def _others(cell: Cell) -> tuple[Others, ...]:
    return asked_others(cell.peers, None, [], None, _runtime(cell), quick=False)


def _load(cell: Cell) -> Runtime:
    from dlfp_edge.bench.loading import load_runtime

    return load_runtime(_runtime(cell), _file(cell), seed=cell.seeds.score[0])


def _file(cell: Cell) -> Path | None:
    """The model's file; a synthetic one is written the first time that it is asked for."""
    if cell.simulated or cell.model == EMBEDDED:
        return None
    if cell.model.startswith(SYNTH):
        return _synthetic(cell.model)
    return model_file(REAL, cell.model)


def _synthetic(model: str) -> Path:
    from dlfp_edge.cli.models import model_maker

    shape, _, quant = model.removeprefix(SYNTH).partition(":")
    if not (shape and quant):
        raise UsageError(f"model '{model}': write synth:SHAPE:QUANT, such as synth:qwen3-0.6b:Q4_K")
    file = _cache() / f"{shape}-{quant}.gguf"
    return file if file.exists() else model_maker().synthesize(shape, quant, file)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dlfp-edge" / "synth"
