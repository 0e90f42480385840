"""The result of a comparison as one document: `summary.json`, and its rows as `summary.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.experiment.arms import Arm
from dlfp_edge.experiment.artefacts import write_json
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import EqualP99, Row, equal_p99, ratios, rows, slo_of
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.verdict import Verdict, verdict
from dlfp_edge.experiment.workload import Workload

SCHEMA_VERSION = 2


class Trouble(BaseModel):
    """A trial that does not count, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    setting: str
    seed: int
    status: str
    reason: str


class Result(BaseModel):
    """A comparison, finished or not. `expected_s` is what its plan said, `took_s` what its trials took.

    `harness` says what the prefix-cache check saw, `harness_fault` what makes the whole comparison void.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    workload: dict[str, Any]
    scale: float
    candidate: str
    baseline: str | None
    seeds: list[int]
    gaps: int
    cap_s: float
    quick: bool
    exact: bool
    simulated: bool
    complete: bool
    expected_s: float
    took_s: float
    trials: dict[str, int] = Field(description="how many trials are complete, void and failed")
    troubles: list[Trouble]
    rows: list[Row]
    verdicts: list[Verdict]
    equal_p99: list[EqualP99]
    harness: dict[str, float] | None
    harness_fault: str | None
    machine: dict[str, Any]
    runtime: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write `summary.json` and `summary.csv`. Raises RuntimeFailure where that is not possible."""
        try:
            write_json(folder / "summary.json", self.model_dump(mode="json"))
            table(self.rows).to_csv(folder / "summary.csv", index=False)
        except OSError as error:
            raise RuntimeFailure(f"--out {folder}: cannot write there: {error.strerror or error}") from None


def build_result(
    arms: Sequence[Arm],
    records: Sequence[TrialRecord],
    workload: Workload,
    limits: Limits,
    *,
    candidate: str,
    baseline: str | None,
    **facts: Any,
) -> Result:
    """The document of the trials there are. `facts` are the other fields of `Result`."""
    tried = {arm.label: [record for record in records if record.arm == arm.label] for arm in arms}
    solo = next(arm.solo for arm in arms if arm.label == candidate)
    slo, reads = slo_of(workload, tried[solo]), ratios(arms, records, candidate)
    controls = [arm for arm in arms if not arm.alone and arm.label != candidate and tried[arm.label]]
    sweeps: dict[str, list[str]] = {}
    for arm in arms:
        if arm.sweep is not None:
            sweeps.setdefault(arm.sweep, []).append(arm.label)
    rows_ = rows(arms, records, workload, candidate, baseline)
    return Result(
        workload=workload.as_json(),
        candidate=candidate,
        baseline=baseline,
        gaps=limits.gaps,
        cap_s=limits.cap_s,
        took_s=sum(record.took_s for record in records),
        trials=dict(Counter(record.status for record in records)),
        troubles=[
            Trouble(setting=record.arm, seed=record.seed, status=record.status, reason=record.reason or "")
            for record in records
            if not record.counts
        ],
        rows=rows_,
        verdicts=[
            verdict(
                arm.label,
                tried[candidate],
                tried[arm.label],
                slo=slo,
                ratios=reads,
                gates=workload.gates if arm.label == baseline or baseline is None else [],
                quick=bool(facts["quick"]),
                exact=bool(facts["exact"]),
                harness=facts["harness_fault"],
            )
            for arm in controls
        ],
        equal_p99=equal_p99(rows_, sweeps, candidate),
        **facts,
    )


def table(rows_: Sequence[Row]) -> pd.DataFrame:
    """The rows flat, one column a figure: `itl.p99` is the P99 of `itl`."""
    return pd.json_normalize([row.model_dump(mode="json", exclude={"streams", "unavailable"}) for row in rows_])


COLUMNS: Mapping[str, str] = {
    "setting": "setting",
    "trials": "trials",
    "gaps": "gaps",
    "itl.p50": "P50",
    "itl.p99": "P99",
    "itl.max": "max",
    "shown.p99": "shown P99",
    "shown.max": "shown max",
    "late_share": "late",
    "lateness.max": "latest by",
    "over_solo.over_2x": ">2x solo",
    "over_solo.excess_per_1000_s": "excess s/1000",
    "ttft.p90": "TTFT P90",
    "ttft.max": "TTFT max",
    "slo_share": "SLO",
    "background_tokens_per_s": "bg tok/s",
    "background_normalised": "bg norm.",
    "documents_per_min": "docs/min",
    "prefill_ratio": "prefill alone",
    "decode_ratio": "gap alone",
}
"""What the terminal's table shows, by the flat names."""
