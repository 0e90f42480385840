"""Comparisons to report: records made by hand, and what the package makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dlfp_edge.experiment.arms import Arm, Opener
from dlfp_edge.experiment.document import Result, build_result
from dlfp_edge.experiment.record import Request, TrialRecord
from dlfp_edge.experiment.trial_load import Limits
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.task import Class

SEEDS = (801, 802, 803)
NO_OPENER = cast(Opener, None)


def workload(name: str = "chat-ingest") -> Workload:
    return load_workload("chat-ingest").model_copy(update={"name": name})


def arms(labels: Sequence[str], asked: Workload) -> list[Arm]:
    """The arms of these labels and their solos."""
    alone = asked.with_streams(asked.of_class(Class.FOREGROUND))
    found: dict[str, Arm] = {}
    for label in labels:
        kind = next((start for start in ("llama-server", "http://") if label.startswith(start)), label.split("/")[0])
        kind = {"auto": "lanes", "http://": label}.get(kind, kind)
        solo = f"{kind}/solo"
        sweep = "shared/fixed:*" if "fixed" in label else None
        found.setdefault(solo, Arm(solo, NO_OPENER, alone, solo))
        found[label] = Arm(label, NO_OPENER, asked, solo, sweep)
    return list(found.values())


def request(index: int, gap_s: float, *, shown: bool = False, gaps: int = 400) -> Request:
    """A foreground request whose every tenth gap is three times as long."""
    gaps_s = [gap_s * (3.0 if at % 10 == 9 else 1.0) for at in range(gaps)]
    return Request(
        label=f"chat/0/{index}",
        stream="chat",
        task_class=Class.FOREGROUND,
        ttft_s=10 * gap_s + 0.001 * index,
        tpot_s=sum(gaps_s) / gaps,
        e2el_s=10 * gap_s + sum(gaps_s),
        gaps_s=gaps_s,
        contended=[True] * gaps,
        paced=shown,
        shown_s=[0.05] * gaps if shown else [],
        tokens=gaps + 1,
        complete=True,
        failed=False,
        cut=False,
        age_s=30.0,
        merged=False,
        prompt=index,
        ids=[index, 1, 2],
    )


def trial(arm: Arm, seed: int, gap_s: float = 0.02, *, background: float | None = 600.0, **fields: Any) -> TrialRecord:
    """A trial that counts, unless `fields` say otherwise."""
    usual = {
        "status": "complete",
        "duration_s": 60.0,
        "ended_by": "gaps",
        "requests": [request(index, gap_s * (1 + (seed - 801) / 100)) for index in range(3)],
        "background_tokens": None if arm.alone or background is None else 60.0 * background,
        "isolated_tokens_per_s": 900.0 if arm.alone else None,
    }
    return TrialRecord(arm=arm.label, seed=seed, fingerprint="", took_s=70.0, **{**usual, **fields})


def result(
    compared: Sequence[Arm], records: Sequence[TrialRecord], asked: Workload, candidate: str = "auto", **fields: Any
) -> Result:
    """What the package makes of the records."""
    usual: dict[str, Any] = {
        "scale": 1.0,
        "seeds": list(SEEDS),
        "quick": False,
        "exact": False,
        "simulated": False,
        "complete": True,
        "expected_s": 900.0,
        "harness": {"matching": 0.31, "nonmatching": 1.02},
        "harness_fault": None,
        "machine": {"cpu_model": "A CPU", "cpus": [0, 1], "memory_bytes": 8 << 30},
        "runtime": {"runtime": "llama_cpp", "model": {"name": "a model"}},
    }
    facts = {**usual, **fields}
    baseline = "shared/fcfs" if any(arm.label == "shared/fcfs" for arm in compared) else None
    return build_result(compared, records, asked, Limits(), candidate=candidate, baseline=baseline, **facts)


def keep(folder: Path, records: Sequence[TrialRecord], steps: Sequence[dict[str, Any]] = ()) -> None:
    """Write the records as a comparison does; `steps` are those of every trial."""
    for at, record in enumerate(records):
        place = folder / "trials" / f"{record.seed}-{at}"
        place.mkdir(parents=True)
        (place / "trial.json").write_text(record.model_dump_json(), encoding="utf-8")
        if steps:
            (place / "steps.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps), encoding="utf-8")


def step(at: float, *, lane: str = "shared", budget: float | None = 64.0) -> dict[str, Any]:
    """A step with a foreground decode that takes 20 ms."""
    return {
        "lane": lane,
        "segments": [{"task_class": "foreground", "kind": "decode"}],
        "budget": budget,
        "target_s": 0.03,
        "submitted": at,
        "completed": at + 0.02,
    }
