"""Artefacts: whole lines, whole documents, and disks that fail."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment import artefacts as module
from dlfp_edge.experiment.artefacts import Artefacts, write_json
from dlfp_edge.experiment.jsonlines import LineFile
from dlfp_edge.task import Class, Finish, TaskRecord


class SmallDisk(RawIOBase):
    """A file on a disk with room for so many bytes; a write may be cut short, as the system's may."""

    def __init__(self, room: int, at_once: int = 7) -> None:
        self.content = bytearray()
        self._room, self._at_once = room, at_once

    def write(self, data: Any) -> int:
        taken = bytes(data)[: min(self._at_once, self._room - len(self.content))]
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.content += taken
        return len(taken)

    def truncate(self, size: int | None = None) -> int:
        assert size is not None
        del self.content[size:]
        return size


def request(number: int) -> TaskRecord:
    return TaskRecord(
        request_id=f"f{number}",
        task_class=Class.FOREGROUND,
        label=f"chat/0/{number}",
        prompt_tokens=64,
        arrived=1.0,
        output_token_ids=[7, 8],
        token_times=[1.5, 1.6],
        shown_times=[1.5, 1.6],
        contended=[True, False],
        finished=1.6,
        finish=Finish.LENGTH,
    )


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(0, 200))
def test_a_full_disk_leaves_whole_lines(values: list[int], room: int) -> None:
    disk = SmallDisk(room)
    file = LineFile(disk)
    failures = 0
    for value in values:
        file.append({"value": value})
        try:
            file.flush()
        except OSError:
            failures += 1
    lines = bytes(disk.content).splitlines(keepends=True)
    assert all(line.endswith(b"\n") for line in lines)
    assert [json.loads(line)["value"] for line in lines] == values[: len(lines)]
    assert failures == (len(lines) < len(values))


def test_requests_are_written_with_their_tokens_and_times(tmp_path: Path) -> None:
    with Artefacts(tmp_path / "new" / "run") as artefacts:
        artefacts.request(request(0))
        artefacts.request(request(1))
    lines = [json.loads(line) for line in (tmp_path / "new" / "run" / "requests.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["f0", "f1"]
    assert lines[0]["class"] == "foreground"
    assert lines[0]["finish"] == "length"
    assert len(lines[0]["output_token_ids"]) == len(lines[0]["token_times"]) == len(lines[0]["shown_times"])
    assert artefacts.fault is None


def test_an_answer_is_written_as_text_too(tmp_path: Path) -> None:
    answered = replace(request(0), pieces=["a", "é"], stop_string="\n", finish=Finish.STOP)
    with Artefacts(tmp_path) as artefacts:
        artefacts.request(answered)
    [line] = map(json.loads, (tmp_path / "requests.jsonl").read_text().splitlines())
    assert line["text"] == "aé"
    assert (line["finish"], line["stop_string"]) == ("stop", "\n")
    assert "pieces" not in line


def test_no_summary_stands_beside_records_of_a_later_run(tmp_path: Path) -> None:
    with Artefacts(tmp_path) as first:
        first.finish({"a": 1}, {"b": 2})
    with Artefacts(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "steps.jsonl"]


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": float("inf"), "b": [float("nan"), 1.5], "c": tmp_path})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": None, "b": [None, 1.5], "c": str(tmp_path)}


def test_a_failing_disk_is_reported_once_and_the_rest_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    artefacts = Artefacts(tmp_path, report=said.append)
    artefacts._requests = LineFile(SmallDisk(0))
    artefacts._steps = LineFile(SmallDisk(0))
    artefacts.request(request(0))
    artefacts.request(request(1))
    artefacts.finish({"a": 1}, {"b": 2})
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "\n" not in said[0]
    assert artefacts.fault is not None
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": 1}
    assert json.loads((tmp_path / "manifest.json").read_text()) == {"b": 2}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")
    with Artefacts(tmp_path, report=said.append) as artefacts:
        artefacts.request(request(0))
    assert len(said) == 1
    assert artefacts.fault is not None


def test_only_files_that_were_written_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    artefacts = Artefacts(tmp_path, report=lambda _: None)
    artefacts.request(request(0))
    artefacts.close()
    monkeypatch.setattr(os, "fsync", full)
    artefacts.finish({"a": 1}, {"b": 2})
    assert artefacts.files() == ["requests.jsonl"]


def test_requests_are_written_before_steps(tmp_path: Path) -> None:
    flushed: list[str] = []

    class Noting(LineFile):
        def flush(self) -> None:
            flushed.append("requests" if self is artefacts._requests else "steps")

    artefacts = Artefacts(tmp_path)
    artefacts._requests, artefacts._steps = Noting(SmallDisk(99)), Noting(SmallDisk(99))
    artefacts.close()
    assert flushed[-2:] == ["requests", "steps"]


def test_a_hanging_disk_never_blocks_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class HangingDisk(SmallDisk):
        def write(self, data: Any) -> int:
            released.wait(60)
            return super().write(data)

    monkeypatch.setattr(module, "WRITE_S", 0.01)
    monkeypatch.setattr(module, "QUEUE_LIMIT", 5)
    said: list[str] = []
    with Artefacts(tmp_path, report=said.append) as artefacts:
        artefacts._requests = LineFile(HangingDisk(10**6))
        for number in range(50):
            artefacts.request(request(number))
        released.set()
    assert artefacts.fault is not None
    assert "records are missing" in said[0]
    assert len(said) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        Artefacts(tmp_path / "file" / "run")


def test_a_document_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"run": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"run": 2})
    assert json.loads(path.read_text()) == {"run": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


_WRITER = """
import sys, time
from pathlib import Path
from dlfp_edge.experiment.artefacts import Artefacts
from dlfp_edge.task import Class, TaskRecord

artefacts = Artefacts(Path(sys.argv[1]))
for number in range(10**9):
    artefacts.request(TaskRecord(str(number), Class.FOREGROUND, "", 1, 0.0, output_token_ids=list(range(500))))
    time.sleep(0.001)
    if number == 20:
        print("started", flush=True)
"""


def test_a_killed_process_loses_at_most_its_last_line(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    file = tmp_path / "requests.jsonl"
    while not file.stat().st_size:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    content = file.read_bytes()
    # The system may cut a write in two when it kills a process, so what follows the last line end does not count.
    whole = content[: content.rfind(b"\n") + 1]
    numbers = [int(json.loads(line)["request_id"]) for line in whole.splitlines()]
    assert numbers
    assert numbers == list(range(len(numbers)))


def test_records_of_virtual_time_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlfp_edge.experiment.artefacts.QUEUE_LIMIT", 10)
    monkeypatch.setattr("dlfp_edge.experiment.artefacts.WRITE_S", 0.01)
    with Artefacts(tmp_path, patient=True) as artefacts:
        for number in range(200):
            artefacts.request(TaskRecord(str(number), Class.FOREGROUND, "", 1, 0.0))
    assert artefacts.fault is None
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 200
