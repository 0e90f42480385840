"""A latency model fitted to timed steps: the constants of the control `predictor`, and how well they predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from dlfp_edge.bench.step_grid import Point
from dlfp_edge.control.predictor import CONSTANTS, terms

_FOLDS = 5

_DIGITS = 15
"""A femtosecond a token or cell is rounding, not time."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepFit:
    """The constants by name, those left out at 0, and each point's relative error under a fit of other points.

    An error above 0 is a step that took less than predicted.
    """

    constants: dict[str, float]
    errors: Array

    @property
    def typical(self) -> float:
        """The median of the errors' sizes."""
        return float(np.median(np.abs(self.errors)))

    @property
    def bad(self) -> float:
        """Their 95th percentile."""
        return float(np.quantile(np.abs(self.errors), 0.95))


def fit_steps(points: Sequence[Point], without: Sequence[str] = ()) -> StepFit:
    """Least squares of the relative error, no constant below 0, those named in `without` left out.

    Errors are of points held out: five fits, each of four fifths of the points, predict the rest.
    """
    used = [index for index, name in enumerate(CONSTANTS) if name not in without]
    rows = np.asarray([terms(p.decoders, p.cells, p.chunk, p.start) for p in points], np.float64)[:, used]
    times = np.asarray([point.median_s for point in points], np.float64)
    folds = np.random.default_rng(0).permutation(len(points)) % _FOLDS
    errors = np.empty_like(times)
    for fold in range(_FOLDS):
        held = folds == fold
        errors[held] = rows[held] @ _solve(rows[~held], times[~held]) / times[held] - 1
    constants = dict.fromkeys(CONSTANTS, 0.0)
    for index, value in zip(used, _solve(rows, times), strict=True):
        constants[CONSTANTS[index]] = float(value)
    return StepFit(constants, errors)


def _solve(rows: Array, times: Array) -> Array:
    relative = rows / times[:, np.newaxis]
    # Columns differ by ten orders of magnitude; one may be nothing, where all points share the same start.
    size = np.linalg.norm(relative, axis=0)
    size[size == 0] = 1.0
    found, _ = nnls(relative / size, np.ones_like(times))
    return np.asarray(np.round(found / size, _DIGITS), np.float64)
