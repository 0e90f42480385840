"""Conditions are in force while they should be, and what was made for them is gone afterwards."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.prove.conditions import CONDITIONS
from dlfp_edge.prove.prepare import Prepared
from dlfp_edge.prove.quota import NotHere, own_group
from dlfp_edge.settings import Settings
from tests.experiment.simulated import simulated

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system sets no affinity")


class HalfWay:
    """A trial that is as far as it is told to be."""

    part = 0.0


def test_another_program_comes_at_half_of_the_trial_and_goes_with_it() -> None:
    trial = HalfWay()
    before = {child.pid for child in psutil.Process().children()}
    with CONDITIONS["contention"].around_trial(trial) as told:  # type: ignore[arg-type]
        time.sleep(0.2)
        assert {child.pid for child in psutil.Process().children()} == before
        trial.part = 0.6
        deadline = time.monotonic() + 20.0
        while {child.pid for child in psutil.Process().children()} == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        trial.part = 1.0  # what is measured has ended, the trial goes on
        while {child.pid for child in psutil.Process().children()} != before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert {child.pid for child in psutil.Process().children()} == before
    assert set(told) == {"busy_cpu", "busy_s"}


def test_a_trial_that_ends_early_meets_no_other_program() -> None:
    with CONDITIONS["contention"].around_trial(HalfWay()) as told:  # type: ignore[arg-type]
        pass
    assert told == {}


def test_another_program_that_cannot_be_started_fails_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("dlfp_edge.prove.conditions.busy_cores", refused)
    trial = HalfWay()
    trial.part = 0.6
    with (
        pytest.raises(RuntimeFailure, match="beside the trial failed: no more processes"),
        CONDITIONS["contention"].around_trial(trial),  # type: ignore[arg-type]
    ):
        time.sleep(0.2)


def test_throttling_is_counted_while_the_trial_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    class Throttled:
        count = 5

        def throttled(self) -> int:
            return self.count

    device, trial = Throttled(), HalfWay()
    monkeypatch.setattr("dlfp_edge.prove.conditions.detect_device", lambda: device)
    with CONDITIONS["quota"].around_trial(trial) as told:  # type: ignore[arg-type]
        time.sleep(0.15)
        device.count, trial.part = 7, 0.5
        time.sleep(0.2)
        device.count, trial.part = 10, 1.0
        time.sleep(0.2)
        device.count = 100
    assert told["throttled"] == 3


@needs_affinity
def test_one_cpu_is_one_cpu_for_every_thread_and_given_back() -> None:
    usual = os.sched_getaffinity(0)
    if len(usual) < 2:
        with pytest.raises(NotHere, match="one CPU"), CONDITIONS["one-cpu"].around_cell():
            pass
        return
    with CONDITIONS["one-cpu"].around_cell():
        assert {len(os.sched_getaffinity(thread.id)) for thread in psutil.Process().threads()} == {1}
    assert os.sched_getaffinity(0) == usual


def test_no_priority_changes_that_and_nothing_else() -> None:
    changed = CONDITIONS["no-priority"].changed(Settings(slowdown=2.0))
    assert changed == Settings(slowdown=2.0, priority=False)
    assert CONDITIONS["quiet"].changed(Settings()) == Settings()


def group(root: Path, *files: str, line: str) -> Path:
    """A cgroup's folder as the kernel makes it, in which new groups have these files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    home = root / "sys/fs/cgroup" / ("cpu/box" if line.startswith("1:") else "box")
    new = home / f"dlfp-edge-{os.getpid()}"
    new.mkdir(parents=True)
    for name in (*files, "cgroup.procs"):
        (new / name).write_text("")
    (home / "cgroup.procs").write_text("")
    return home


@pytest.mark.parametrize(
    ("line", "files", "file", "granted"),
    [
        ("1:cpu,cpuacct:/box\n", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), "cpu.cfs_quota_us", "150000"),
        ("0::/box\n", ("cpu.max",), "cpu.max", "150000 100000"),
    ],
)
def test_a_quota_is_written_in_either_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: tuple[str, ...], file: str, granted: str
) -> None:
    home = group(tmp_path, *files, line=line)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with own_group(1.5, tmp_path):
        new = home / f"dlfp-edge-{os.getpid()}"
        assert (new / file).read_text() == granted
        assert (new / "cgroup.procs").read_text() == str(os.getpid())
        assert (home / "cgroup.procs").read_text() == ""
    assert (home / "cgroup.procs").read_text() == str(os.getpid())


def test_who_cannot_leave_a_quota_is_told_to_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = group(tmp_path, "cpu.max", line="0::/box\n")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(RuntimeFailure, match=r"cannot leave .* start anew"), own_group(1.5, tmp_path):
        (home / "cgroup.procs").unlink()


def test_a_quota_that_may_not_be_had_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="no cgroup with CPU time"), own_group(1.5, tmp_path):
        pass
    home = tmp_path / "sys/fs/cgroup/box"
    home.mkdir(parents=True)
    (home / "cgroup.procs").write_text("")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    with pytest.raises(NotHere, match="hands no CPU time on"), own_group(1.5, tmp_path):
        pass
    assert [path.name for path in home.iterdir()] == ["cgroup.procs"]


def test_constants_are_fitted_once_a_model_and_kept(tmp_path: Path) -> None:
    runtime, asked = simulated(), []

    def fit(fitted: object) -> str:
        asked.append(fitted)
        return f"shared/stall-cap:T=0.0{len(asked)}"

    fits = {"shared/fitted": fit}
    names = ["shared/fcfs", "shared/fitted"]
    first = Prepared(tmp_path / "p.json", fits).settings(names, "a", runtime)
    again = Prepared(tmp_path / "p.json", fits)
    assert again.settings(names, "a", runtime) == first == {"shared/fitted": "shared/stall-cap:T=0.01"}
    assert again.settings(names, "b", runtime) == {"shared/fitted": "shared/stall-cap:T=0.02"}
