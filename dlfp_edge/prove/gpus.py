"""Every candidate on each of the paper's operating points, predicted on simulated GPUs, beside the paper's figures.

The devices' constants are fitted to what the paper gives of its baselines alone, so of every other scheduler these are
predictions. When the paper's requests arrived is not known: a point is run with several draws of arrivals, the same for
all candidates, and a figure is the median over draws; a change is the median of the changes within each draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from dlfp_edge.measure.slo import PRESETS, Slo
from dlfp_edge.prove.gpu_points import Baseline, Candidate, Figures, Plan, Point
from dlfp_edge.prove.gpu_trial import Answer, Trial, describe, run_trial

HEADING = "Predictions of a simulated device fitted to the baselines only; not measurements of a GPU"
FIRST_SEED = 801
METRICS = ("itl", "ttft", "e2el")

Progress = Callable[[float, str], None]
"""Called before each trial with the part that is done, from 0 to 1, and what comes next."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A 99th percentile: the median over draws, the lowest and highest, and what the paper has, in ms.

    Changes are against the baseline, in percent; the paper's is the one it states, else that of its two figures.
    """

    predicted_ms: float
    lowest_ms: float
    highest_ms: float
    paper_ms: float | None
    change: float | None
    paper_change: float | None

    @property
    def error(self) -> float | None:
        """How far the prediction is from the paper's figure, in percent of that."""
        return None if self.paper_ms is None else (self.predicted_ms / self.paper_ms - 1) * 100

    @property
    def in_range(self) -> bool | None:
        """Whether some draw is above the paper's figure and some below it."""
        return None if self.paper_ms is None else self.lowest_ms <= self.paper_ms <= self.highest_ms

    @property
    def change_error(self) -> float | None:
        """How far the predicted change is from the paper's, in points."""
        return None if self.paper_change is None or self.change is None else self.change - self.paper_change


@dataclass(frozen=True, slots=True)
class Passes:
    """The share of requests that met the SLO, 0 to 1: of all draws together, of the draws with the lowest and highest,
    and the paper's.
    """

    predicted: float
    lowest: float
    highest: float
    paper: float | None

    @property
    def in_range(self) -> bool | None:
        """Whether some draw is above the paper's share and some below it."""
        return None if self.paper is None else self.lowest <= self.paper <= self.highest


@dataclass(frozen=True, slots=True)
class Result:
    """A candidate on a point: metrics by name, requests that met the SLO, the share of gaps `above` the target."""

    candidate: Candidate
    metrics: Mapping[str, Metric]
    passes: Passes
    above: float


@dataclass(frozen=True, slots=True)
class PointResult:
    """All candidates on a point, the baseline first; `device` is what the runtime says of itself."""

    point: Point
    slo: Slo
    device: Mapping[str, Any]
    results: Sequence[Result]


@dataclass(frozen=True, slots=True)
class Predictions:
    """What was predicted, point by point."""

    target_itl_ms: float
    points: Sequence[PointResult]

    def as_json(self) -> dict[str, Any]:
        """JSON values; ms, percent, and shares from 0 to 1."""
        return {
            "heading": HEADING,
            "simulated": True,
            "target_itl_ms": self.target_itl_ms,
            "points": [_point_json(point) for point in self.points],
        }


def predict(plan: Plan, candidates: Sequence[Candidate], progress: Progress) -> Predictions:
    """Run all candidates, of which the first is the baseline, on all points of the plan. Equal plans, equal figures.

    Raises UsageError for a setting or a device that is none.
    """
    total = len(candidates) * sum(point.trials * point.requests for point in plan.points)
    done = 0
    results = []
    for point in plan.points:
        device = describe(point)
        trials: dict[str, list[Trial]] = {candidate.name: [] for candidate in candidates}
        for seed in range(FIRST_SEED, FIRST_SEED + point.trials):
            for candidate in candidates:
                progress(done / total, f"{point.name}: {candidate.name}, arrivals {seed}")
                trial = run_trial(point, candidate, seed, plan.workload, plan.target_itl_ms / 1e3)
                trials[candidate.name].append(trial)
                done += point.requests
        results.append(_point(point, candidates, trials, device))
    return Predictions(plan.target_itl_ms, results)


def _point(
    point: Point, candidates: Sequence[Candidate], trials: Mapping[str, Sequence[Trial]], device: Mapping[str, Any]
) -> PointResult:
    first = trials[candidates[0].name]
    slo = point.objectives or _scaled_slo(first, point.baseline)
    results = []
    for candidate in candidates:
        baseline = candidate is candidates[0]
        paper = point.baseline if baseline else point.paper.get(candidate.name, Figures())
        results.append(_result(candidate, trials[candidate.name], None if baseline else first, paper, point, slo))
    return PointResult(point, slo, device, results)


def _result(
    candidate: Candidate,
    trials: Sequence[Trial],
    baseline: Sequence[Trial] | None,
    paper: Baseline | Figures,
    point: Point,
    slo: Slo,
) -> Result:
    metrics = {name: _metric(name, trials, baseline, paper, point.baseline) for name in METRICS}
    above = sum(trial.above for trial in trials) / sum(trial.gaps for trial in trials)
    return Result(candidate, metrics, _passes(trials, slo, paper.passes), above)


def _passes(trials: Sequence[Trial], slo: Slo, paper: tuple[int, int] | None) -> Passes:
    """Every trial has as many requests, so the mean is the share of all of them."""
    shares = [sum(answer.meets(slo) for answer in trial.answers) / len(trial.answers) for trial in trials]
    return Passes(mean(shares), min(shares), max(shares), None if paper is None else paper[0] / paper[1])


def _metric(
    name: str,
    trials: Sequence[Trial],
    baseline: Sequence[Trial] | None,
    paper: Baseline | Figures,
    paper_baseline: Baseline,
) -> Metric:
    key = f"{name}_p99_ms"
    values = [getattr(trial, key) for trial in trials]
    figures, before = getattr(paper, key), getattr(paper_baseline, key)
    change = stated = None
    if baseline is not None:
        change = median((value / getattr(trial, key) - 1) * 100 for value, trial in zip(values, baseline, strict=True))
        stated = getattr(paper, f"{name}_change")
        if stated is None and figures and before:
            stated = (median(figures) / median(before) - 1) * 100
    return Metric(
        predicted_ms=median(values),
        lowest_ms=min(values),
        highest_ms=max(values),
        paper_ms=median(figures) if figures else None,
        change=change,
        paper_change=stated,
    )


def _scaled_slo(trials: Sequence[Trial], baseline: Baseline) -> Slo:
    """Agent's objectives, scaled until the baseline passes as many as in the paper, which states none."""
    agent = PRESETS["agent"]
    needed = [_scale_needed(answer, agent) for trial in trials for answer in trial.answers]
    passed, asked = baseline.passes
    scale = float(np.quantile(needed, passed / asked))
    source = (
        f"the paper's Agent x {scale:.2f}: the paper states none, and with these the baseline passes {passed}/{asked}"
    )
    return Slo(agent.ttft_s * scale, agent.itl_s * scale, agent.e2el_s * scale, source)


def _scale_needed(answer: Answer, slo: Slo) -> float:
    return max(answer.ttft_s / slo.ttft_s, answer.itl_s / slo.itl_s, answer.e2el_s / slo.e2el_s)


def _point_json(result: PointResult) -> dict[str, Any]:
    point = result.point
    return {
        **point.model_dump(include={"name", "title", "device", "rate", "requests", "trials"}),
        "seeds": list(range(FIRST_SEED, FIRST_SEED + point.trials)),
        "slo": asdict(result.slo),
        "runtime": dict(result.device),
        "candidates": [_result_json(each) for each in result.results],
    }


def _result_json(result: Result) -> dict[str, Any]:
    metrics = {f"{name}_p99": _metric_json(metric) for name, metric in result.metrics.items()}
    passes = {**asdict(result.passes), "in_range": result.passes.in_range}
    return {**result.candidate.model_dump(), **metrics, "passes": passes, "gaps_above_target": result.above}


def _metric_json(metric: Metric) -> dict[str, Any]:
    more = {"error": metric.error, "in_range": metric.in_range, "change_error": metric.change_error}
    return {**asdict(metric), **more}
