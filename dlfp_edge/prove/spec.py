"""What a proof is made of, as its TOML file has it: the cells, and what the default must reach in each."""

from __future__ import annotations

import importlib.resources
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.experiment.complaint import one_line
from dlfp_edge.prove.bars import parse_bar
from dlfp_edge.prove.conditions import CONDITIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
RESERVED = ("gpus",)
"""No cell is named so: what stands beside the cells in a proof's folder."""


class Seeds(BaseModel):
    """Seeds of prompts and arrivals: `choose` the best fixed setting with some, `score` it with others."""

    model_config = _STRICT

    choose: list[int] = Field(default=[701, 702], min_length=1)
    score: list[int] = Field(default=[801, 802, 803], min_length=1)

    @model_validator(mode="after")
    def _apart(self) -> Seeds:
        both = [*self.choose, *self.score]
        if len(set(both)) < len(both) or min(both) < 0:
            raise ValueError("'choose' and 'score' must be different seeds, none below 0, and none in both")
        return self


class Cell(BaseModel):
    """One comparison. `candidate` is held against `controls` and `peers` with every scoring seed; of the settings in
    `best_of` and of each peer's, those that do best with the seeds to choose by.

    `model` is "embedded", the path of a GGUF file, "synth:SHAPE:QUANT" or "simulated". `why` says what the cell is
    there for, and `tighter` an earlier cell that differs in a tighter target alone. A trial ends at `gaps` contended
    gaps, or after `cap_s`; within a budget of hours after less, but never less than `least_s`.
    """

    model_config = _STRICT

    name: str
    why: str = ""
    model: str = Field(default="embedded", min_length=1)
    workload: str = "chat-ingest"
    pace: float | None = Field(default=None, gt=0)
    scale: float = Field(default=1.0, gt=0)
    placement: Literal["auto", "lanes", "shared"] = "auto"
    slowdown: float | None = Field(default=None, gt=1, le=1e6)
    target_itl_ms: float | None = Field(default=None, gt=0)
    condition: str = "quiet"
    tighter: str | None = None
    candidate: str = "auto"
    controls: list[str] = Field(default_factory=list)
    best_of: list[str] = Field(default_factory=list)
    peers: list[str] = Field(default_factory=list)
    seeds: Seeds = Field(default_factory=Seeds)
    gaps: int = Field(default=1000, ge=1)
    cap_s: float = Field(default=60.0, gt=0)
    least_s: float = Field(default=20.0, gt=0)
    bars: list[str] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(f"'name' {name!r} is a folder's: write small letters, digits, dots and dashes")
        return name

    @field_validator("condition")
    @classmethod
    def _known(cls, condition: str) -> str:
        if condition not in CONDITIONS:
            raise ValueError(f"unknown condition {condition!r}: {hint(condition, CONDITIONS, 'conditions are')}")
        return condition

    @field_validator("bars")
    @classmethod
    def _read(cls, bars: list[str]) -> list[str]:
        for bar in bars:
            try:
                parse_bar(bar)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return bars

    @model_validator(mode="after")
    def _whole(self) -> Cell:
        if self.slowdown is not None and self.target_itl_ms is not None:
            raise ValueError("'slowdown' and 'target_itl_ms' are two ways to say one target: give only one")
        if not (self.controls or self.best_of or self.peers):
            raise ValueError("there is nothing to compare with: give 'controls', 'best_of' or 'peers'")
        if self.least_s > self.cap_s:
            raise ValueError("'least_s' must not be more than 'cap_s'")
        return self

    @property
    def simulated(self) -> bool:
        """Whether time is virtual."""
        return self.model == "simulated"


class Spec(BaseModel):
    """A proof: its cells, the most important first."""

    model_config = _STRICT

    name: str = Field(min_length=1)
    cells: list[Cell] = Field(alias="cell", min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Spec:
        names = [cell.name for cell in self.cells]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two cells are named '{name}': give each its own 'name'")
        for at, cell in enumerate(self.cells):
            if cell.tighter is not None and cell.tighter not in names[:at]:
                raise ValueError(
                    f"cell '{cell.name}': 'tighter' is '{cell.tighter}': name a cell that stands before it"
                )
        return self

    def only(self, names: Sequence[str]) -> Spec:
        """The proof with the cells named. Raises UsageError for one that is not there."""
        known = [cell.name for cell in self.cells]
        if not names:
            raise UsageError(f"--cells: name at least one of {', '.join(known)}")
        for name in names:
            if name not in known:
                raise UsageError(f"--cells: no cell '{name}': {hint(name, known, 'cells are')}")
        return self.model_copy(update={"cells": [cell for cell in self.cells if cell.name in names]})


def load_spec(source: Path | None, bundled: str = "default") -> Spec:
    """A proof's file, or a bundled one. Raises UsageError with one line that names the file, the key and the mend."""
    file: Traversable | Path = source or importlib.resources.files("dlfp_edge.prove") / f"{bundled}.toml"
    shown = str(source) if source else f"{bundled}.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{shown}: not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: the file is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot read the file: {error.strerror or error}") from None
    try:
        return Spec.model_validate(table)
    except ValidationError as error:
        raise UsageError(f"{shown}: {one_line(error, table, {'': Spec, 'cell': Cell})}") from None
