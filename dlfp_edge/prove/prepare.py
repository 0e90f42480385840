"""Settings with constants that are fitted to a model: a control named here is made ready once a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dlfp_edge.experiment.artefacts import write_json
from dlfp_edge.experiment.trial_files import read
from dlfp_edge.runtime import Runtime

Fit = Callable[[Runtime], str]
"""The whole setting for a loaded model, such as `shared/predictor:c=0.02:a=1e-6:b=0.002:e=1e-8`."""

FITS: Mapping[str, Fit] = {}
"""By the name that a cell's list has."""


class Prepared:
    """The settings fitted so far, by model, in `file`: trials that are gone on with must have the same constants."""

    def __init__(self, file: Path, fits: Mapping[str, Fit] = FITS) -> None:
        self._file, self._fits = file, fits
        there = read(file)
        self._known: dict[str, dict[str, str]] = there if isinstance(there, dict) else {}

    def setting(self, name: str, model: str, runtime: Runtime) -> str:
        """The whole setting of a name; the name itself where nothing is to be fitted. Raises what the fit raises."""
        fit = self._fits.get(name)
        if fit is None:
            return name
        known = self._known.setdefault(model, {})
        if name not in known:
            known[name] = fit(runtime)
            write_json(self._file, self._known)
        return known[name]
