"""What a run leaves behind in its `--out` folder, written without ever making the engine wait for the disk.

steps.jsonl      one line a step, as it happens
requests.jsonl   one line a request, as it ends
summary.json     `dlfp_edge.measure.summary.Summary`
manifest.json    versions, model, machine, settings and workload
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.jsonlines import LineFile, encode, to_json
from dlfp_edge.task import TaskRecord
from dlfp_edge.trace import StepRecord

QUEUE_LIMIT = 20_000
"""Records that may wait for the disk: some minutes of steps, should it hang."""

WRITE_S = 0.5
"""How often what has gathered is written: the most that a killed process loses."""


_FILES = ("summary.json", "requests.jsonl", "steps.jsonl", "manifest.json")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Artefacts:
    """Writes a run's artefacts from a thread of its own; a context manager that closes itself.

    A disk that fills or fails keeps the whole lines written so far, is reported once through `report` (from the writer
    thread), sets `fault`, and does not disturb the run. A command whose artefacts have a `fault` exits non-zero.
    Records that the disk cannot keep up with are dropped and counted, unless `patient`: virtual time outruns any disk,
    and stands still while it waits. What an earlier run left in the folder is replaced, its summary first, so that no
    summary stands beside another run's records.

    Raises UsageError if the folder cannot be made or written to.
    """

    def __init__(
        self,
        folder: Path,
        *,
        report: Callable[[str], None] = _to_stderr,
        patient: bool = False,
    ) -> None:
        self._patient = patient
        self.folder = folder
        self.fault: str | None = None
        self._report = report
        self._waiting: deque[tuple[LineFile, StepRecord | TaskRecord]] = deque()
        self._missing = 0
        self._lost: set[str] = set()
        self._closing = threading.Event()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("summary.json", "manifest.json"):
                (folder / name).unlink(missing_ok=True)
            self._steps = LineFile(FileIO(folder / "steps.jsonl", "w"))
            self._requests = LineFile(FileIO(folder / "requests.jsonl", "w"))
        except OSError as error:
            raise UsageError(f"--out {folder}: cannot write there: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._write_loop, name="artefacts", daemon=True)
        self._thread.start()

    def __enter__(self) -> Artefacts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, record: StepRecord) -> None:
        """Take a step's record."""
        self._put(self._steps, record)

    def request(self, record: TaskRecord) -> None:
        """Take the record of a request that has ended."""
        self._put(self._requests, record)

    def finish(self, summary: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Write what is left, then `summary.json` and `manifest.json`, each whole or not at all."""
        self.close()
        for name, document in (("summary.json", summary), ("manifest.json", manifest)):
            try:
                write_json(self.folder / name, document)
            except OSError as error:
                self._lost.add(name)
                self._fail(f"{name}: {error.strerror or error}")

    def files(self) -> list[str]:
        """The names of the files that hold something of this run."""
        return [name for name in _FILES if name not in self._lost and _holds_something(self.folder / name)]

    def close(self) -> None:
        """Write what is left and stop; safe to repeat."""
        self._closing.set()
        self._thread.join()

    def _put(self, file: LineFile, record: StepRecord | TaskRecord) -> None:
        while self._patient and len(self._waiting) >= QUEUE_LIMIT:
            time.sleep(WRITE_S / 10)
        if len(self._waiting) < QUEUE_LIMIT:
            self._waiting.append((file, record))
        else:
            self._missing += 1

    def _fail(self, problem: str) -> None:
        if self.fault is None:
            self.fault = f"--out {self.folder}: {problem}"
            self._report(f"error: {self.fault}; the run goes on and what was written is kept")

    def _write_loop(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(WRITE_S)
            self._write_waiting()
        if self._missing:
            self._fail(f"the disk was too slow: {self._missing} records are missing")
        self._steps.close()
        self._requests.close()

    def _write_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            file, record = self._waiting.popleft()
            file.append(request_line(record) if isinstance(record, TaskRecord) else record)
            time.sleep(0)  # offers the interpreter's lock to the engine
        for file in (self._requests, self._steps):  # the small one first: steps must not take its room
            try:
                file.flush()
            except OSError as error:
                self._fail(error.strerror or str(error))


def _holds_something(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def request_line(record: TaskRecord) -> dict[str, Any]:
    """A request as `requests.jsonl` has it: times are seconds on the engine's clock, one a token."""
    line: dict[str, Any] = encode(record)
    line["class"] = line.pop("task_class")
    line["text"] = "".join(line.pop("pieces"))
    return line


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write strict JSON, whole or not at all. Raises OSError."""
    write_whole(path, to_json(document).encode() + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """Write through a temporary file, so that `path` is always whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
