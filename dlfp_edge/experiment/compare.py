"""Runs a comparison, trial by trial, each into its own folder, so that a killed one goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from dlfp_edge.errors import DlfpError
from dlfp_edge.experiment.arms import Arm
from dlfp_edge.experiment.plan import Plan, Planned, Point, finalists
from dlfp_edge.experiment.record import (
    TrialRecord,
    client_late_ms,
    fault,
    isolated_tokens_per_s,
    requests_of,
)
from dlfp_edge.experiment.results import point_of, ratios
from dlfp_edge.experiment.trial import Measured, Trial
from dlfp_edge.experiment.trial_files import TrialFiles, plain
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.measure.tally import over_targets
from dlfp_edge.task import Class

Around = Callable[[Trial], AbstractContextManager[Mapping[str, Any]]]
"""What goes on around a trial that is about to run; what it gives is kept with the trial once that has ended."""

_UNSETTLED = "how far background prompts had come at a trial's end was not told in time: too few of their tokens count"


class Comparer:
    """The trials of a plan, in `files`. `stop` ends it; what was done is kept and not done again, but for failures.

    `before` is called with each trial that is to run, `after` with the record of each trial, also one that was there,
    and `save` after each that was run. `complete` says whether all were. Raises RuntimeFailure where the files cannot
    be written.
    """

    def __init__(
        self,
        plan: Plan,
        limits: Limits,
        files: TrialFiles,
        *,
        candidate: str,
        before: Callable[[Planned], None] = lambda planned: None,
        after: Callable[[Planned, TrialRecord], None] = lambda planned, record: None,
        save: Callable[[Comparer], object] = lambda comparer: None,
        around: Around | None = None,
    ) -> None:
        self._plan, self._limits = plan, limits
        self._candidate = candidate
        self._before, self._after, self._save = before, after, save
        self._around: Around = around or (lambda trial: nullcontext({}))
        self._stopped = False
        self._trial: Trial | None = None
        self.records: list[TrialRecord] = []
        self._files = files
        self.complete = False

    @property
    def part(self) -> float:
        """How far the trial under way has come, from 0 to 1."""
        return 0.0 if self._trial is None else self._trial.part

    def stop(self) -> None:
        """End with the trials done so far. For signal handlers and other threads."""
        self._stopped = True
        if self._trial is not None:
            self._trial.stop()

    def run(self) -> list[TrialRecord]:
        """Run what is not done yet and return every record."""
        self._run_all(self._plan.first())
        if not self._is_stopped():
            self._run_all(self._plan.later(self._finalists()))
        self.complete = not self._is_stopped()
        return self.records

    def _is_stopped(self) -> bool:
        return self._stopped

    def _run_all(self, trials: Iterable[Planned]) -> None:
        for planned in trials:
            if self._is_stopped():
                return
            kept = record = self._files.kept(planned.name, self._fingerprint(planned))
            if record is None:
                self._before(planned)
                record = self._run_one(planned)
                if self._is_stopped():
                    return
            self.records.append(record)
            self._after(planned, record)
            if record is not kept:
                self._save(self)

    def _run_one(self, planned: Planned) -> TrialRecord:
        began = time.monotonic()
        try:
            measured, target, condition = self._measure(planned)
        except DlfpError as error:
            record = self._record(planned, began, status="failed", reason=str(error))
        else:
            record = self._described(planned, began, measured, target, condition)
            self._files.write_raw(planned.name, measured)
        if not self._stopped:
            self._files.write(planned.name, record)
        return record

    def _measure(self, planned: Planned) -> tuple[Measured, Mapping[str, Any], Mapping[str, Any]]:
        """What the trial saw, what its target is, and what went on around it."""
        arm = planned.arm
        background = [s for other in self._plan.arms for s in other.workload.of_class(Class.BACKGROUND)]
        with arm.opener.open(self._largest(arm)) as opened:
            self._trial = Trial(
                opened,
                arm.workload,
                seed=planned.seed,
                limits=self._limits,
                isolated=background[0] if arm.alone and background else None,
            )
            if self._stopped:
                self._trial.stop()
            try:
                with self._around(self._trial) as condition:
                    measured = self._trial.run()
                return measured, opened.describe, condition
            finally:
                self._trial = None

    def _largest(self, arm: Arm) -> Workload:
        """The workload a target must have room for: a solo arm's too has that of the arms it stands beside."""
        beside = (other.workload for other in self._plan.arms if other.solo == arm.label and not other.alone)
        return next(beside, arm.workload) if arm.alone else arm.workload

    def _described(
        self,
        planned: Planned,
        began: float,
        measured: Measured,
        target: Mapping[str, Any],
        condition: Mapping[str, Any],
    ) -> TrialRecord:
        requests = requests_of(measured.load, planned.arm.workload)
        reason = fault(requests, measured, planned.arm.workload)
        return self._record(
            planned,
            began,
            status="failed" if measured.load.gone else "complete" if reason is None else "void",
            reason=reason,
            duration_s=measured.load.duration_s,
            ended_by=measured.load.ended_by,
            requests=requests,
            background_tokens=measured.prefilled if planned.arm.workload.of_class(Class.BACKGROUND) else None,
            isolated_tokens_per_s=isolated_tokens_per_s(measured.isolated),
            machine=None if measured.machine is None else asdict(measured.machine),
            engine=measured.counters,
            target=plain(target),
            condition=plain(condition) or None,
            over_target=over_targets(step for step in measured.steps if step.completed <= measured.load.end),
            client_late_ms=client_late_ms(measured.load.records),
            messages=[*measured.messages, *([] if measured.load.settled else [_UNSETTLED])],
        )

    def _record(self, planned: Planned, began: float, **fields: Any) -> TrialRecord:
        return TrialRecord(
            arm=planned.arm.label,
            seed=planned.seed,
            repeat=planned.repeat,
            fingerprint=self._fingerprint(planned),
            took_s=time.monotonic() - began,
            **fields,
        )

    def _finalists(self) -> list[str]:
        """The points of each sweep that go on."""
        reads = ratios(self._plan.arms, self.records, self._candidate)
        counting = (record for record in self.records if record.counts and not record.repeat)
        points = {record.arm: point_of(record, reads[record.arm]) for record in counting}
        sweeps: dict[str, list[Point]] = {}
        for arm in self._plan.arms:
            point = points.get(arm.label)
            if arm.sweep is not None and point is not None:
                sweeps.setdefault(arm.sweep, []).append(point)
        candidate = points.get(self._candidate)
        return [label for sweep in sweeps.values() for label in finalists(sweep, candidate)]

    def _fingerprint(self, planned: Planned) -> str:
        arm = planned.arm
        what = {
            "arm": arm.label,
            "target": arm.opener.describe(),
            "workload": arm.workload.as_json(),
            "content": arm.workload.checksum(),
            "seed": planned.seed,
            "limits": asdict(self._limits),
        }
        return hashlib.sha256(json.dumps(plain(what), sort_keys=True).encode()).hexdigest()[:16]
