"""The constants of the control `predictor` for a model on this device, from steps timed without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.bench.step_fit import StepFit, fit_steps
from dlfp_edge.bench.step_grid import Point, timed_points
from dlfp_edge.control.predictor import CONSTANTS
from dlfp_edge.runtime import Runtime


def predictor(runtime: Runtime, largest: int, seconds: float, progress: Progress) -> Report:
    """Time steps with up to `largest` prefill tokens for about `seconds`, fit, and say the setting to use.

    Raises UsageError where the runtime cannot take such steps.
    """
    points = timed_points(runtime, largest, seconds, progress)
    fits = {"without d": fit_steps(points, without=["d"]), "all": fit_steps(points)}
    best = min(fits.values(), key=lambda fit: fit.typical)
    setting = setting_of(best)
    return Report(
        "predictor",
        "Step time in seconds: c + a cells + d decodes + g start + b p + e p (2 start + p)",
        ("terms", *CONSTANTS, "median error %", "P95 error %"),
        [(name, *fit.constants.values(), 100 * fit.typical, 100 * fit.bad) for name, fit in fits.items()],
        notes=[
            f"{len(points)} kinds of step, each timed {_counts(points)}; errors are of steps held out of the fit",
            f"use: --setting {setting}",
        ],
        facts={
            **measured_on(runtime),
            "setting": setting,
            "constants": best.constants,
            "points": [_as_json(point, float(error)) for point, error in zip(points, best.errors, strict=True)],
        },
    )


def setting_of(fit: StepFit) -> str:
    """The constants as a setting; those that a law need not be given are left out where they are 0."""
    given = {name: value for name, value in fit.constants.items() if value or name in "cabe"}
    return ":".join(["shared/predictor", *(f"{name}={value:.4g}" for name, value in given.items())])


def _counts(points: Sequence[Point]) -> str:
    counts = [len(point.times_s) for point in points]
    fewest, most = min(counts), max(counts)
    return f"{fewest} times" if fewest == most else f"{fewest} or {most} times"


def _as_json(point: Point, error: float) -> dict[str, Any]:
    return {
        "contexts": point.contexts,
        "cells": point.cells,
        "chunk": point.chunk,
        "start": point.start,
        "median_s": point.median_s,
        "times": len(point.times_s),
        "error": error,
    }
