"""The proof as a document: `proof.json`, and of each cell `cell.json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.prove.bars import BarResult

SCHEMA_VERSION = 1

Status = Literal["held", "lost", "undecided", "failed", "skipped", "left out", "cut short"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Against(_Part):
    """The candidate beside one control: the verdict, and what it rests on in words."""

    control: str
    outcome: str
    gap_p99: str | None = Field(description="by how much P99 gaps are shorter")
    background: str | None = Field(description="by how much background is more")
    why: list[str]


class CellResult(_Part):
    """What came of a cell.

    `status` is "held" where every bar was held and no control was better; "lost" where a bar was missed or a control
    was better; "undecided" where a bar has no data. "failed" did not run, "skipped" cannot run here, "left out" is what
    the hours did not reach, and "cut short" was stopped: each with a `reason`. `chosen` are the points of each series
    that were scored, `best` is the best fixed setting. `losses` say where the default loses and by how much,
    `telling` what its trials' records have to say about that.
    """

    cell: dict[str, Any]
    status: Status
    reason: str | None = None
    cap_s: float | None = None
    expected_s: float | None = None
    took_s: float = 0.0
    chosen: dict[str, list[str]] = Field(default_factory=dict)
    best: str | None = None
    bars: list[BarResult] = Field(default_factory=list)
    against: list[Against] = Field(default_factory=list)
    losses: list[str] = Field(default_factory=list)
    telling: list[str] = Field(default_factory=list)
    troubles: list[str] = Field(default_factory=list)

    @property
    def name(self) -> str:
        """The cell's name."""
        return str(self.cell["name"])


class Proof(_Part):
    """All cells of a proof, in the order of their importance. `complete` says that none was cut short."""

    schema_version: int = SCHEMA_VERSION
    name: str
    hours: float | None
    complete: bool
    took_s: float
    machine: dict[str, Any]
    cells: list[CellResult]

    def of(self, *statuses: Status) -> list[CellResult]:
        """The cells of some statuses."""
        return [cell for cell in self.cells if cell.status in statuses]
