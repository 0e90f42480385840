"""What a workload file demands of its answers (`[slo]`) and of a setting that is to win (`[[gate]]`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dlfp_edge.errors import hint
from dlfp_edge.measure.slo import PRESETS, Slo

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""How every table of a workload file is read."""

Metric = Literal["itl_p99", "ttft_p90", "ttft_max", "e2el_p99", "goodput", "background"]
"""Latencies of the foreground, its requests per second that met the SLO, and background tokens per second."""

_MORE_IS_BETTER = ("goodput", "background")


class SloTable(BaseModel):
    """The `[slo]` of a workload file: three bounds in seconds, or a preset by name."""

    model_config = STRICT

    preset: str | None = None
    ttft_s: float | None = Field(default=None, gt=0)
    itl_s: float | None = Field(default=None, gt=0)
    e2el_s: float | None = Field(default=None, gt=0)

    @property
    def slo(self) -> Slo:
        """The objectives."""
        if self.preset is not None:
            return PRESETS[self.preset]
        assert self.ttft_s is not None and self.itl_s is not None and self.e2el_s is not None  # noqa: PT018
        return Slo(self.ttft_s, self.itl_s, self.e2el_s, source="the workload's file")

    @field_validator("preset")
    @classmethod
    def _known(cls, preset: str | None) -> str | None:
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}: {hint(preset, PRESETS, 'presets are')}")
        return preset

    @model_validator(mode="after")
    def _whole(self) -> SloTable:
        missing = [bound is None for bound in (self.ttft_s, self.itl_s, self.e2el_s)]
        if any(missing) if self.preset is None else not all(missing):
            raise ValueError("needs either all of 'ttft_s', 'itl_s' and 'e2el_s', or a 'preset' alone")
        return self


class Gate(BaseModel):
    """A bound on what a candidate changes of the baseline's figure, as fractions of it; every trial must keep it.

    Latencies have `least_reduction`, which the candidate must exceed, or `most_increase`, which it may reach. Goodput
    and background have `most_reduction`, which it may reach.
    """

    model_config = STRICT

    metric: Metric
    least_reduction: float | None = Field(default=None, ge=0, lt=1)
    most_increase: float | None = Field(default=None, ge=0)
    most_reduction: float | None = Field(default=None, ge=0, lt=1)

    def passes(self, baseline: float | None, candidate: float | None) -> bool:
        """Whether one trial keeps the bound; one in which either was not measured does not."""
        if baseline is None or candidate is None:
            return False
        if self.least_reduction is not None:
            return candidate < (1.0 - self.least_reduction) * baseline
        if self.most_increase is not None:
            return candidate <= (1.0 + self.most_increase) * baseline
        return candidate >= (1.0 - (self.most_reduction or 0.0)) * baseline

    def text(self) -> str:
        """The gate in words, for people."""
        if self.least_reduction is not None:
            return f"{self.metric} falls by more than {100.0 * self.least_reduction:g}%"
        if self.most_increase is not None:
            return f"{self.metric} rises by {100.0 * self.most_increase:g}% at most"
        return f"{self.metric} falls by {100.0 * (self.most_reduction or 0.0):g}% at most"

    @model_validator(mode="after")
    def _one_bound(self) -> Gate:
        bounds = ("most_reduction",) if self.metric in _MORE_IS_BETTER else ("least_reduction", "most_increase")
        given = [
            name for name in ("least_reduction", "most_increase", "most_reduction") if getattr(self, name) is not None
        ]
        if len(given) != 1 or given[0] not in bounds:
            names = " or ".join(f"'{name}'" for name in bounds)
            raise ValueError(f"'{self.metric}' needs {names}, and no other bound")
        return self
