"""Trial records for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from dlfp_edge.experiment.record import Request, TrialRecord
from dlfp_edge.task import Class


def request(label: str = "chat/0/0", gaps_s: list[float] | None = None, **fields: Any) -> Request:
    """A complete foreground answer with contended gaps."""
    gaps = [0.02] * 10 if gaps_s is None else gaps_s
    usual = {
        "label": label,
        "stream": label.split("/")[0],
        "task_class": Class.FOREGROUND,
        "ttft_s": 0.1,
        "tpot_s": sum(gaps) / len(gaps) if gaps else None,
        "e2el_s": 0.1 + sum(gaps),
        "gaps_s": gaps,
        "contended": [True] * len(gaps),
        "shown_s": [],
        "tokens": len(gaps) + 1,
        "complete": True,
        "failed": False,
        "cut": False,
        "age_s": 1.0,
        "merged": False,
        "prompt": 7,
        "ids": list(range(len(gaps) + 1)),
    }
    return Request.model_validate({**usual, **fields})


def trial(
    arm: str, seed: int = 1, *, gap_s: float = 0.02, gaps: int = 1000, background: float | None = 1000.0, **fields: Any
) -> TrialRecord:
    """A trial whose foreground gaps are all alike."""
    usual = {
        "arm": arm,
        "seed": seed,
        "status": "complete",
        "fingerprint": "f",
        "took_s": 11.0,
        "duration_s": 10.0,
        "ended_by": "gaps",
        "requests": [request(gaps_s=[gap_s] * gaps)],
        "background_tokens": background,
    }
    return TrialRecord.model_validate({**usual, **fields})
