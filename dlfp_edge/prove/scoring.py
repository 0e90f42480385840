"""What the scoring trials of a cell come to: bars held and missed, and where the default loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from dlfp_edge.experiment.arms import Arm, Speed
from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.experiment import Experiment
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import ratios
from dlfp_edge.experiment.trial_files import TRIAL, TRIALS, read
from dlfp_edge.experiment.verdict import Verdict
from dlfp_edge.prove.bars import BarResult, judge, parse_bar
from dlfp_edge.prove.choosing import FIXED, Choice
from dlfp_edge.prove.disturbed import background_per_s, disturbed_s, quiet_gaps
from dlfp_edge.prove.document import Against, CellResult, Status
from dlfp_edge.prove.scored import Scored
from dlfp_edge.prove.spec import Cell
from dlfp_edge.prove.telling import steps_of, telling

_UNMATCHED = "no fixed setting was as smooth as the default, or kept its target, with the seeds to choose by"


def scored_cell(
    cell: Cell, experiment: Experiment, result: Result, chosen: Mapping[str, Choice], notes: Sequence[str]
) -> CellResult:
    """The cell's result from its scoring comparison, once that is complete."""
    scored = _scored(cell, experiment, chosen)
    bars = [judge(parse_bar(text), scored, result.verdicts) for text in cell.bars]
    arm = next(arm for arm in experiment.arms if arm.label == experiment.candidate)
    return CellResult(
        cell=cell.model_dump(mode="json"),
        status=_status(bars, result.verdicts),
        cap_s=experiment.limits.cap_s,
        expected_s=experiment.expected_s(),
        chosen={sweep: list(choice.labels) for sweep, choice in chosen.items()},
        best=scored.best,
        bars=bars,
        against=[_against(verdict) for verdict in result.verdicts],
        losses=[*_missed(bars), *_worse(result.verdicts)],
        telling=telling(scored.own, experiment.folder, arm.slug),
        troubles=[
            *notes,
            *([_UNMATCHED] if scored.unmatched else []),
            *(f"{t.setting}, seed {t.seed}: {t.status}: {t.reason}" for t in result.troubles),
        ],
    )


def _scored(cell: Cell, experiment: Experiment, chosen: Mapping[str, Choice]) -> Scored:
    trials: dict[str, dict[int, TrialRecord]] = {}
    for record in experiment.records:
        if record.counts and not record.repeat:
            trials.setdefault(record.arm, {})[record.seed] = record
    own = next(arm for arm in experiment.arms if arm.label == experiment.candidate)
    workload = experiment.question.workload
    return Scored(
        candidate=experiment.candidate,
        solo=own.solo,
        trials=trials,
        paces={stream.name: stream.pace for stream in workload.streams if stream.pace is not None},
        ratios=ratios(experiment.arms, experiment.records, experiment.candidate),
        best=chosen[FIXED].best if FIXED in chosen else next(iter(cell.best_of), None),
        unmatched=FIXED in chosen and chosen[FIXED].best is None,
        peers=tuple(label for sweep, choice in chosen.items() if sweep != FIXED for label in choice.labels),
        disturbed=_disturbed(experiment, trials),
        quiet_target_s=_quiet_target_s(own, trials.get(own.solo, {})),
        tighter={} if cell.tighter is None else _other_cell(experiment.folder.parent / cell.tighter, cell, own.slug),
    )


def _other_cell(folder: Path, cell: Cell, slug: str) -> dict[int, TrialRecord]:
    """The candidate's trials of another cell of this proof, by seed: those that are there and count."""
    files = {seed: folder / TRIALS / f"{seed}-{slug}" / TRIAL for seed in cell.seeds.score}
    records = {seed: TrialRecord.model_validate(read(file)) for seed, file in files.items() if file.exists()}
    return {seed: record for seed, record in records.items() if record.counts}


def _disturbed(experiment: Experiment, trials: Mapping[str, Mapping[int, TrialRecord]]) -> dict[str, dict[int, float]]:
    """Background rates of each arm by seed, from when another program came."""
    found: dict[str, dict[int, float]] = {}
    for arm in experiment.arms:
        for seed, record in trials.get(arm.label, {}).items():
            if disturbed_s(record):
                rate = background_per_s(record, steps_of(experiment.folder / TRIALS / f"{seed}-{arm.slug}"))
                if rate is not None:
                    found.setdefault(arm.label, {})[seed] = rate
    return found


def _quiet_target_s(own: Arm, alone: Mapping[int, TrialRecord]) -> float | None:
    """What the candidate's gaps are aimed to stay below, by decodes alone before another program came."""
    gaps = [gap_s for record in alone.values() for gap_s in quiet_gaps(record)]
    return own.opener.expected_gap_s(Speed(median(gaps), math.inf)) if gaps else None


def _status(bars: Sequence[BarResult], verdicts: Sequence[Verdict]) -> Status:
    if any(bar.state == "missed" for bar in bars) or any(verdict.outcome == "worse" for verdict in verdicts):
        return "lost"
    return "undecided" if any(bar.state == "no data" for bar in bars) else "held"


def _against(verdict: Verdict) -> Against:
    texts = {change.metric: change.text for change in verdict.changes}
    return Against(
        control=verdict.control,
        outcome=verdict.outcome,
        gap_p99=texts.get("itl_p99"),
        background=texts.get("background"),
        why=verdict.why,
    )


def _missed(bars: Sequence[BarResult]) -> list[str]:
    return [f"{bar.bar}: it is {bar.value:.4g}" for bar in bars if bar.state == "missed" and bar.value is not None]


def _worse(verdicts: Sequence[Verdict]) -> list[str]:
    return [
        f"worse than {verdict.control}: "
        + ", ".join(
            f"{change.metric} by {-change.mean:.1f}%"
            for change in verdict.changes
            if change.claim < 0 and change.mean is not None
        )
        for verdict in verdicts
        if verdict.outcome == "worse"
    ]
