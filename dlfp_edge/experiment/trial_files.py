"""The folder of a comparison: whose it is, and a folder in it for each trial, whole or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.artefacts import request_line, write_json
from dlfp_edge.experiment.harness import Checked
from dlfp_edge.experiment.jsonlines import LineFile, encode
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.trial import Measured

PLAN, TRIALS, TRIAL, HARNESS = "plan.json", "trials", "trial.json", "harness.json"


class TrialFiles:
    """Reads and writes `folder`. Raises RuntimeFailure where it cannot be written to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Make the folder that of this comparison, or go on with it. Raises UsageError where it holds another."""
        document, path = plain(dict(identity)), self._folder / PLAN
        if path.exists():
            there = read(path)
            if not isinstance(there, dict):
                raise UsageError(f"--out {self._folder}: its {PLAN} cannot be read: name another folder")
            if there != document:
                other = next(key for key in {**there, **document} if there.get(key) != document.get(key))
                raise UsageError(f"--out {self._folder}: it holds another comparison ({other}): name another folder")
            return
        if (self._folder / TRIALS).exists():
            raise UsageError(f"--out {self._folder}: it holds trials of no known plan: name another folder")
        self._write_json(path, document)

    def kept(self, name: str, fingerprint: str) -> TrialRecord | None:
        """The record of a trial that was run before; None where there is none, it failed, or it is of another make."""
        document = read(self._place(name) / TRIAL)
        try:
            record = TrialRecord.model_validate(document) if document is not None else None
        except ValidationError:
            return None
        fits = record is not None and record.fingerprint == fingerprint and record.status != "failed"
        return record if fits else None

    def write(self, name: str, record: TrialRecord) -> None:
        """Keep a trial: it is done from now on."""
        self._write_json(self._place(name) / TRIAL, record.model_dump(mode="json"))

    def harness(self) -> Checked | None:
        """What the check of the harness saw, where it was made before."""
        try:
            return Checked(**read(self._folder / HARNESS))
        except TypeError:
            return None

    def write_harness(self, checked: Checked) -> None:
        """Keep what the check of the harness saw."""
        self._write_json(self._folder / HARNESS, checked._asdict())

    def write_raw(self, name: str, measured: Measured) -> None:
        """Keep a trial's requests, and its steps where there are any, as lines."""
        requests = [request_line(record) for record in measured.load.records]
        try:
            self._place(name).mkdir(parents=True, exist_ok=True)
            _write_lines(self._place(name) / "requests.jsonl", requests)
            if measured.steps:
                _write_lines(self._place(name) / "steps.jsonl", measured.steps)
        except OSError as error:
            raise self._unwritable(error) from None

    def _place(self, name: str) -> Path:
        return self._folder / TRIALS / name

    def _write_json(self, path: Path, document: Mapping[str, Any]) -> None:
        try:
            write_json(path, document)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> RuntimeFailure:
        said = f"{error.filename or self._folder}: cannot be written: {error.strerror or error}"
        return RuntimeFailure(f"{said}; mend that and give the same command: trials that are done are kept")


def read(path: Path) -> Any:
    """A file's JSON; None where there is none to be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def plain(document: Mapping[str, Any]) -> Any:
    """The document as it reads once it was written: what JSON does not know is text."""
    return json.loads(json.dumps(document, default=_known))


def _known(value: object) -> Any:
    try:
        return encode(value)
    except TypeError:
        return str(value)


def _write_lines(path: Path, values: Sequence[Any]) -> None:
    file = LineFile(open(path, "wb", buffering=0))  # noqa: SIM115 (LineFile owns it)
    try:
        for value in values:
            file.append(value)
        file.flush()
    finally:
        file.close()
