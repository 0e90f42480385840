"""A trial's load: when it ends, and what of it counts."""

from __future__ import annotations

from typing import Any

import pytest

from dlfp_edge.experiment.trial_load import FAILURES, Limits, Loaded, TrialLoad
from dlfp_edge.experiment.workload import Workload
from dlfp_edge.task import Class, Finish

from .fake_target import FakeTarget
from .simulated import engine, simulated


def workload(*streams: dict[str, Any]) -> Workload:
    return Workload.model_validate({"name": "w", "description": "-", "duration_s": 1e6, "stream": list(streams)})


CHAT = {"name": "chat", "class": "foreground", "clients": 1, "prompt_tokens": 16, "max_tokens": 32}
INGEST = {"name": "ingest", "class": "background", "clients": 2, "prompt_tokens": 300, "max_tokens": 4}
FEW = Limits(gaps=10**9, cap_s=1e9)


def loaded(asked: Workload, limits: Limits, setting: str = "auto") -> Loaded:
    with engine(setting) as target:
        load = TrialLoad(target, asked, target.runtime.tokenizer, seed=1, limits=limits)
        target.call_at(0.0, load.begin)
        target.run_until(load.done)
        assert load.done()
        return load.outcome()


def gaps(result: Loaded) -> int:
    foreground = [record for record in result.records if record.task_class is Class.FOREGROUND]
    return sum(max(0, sum(moment <= result.end for moment in record.token_times) - 1) for record in foreground)


def test_it_ends_at_so_many_contended_gaps() -> None:
    result = loaded(workload(CHAT, INGEST), Limits(gaps=100, cap_s=1e9))
    assert result.ended_by == "gaps"
    assert gaps(result) >= 100
    assert gaps(result) < 100 + 32


def test_gaps_with_nothing_beside_them_do_not_end_a_load_that_has_background_work() -> None:
    few = {**INGEST, "clients": 1, "start_s": 3.0}
    result = loaded(workload(CHAT, few), Limits(gaps=50, cap_s=1e9))
    assert result.end > 3.0
    assert gaps(result) > 100


def test_without_background_every_gap_counts() -> None:
    result = loaded(workload(CHAT), Limits(gaps=100, cap_s=1e9))
    assert result.ended_by == "gaps"
    assert gaps(result) == 100


def test_it_ends_when_its_time_is_up() -> None:
    result = loaded(workload(CHAT, INGEST), Limits(gaps=10**9, cap_s=4.0))
    assert result.ended_by == "cap"
    assert result.duration_s == pytest.approx(4.0, abs=0.5)


def test_it_ends_with_the_last_of_its_requests() -> None:
    result = loaded(workload({**CHAT, "requests": 3}, INGEST), FEW)
    assert result.ended_by == "requests"
    complete = [r for r in result.records if r.task_class is Class.FOREGROUND and r.finish is Finish.LENGTH]
    assert len(complete) == 3
    assert gaps(result) == 3 * 31


def test_the_background_goes_on_until_what_spans_the_end_is_known() -> None:
    known: list[float] = []

    def settled(end: float, live: Any) -> bool:
        known.append(end)
        return len(known) > 5

    with engine() as target:
        load = TrialLoad(
            target, workload(CHAT, INGEST), target.runtime.tokenizer, seed=1, limits=Limits(50), settled=settled
        )
        target.call_at(0.0, load.begin)
        target.run_until(load.done)
        result = load.outcome()
    assert set(known) == {result.end}
    assert max(record.finished or 0.0 for record in result.records) >= result.end + 0.4


def test_a_target_that_fails_everything_ends_it() -> None:
    target = FakeTarget(finish=Finish.ERROR)
    load = TrialLoad(target, workload(CHAT), simulated().tokenizer, seed=1, limits=FEW)
    load.begin()
    target.run(1e6)
    result = load.outcome()
    assert result.ended_by == "failures"
    assert len(result.records) == FAILURES


def test_every_request_asked_has_one_record() -> None:
    result = loaded(workload(CHAT, INGEST), Limits(gaps=200, cap_s=1e9))
    labels = [record.label for record in result.records]
    assert sorted(labels) == sorted(result.asked)
    assert len(set(labels)) == len(labels)


def test_the_same_seed_asks_the_same_of_every_setting() -> None:
    one = loaded(workload(CHAT, INGEST), Limits(gaps=100), "lanes/static").asked
    other = loaded(workload(CHAT, INGEST), Limits(gaps=100), "shared/fixed:8").asked
    common = one.keys() & other.keys()
    assert len(common) > 3
    assert all(one[label] == other[label] for label in common)


def test_a_target_that_is_gone_at_the_end_is_told_from_one_that_failed_a_request() -> None:
    target = FakeTarget(finish=Finish.ERROR)
    load = TrialLoad(target, workload({**CHAT, "requests": 3}), simulated().tokenizer, seed=1, limits=FEW)
    load.begin()
    target.run(1e6)
    assert load.outcome().ended_by == "requests"
    assert load.outcome().failing
    assert not loaded(workload({**CHAT, "requests": 3}), FEW).failing
