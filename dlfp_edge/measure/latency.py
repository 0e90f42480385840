"""The latencies of one request, from its record. All in seconds.

TTFT, ITL, TPOT and E2EL are defined as in vLLM's serving benchmark, but ITL gaps are pooled over requests, never
averaged per request first.
"""

from __future__ import annotations

from itertools import pairwise

from dlfp_edge.task import Finish, TaskRecord

LATE_S = 0.015
"""A paced token is late when it is shown more than this after it was due: about one refresh of a 60 Hz screen."""


def complete(record: TaskRecord) -> bool:
    """Whether the request ended with the whole answer."""
    return record.finish in (Finish.STOP, Finish.LENGTH)


def ttft_s(record: TaskRecord) -> float | None:
    """From (scheduled) arrival to the first token; None without one."""
    return record.token_times[0] - record.arrived if record.token_times else None


def gaps_s(record: TaskRecord) -> list[float]:
    """Raw ITL: the n - 1 gaps between tokens becoming available."""
    return [after - before for before, after in pairwise(record.token_times)]


def contended_gaps_s(record: TaskRecord) -> list[float]:
    """The raw gaps during which background work existed."""
    return [gap for gap, contended in zip(gaps_s(record), record.contended[1:], strict=True) if contended]


def shown_gaps_s(record: TaskRecord) -> list[float]:
    """The gaps between tokens being released to the reader; none for a stream that is not paced."""
    if record.pace is None:
        return []
    return [after - before for before, after in pairwise(record.shown_times)]


def lateness_s(record: TaskRecord) -> list[float]:
    """How long after it was due each token of a paced stream but the first was shown; 0 for those shown before.

    It is held against the schedule in force when it was shown, which a late token, background work that begins and a
    pace that was lowered move.
    """
    return [max(0.0, shown - due) for shown, due in zip(record.shown_times, record.due_times, strict=False)][1:]


def late_tokens(record: TaskRecord) -> int:
    """How many tokens of a paced stream were shown more than 15 ms after they were due."""
    return sum(late_s > LATE_S for late_s in lateness_s(record))


def e2el_s(record: TaskRecord) -> float | None:
    """From (scheduled) arrival to the last token becoming available; None unless the answer is complete."""
    return record.token_times[-1] - record.arrived if complete(record) and record.token_times else None


def tpot_s(record: TaskRecord) -> float | None:
    """(latency - TTFT) / (n - 1) of a complete answer; None below two tokens."""
    latency, first, count = e2el_s(record), ttft_s(record), len(record.token_times)
    if latency is None or first is None or count < 2:
        return None
    return (latency - first) / (count - 1)
