"""The paper's operating points and figures, and the candidates that run on each: two TOML files beside this one."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.measure.slo import PRESETS, Slo
from dlfp_edge.settings import Placement, Settings, parse_setting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_STRICT = ConfigDict(frozen=True, extra="forbid")


class Baseline(BaseModel):
    """What the paper gives of vLLM's own scheduler on a point: all that a fit may see.

    Percentiles are ms, one for each of `trials`, lowest first; `passes` are requests that met the SLO, of how many.
    """

    model_config = _STRICT

    trials: int = 1
    itl_p99_ms: tuple[float, ...] = ()
    ttft_p99_ms: tuple[float, ...] = ()
    e2el_p99_ms: tuple[float, ...] = ()
    passes: tuple[int, int]

    @property
    def share(self) -> float:
        """The share of requests that met the SLO, 0 to 1."""
        return self.passes[0] / self.passes[1]


class Figures(BaseModel):
    """What the paper gives of a candidate on a point; a change is against the baseline, in percent."""

    model_config = _STRICT

    itl_p99_ms: tuple[float, ...] = ()
    ttft_p99_ms: tuple[float, ...] = ()
    e2el_p99_ms: tuple[float, ...] = ()
    passes: tuple[int, int] | None = None
    itl_change: float | None = None
    ttft_change: float | None = None
    e2el_change: float | None = None


class Load(BaseModel):
    """What runs on a point: a named device of the simulated runtime, and how many requests arrive, how many a second.

    Without `slo` the paper does not state the objectives.
    """

    model_config = _STRICT

    name: str
    title: str
    device: str
    rate: float = Field(gt=0)
    requests: int = Field(ge=1)
    slo: str | None = None

    @property
    def objectives(self) -> Slo | None:
        """The objectives that the paper states."""
        return None if self.slo is None else PRESETS[self.slo]


class Point(Load):
    """An operating point: `trials` draws of arrivals are predicted for every candidate; `paper` is by candidate."""

    trials: int = Field(ge=1)
    baseline: Baseline
    paper: dict[str, Figures] = Field(default_factory=dict)


class Candidate(BaseModel):
    """A scheduler to predict, by a setting as people write it."""

    model_config = _STRICT

    name: str
    what: str
    setting: str
    preset: str = "edge"
    target_itl_ms: float | None = None

    def settings(self, sequences: int, context: int) -> Settings:
        """For an engine that schedules as vLLM does: one class, so many sequences at once, no interruption."""
        placement, controller = parse_setting(self.setting)
        return Settings(
            placement=placement if placement is not Placement.AUTO else Placement.SHARED,
            controller=controller,
            preset=self.preset,
            target_itl_s=None if self.target_itl_ms is None else self.target_itl_ms / 1e3,
            context=context,
            foreground_sequences=sequences - 1,
            background_sequences=1,
            single_class=True,
            interrupts=False,
            prefix_cache=False,
        )


class Plan(BaseModel):
    """The points, with what they share: the bundled workload, and the target that gaps are held against."""

    model_config = _STRICT

    workload: str
    target_itl_ms: float
    points: tuple[Point, ...] = Field(alias="point")


def gpu_plan(names: Sequence[str] = ()) -> Plan:
    """The paper's points, or those named. Raises UsageError for a name that is none."""
    plan = Plan.model_validate(_read("gpu_points.toml"))
    known = {point.name: point for point in plan.points}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown operating point '{name}': {hint(name, known, 'there are')}")
    return plan.model_copy(update={"points": tuple(known[name] for name in names)}) if names else plan


def candidates() -> list[Candidate]:
    """What runs on each point, the baseline first."""
    return [Candidate.model_validate(table) for table in _read("gpu_candidates.toml")["candidate"]]


def baselines() -> list[tuple[Load, Baseline]]:
    """What the constants of simulated GPUs may be fitted to: no candidate's figure is in it."""
    names = set(Load.model_fields)
    return [(Load(**point.model_dump(include=names)), point.baseline) for point in gpu_plan().points]


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((importlib.resources.files(__package__) / file).read_text(encoding="utf-8"))
