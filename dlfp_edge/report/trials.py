"""The raw files of a comparison, as far as pictures need them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import contended, first_tokens_s, shown
from dlfp_edge.task import Class

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials in a folder. `unreadable` are files that hold no record, by path."""

    records: tuple[tuple[Path, TrialRecord], ...] = ()
    unreadable: tuple[Path, ...] = field(default=())

    def counting(self, setting: str) -> list[TrialRecord]:
        """An arm's trials that count, its repeat not among them."""
        return [record for _, record in self.records if record.arm == setting and record.counts and not record.repeat]

    def gaps_ms(self, setting: str) -> Values:
        """The raw gaps an arm is judged by, in ms: contended ones, of a solo arm all."""
        return _ms([gap for request in self._foreground(setting) for gap in contended(request)])

    def shown_ms(self, setting: str) -> Values:
        """The gaps between what paced streams showed, in ms."""
        return _ms([gap for request in self._foreground(setting) for gap in shown(request)])

    def ttft_ms(self, setting: str) -> Values:
        """The times to first tokens, in ms."""
        return _ms(first_tokens_s(self._foreground(setting)))

    def steps(self, setting: str, seed: int) -> list[dict[str, Any]]:
        """The steps of an arm's trial with a seed; none where it has no engine of ours or did not count."""
        for folder, record in self.records:
            if record.arm == setting and record.seed == seed and record.counts and not record.repeat:
                return _lines(folder / "steps.jsonl")
        return []

    def _foreground(self, setting: str) -> list[Any]:
        return [request for record in self.counting(setting) for request in record.of_class(Class.FOREGROUND)]


def read_trials(folder: Path) -> Trials:
    """The trials of a comparison's folder. Raises OSError where one that is there cannot be read."""
    records, unreadable = [], []
    for path in sorted(folder.glob("trials/*/trial.json")):
        try:
            records.append((path.parent, TrialRecord.model_validate_json(path.read_bytes())))
        except ValidationError:
            unreadable.append(path)
    return Trials(tuple(records), tuple(unreadable))


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, up to the first that is none: a killed process may leave half of one."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                break
            if isinstance(value, dict):
                found.append(value)
    return found


def _ms(seconds: Sequence[float]) -> Values:
    return np.asarray(seconds, dtype=np.float64) * 1e3
