"""An experiment: what is asked, on one loaded model, from its plan to its result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.experiment.arms import Arm, EngineOpener, Named, Others, Speed, with_solo
from dlfp_edge.experiment.compare import Around, Comparer
from dlfp_edge.experiment.document import Result, build_result
from dlfp_edge.experiment.expected import Expected
from dlfp_edge.experiment.harness import Checked, check_harness
from dlfp_edge.experiment.jsonlines import to_json
from dlfp_edge.experiment.plan import Plan, Planned
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.session import VIRTUAL
from dlfp_edge.experiment.trial_files import PLAN, TrialFiles, read
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings

QUICK_S = 180.0
"""What a quick comparison may take: under four minutes with what no plan foresees."""

QUICK_CAPS_S = (20.0, 15.0, 10.0, 8.0, 6.0, 5.0, 4.0, 3.0, 2.0)
BASELINES = ("shared/fcfs", "shared/unlimited")
"""What most servers do: the first of these among the settings is what words and gates are held against."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared and how. `settings` are label, settings and the sweep they are a point of; the first one is the
    candidate. `others` make the arms that can only be known once a runtime is loaded; `threads` and `options` are the
    runtime's as asked for. `condition` names what goes on `around` each trial.
    """

    workload: Workload
    scale: float
    settings: tuple[tuple[str, Settings, str | None], ...]
    seeds: tuple[int, ...]
    gaps: int
    cap_s: float
    quick: bool = False
    exact: bool = False
    others: tuple[Others, ...] = ()
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    condition: str | None = None
    around: Around | None = None


class Experiment:
    """A question on a loaded runtime, which it owns. `stop` ends it with the trials done so far.

    Raises UsageError where the folder holds another comparison.
    """

    def __init__(self, question: Question, runtime: Runtime, name: str, folder: Path) -> None:
        self.question, self._runtime, self.folder = question, runtime, folder
        topology = detect_device().cpu()
        named: list[Named] = [
            (label, EngineOpener(runtime, settings, topology), sweep) for label, settings, sweep in question.settings
        ]
        context = question.settings[0][1].context
        named += [arm for make in question.others for arm in make(runtime, question.workload, context)]
        self.arms = with_solo(named, question.workload)
        self.candidate = named[0][0]
        labels = [arm.label for arm in self.arms]
        self.baseline = next((label for label in BASELINES if label in labels), None)
        self.plan = Plan(self.arms, question.seeds, self.baseline)
        self._machine, self._told = detect_device().describe(), runtime.describe()
        self._identity = _identity(question, self._told, name, self.arms)
        self.limits = self._limits()
        self._comparer: Comparer | None = None
        self._harness: Checked | None = None
        self._stopped = False

    @property
    def simulated(self) -> bool:
        """Whether time is virtual."""
        return self._runtime.clock.name == VIRTUAL

    @property
    def part(self) -> float:
        """How far the trial under way has come, from 0 to 1."""
        return 0.0 if self._comparer is None else self._comparer.part

    @property
    def records(self) -> Sequence[TrialRecord]:
        """The trials there are so far."""
        return () if self._comparer is None else self._comparer.records

    def expected_s(self, arm: Arm | None = None) -> float:
        """How long a trial of the arm will take, or all of them."""
        seconds = Expected(_speed(self._runtime), self.limits).seconds
        return self.plan.expected_s(seconds) if arm is None else seconds(arm)

    def stop(self) -> None:
        """End with the trials done so far. For signal handlers and other threads."""
        self._stopped = True
        if self._comparer is not None:
            self._comparer.stop()

    def run(
        self,
        before: Callable[[Planned], None] = lambda planned: None,
        after: Callable[[Planned, TrialRecord], None] = lambda planned, record: None,
    ) -> Result:
        """Run what is not done yet; the result's files are brought up to date after each trial."""
        files = TrialFiles(self.folder)
        files.claim({**self._identity, "limits": {"gaps": self.limits.gaps, "cap_s": self.limits.cap_s}})
        comparer = self._comparer = Comparer(
            self.plan,
            self.limits,
            files,
            candidate=self.candidate,
            before=before,
            after=after,
            save=self._save,
            around=self.question.around,
        )
        if self._stopped:
            comparer.stop()
        elif not self.question.quick:
            self._check_harness(files)
        comparer.run()
        return self._save(comparer)

    def close(self) -> None:
        """Close the runtime."""
        self._runtime.close()

    def _check_harness(self, files: TrialFiles) -> None:
        """Once a comparison: what it saw holds for all of its trials."""
        self._harness = files.harness()
        if self._harness is None:
            self._harness = check_harness(self._runtime, lambda: self._stopped)
            if self._harness is not None:
                files.write_harness(self._harness)

    def _save(self, comparer: Comparer) -> Result:
        result = self._result(comparer)
        result.save(self.folder)
        return result

    def _result(self, comparer: Comparer) -> Result:
        question, seen = self.question, self._harness
        return build_result(
            self.arms,
            comparer.records,
            question.workload,
            self.limits,
            candidate=self.candidate,
            baseline=self.baseline,
            scale=question.scale,
            seeds=list(question.seeds),
            quick=question.quick,
            exact=question.exact,
            simulated=self.simulated,
            complete=comparer.complete,
            expected_s=self.expected_s(),
            harness=None if seen is None else {"matching": seen.matching, "nonmatching": seen.nonmatching},
            harness_fault=None if seen is None else seen.fault,
            machine=self._machine,
            runtime=_json(self._told),
        )

    def _limits(self) -> Limits:
        """As asked; of a quick comparison the longest cap with which it stays quick, or that it began with."""
        question = self.question
        if not question.quick:
            return Limits(question.gaps, question.cap_s)
        begun = begun_limits(self.folder)
        if begun is not None:
            return begun
        speed = _speed(self._runtime)
        choices = [Limits(question.gaps, min(cap_s, question.cap_s)) for cap_s in QUICK_CAPS_S]
        fits = (limits for limits in choices if self.plan.expected_s(Expected(speed, limits).seconds) <= QUICK_S)
        return next(fits, choices[-1])


def open_experiment(
    question: Question,
    runtime: str,
    model: Path | None,
    *,
    folder: Path,
) -> Experiment:
    """Load the model and make the plan. Raises UsageError with one line that says what is wrong."""
    loaded = load_runtime(
        runtime,
        model,
        threads=question.threads,
        exact=question.exact,
        seed=question.seeds[0],
        options=question.options,
    )
    try:
        return Experiment(question, loaded, runtime, folder)
    except BaseException:
        loaded.close()
        raise


def _identity(question: Question, told: Mapping[str, Any], name: str, arms: list[Arm]) -> dict[str, Any]:
    """What makes this comparison the one it is: two with the same can share a folder. Nothing that a probe measured."""
    return {
        "versions": {"dlfp-edge": version("dlfp-edge"), name: told.get("llama_cpp_python")},
        "runtime": name,
        "threads": question.threads,
        "options": question.options,
        "model": told.get("model"),
        "sha256": told.get("sha256"),
        "workload": question.workload.as_json(),
        "scale": question.scale,
        "seeds": question.seeds,
        "arms": {arm.label: arm.opener.describe() for arm in arms},
        "quick": question.quick,
        "exact": question.exact,
        **({} if question.condition is None else {"condition": question.condition}),
    }


def _speed(runtime: Runtime) -> Speed:
    """What the probe found; where nothing was probed, a laptop's usual."""
    caps = runtime.capabilities
    return Speed(caps.decode_s or 0.02, caps.prefill_tokens_per_s or 400.0)


def begun_limits(folder: Path) -> Limits | None:
    """The limits of the trials of a comparison that was begun in the folder; None where none was."""
    try:
        limits = read(folder / PLAN)["limits"]
        return Limits(int(limits["gaps"]), float(limits["cap_s"]))
    except (ValueError, KeyError, TypeError):
        return None


def _json(document: Mapping[str, Any]) -> Any:
    return json.loads(to_json(document))
