"""Settings with constants that are fitted to a model: a control named here is made ready once a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dlfp_edge.bench.predictor import predictor
from dlfp_edge.experiment.artefacts import write_json
from dlfp_edge.experiment.trial_files import read
from dlfp_edge.runtime import Runtime

Fit = Callable[[Runtime], str]
"""The whole setting for a loaded model, such as `shared/predictor:c=0.02:a=1e-6:b=0.002:e=1e-8`."""

LARGEST_TOKENS, FIT_S = 64, 45.0
"""The chunks that targets of a proof's cells allow are in this range, also in a paced reader's time between two tokens;
leaving out larger ones fits these better. So long is every kind of step timed, all together."""


def _predictor(runtime: Runtime) -> str:
    return str(predictor(runtime, LARGEST_TOKENS, FIT_S, lambda part, what: None).facts["setting"])


FITS: Mapping[str, Fit] = {"shared/predictor": _predictor}
"""By the name that a cell's list has."""


class Prepared:
    """The settings fitted so far, by model, in `file`: trials that are gone on with must have the same constants."""

    def __init__(self, file: Path, fits: Mapping[str, Fit] = FITS) -> None:
        self._file, self._fits = file, fits
        there = read(file)
        self._known: dict[str, dict[str, str]] = there if isinstance(there, dict) else {}

    def settings(self, names: Sequence[str], model: str, runtime: Runtime) -> dict[str, str]:
        """The whole settings of the names that stand for fitted ones. Raises what a fit raises."""
        known = self._known.setdefault(model, {})
        wanted = [name for name in names if name in self._fits]
        for name in wanted:
            if name not in known:
                known[name] = self._fits[name](runtime)
                write_json(self._file, self._known)
        return {name: known[name] for name in wanted}
