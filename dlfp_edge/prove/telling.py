"""What the records of a cell's trials say about why its figures are what they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.trial_files import TRIALS
from dlfp_edge.task import Class

_COUNTERS = {
    "backstops": "backstops",
    "floors": "floor steps",
    "solo_steps": "steps that held the background to measure",
    "preemptions": "interruptions for arrivals",
    "pauses": "pauses for KV cells",
    "aborted_tokens": "tokens lost to interruptions",
}


def telling(records: Sequence[TrialRecord], folder: Path, slug: str) -> list[str]:
    """Lines for people about an arm's trials: counters, the background's share of the time, its threads or its cap."""
    if not records:
        return []
    trials = [list(steps_of(folder / TRIALS / f"{record.seed}-{slug}")) for record in records]
    seconds = sum(max(s["completed"] for s in steps) - min(s["submitted"] for s in steps) for steps in trials if steps)
    steps = [step for trial in trials for step in trial]
    return [*_counted(records), *_shares(steps, seconds), *_machine(records)]


def _counted(records: Sequence[TrialRecord]) -> Iterator[str]:
    seconds = sum(record.duration_s for record in records)
    totals = {name: sum((record.engine or {}).get(name, 0) for record in records) for name in _COUNTERS}
    parts = [f"{total} {_COUNTERS[name]}" for name, total in totals.items() if total]
    yield f"in {seconds:.0f} s: {', '.join(parts) or 'no backstop, floor, hold or interruption'}"


def _shares(steps: Sequence[dict[str, Any]], seconds: float) -> Iterator[str]:
    back = [step for step in steps if _is_background(step)]
    front = [step for step in steps if step["target_s"] is not None]
    busy = sum(step["completed"] - step["submitted"] for step in back) / seconds if seconds else 0.0
    if busy >= 0.01:
        yield f"background steps ran {busy:.0%} of the time, on {_threads(back)} threads"
    if front:
        yield f"foreground steps beside background ran on {_threads(front)} threads"
    caps = [step["budget"] for step in steps if step["protected"] and step["budget"] is not None]
    if caps:
        yield f"tokens beside a decode: median {median(caps):.0f}, from {min(caps):.0f} to {max(caps):.0f}"
    reasons = Counter(step["reason"] for step in steps if step["reason"])
    if reasons:
        yield "why the controller stayed: " + ", ".join(f"{why} ({times})" for why, times in reasons.most_common(3))


def _is_background(step: dict[str, Any]) -> bool:
    classes = {segment["task_class"] for segment in step["segments"]}
    return classes == {Class.BACKGROUND.value}


def _threads(steps: Sequence[dict[str, Any]]) -> str:
    counts = Counter(step["threads"] for step in steps)
    return ", ".join(f"{threads} ({times / len(steps):.0%})" for threads, times in sorted(counts.items()))


def _machine(records: Sequence[TrialRecord]) -> Iterator[str]:
    foreign = [cpus for r in records if r.machine and (cpus := r.machine.get("foreign_cpus")) is not None]
    if foreign and max(foreign) > 0.05:
        yield f"other programs used up to {max(foreign):.2f} CPUs in a trial"
    stolen = [cpus for r in records if r.machine and (cpus := r.machine.get("steal_cpus")) is not None]
    if stolen and max(stolen) > 0.05:
        yield f"the host took up to {max(stolen):.2f} CPUs in a trial"


def steps_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trial's steps; none where the target told of none."""
    try:
        with open(folder / "steps.jsonl", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError):
        return
