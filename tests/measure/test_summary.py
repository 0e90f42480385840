"""The summary document: valid, and every null explained."""

from __future__ import annotations

from typing import Any

import pytest

from dlfp_edge.measure.summary import RunFacts, Summary, build_summary
from dlfp_edge.measure.tally import RunTally
from dlfp_edge.measure.windows import WindowPlan
from dlfp_edge.task import Class
from dlfp_edge.trace import Counters

from .records import record

BOTH = frozenset(Class)


def facts(classes: frozenset[Class] = BOTH, target_s: float | None = 0.08) -> RunFacts:
    return RunFacts("w", 1, 1.0, "lanes", "lanes/dlfp", target_s, classes)


def nulls(value: Any, name: str = "") -> list[str]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in nulls(inner, f"{name}.{key}".strip("."))]
    return [name] if value is None else []


@pytest.mark.parametrize("classes", [BOTH, frozenset({Class.FOREGROUND}), frozenset({Class.BACKGROUND})])
@pytest.mark.parametrize("target_s", [None, 0.08])
def test_every_null_of_an_empty_run_has_a_reason(classes: frozenset[Class], target_s: float | None) -> None:
    document = build_summary(facts(classes, target_s), RunTally(WindowPlan(0.0)), Counters())
    Summary.model_validate(document)
    assert sorted(document["unavailable"]) == sorted(nulls(document))
    assert all(document["unavailable"].values())


def test_what_was_measured_is_there() -> None:
    tally = RunTally(WindowPlan(0.0))
    late_s = [0.0] * 8 + [0.004, 0.02]
    paced = record([0.01] * 9, arrived=1.0, pace=50.0, contended=[True] * 10, late_s=late_s)
    paced.lowest_pace = 40.0
    tally.add(paced)
    tally.close(2.0)
    counters = Counters(steps=7, preemptions=2, computed_tokens=200, aborted_tokens=20, backstops=1)
    counters.preemption_s.extend([0.002, 0.004])
    document = build_summary(facts(), tally, counters)
    foreground = document["foreground"]
    assert foreground["itl_ms"]["count"] == 9
    assert foreground["contended_itl_ms"]["p50"] == pytest.approx(10.0)
    assert foreground["output_tokens_per_s"] == pytest.approx(5.0)
    assert foreground["finished_per_min"] == pytest.approx(30.0)
    assert foreground["late_tokens"] == pytest.approx(
        {"count": 1, "share": 1 / 9, "p99_ms": 4.0 + 0.92 * 16.0, "max_ms": 20.0}
    )
    assert foreground["lowered_pace"] == {"requests": 1, "tokens_per_s": 40.0}
    assert document["target_itl_ms"] == pytest.approx(80.0)
    assert document["preemptions"]["latency_ms"]["max"] == pytest.approx(4.0)
    assert document["preemptions"]["wasted_fraction"] == pytest.approx(0.1)
    assert sorted(document["unavailable"]) == sorted(nulls(document))


def test_messages_are_in_the_summary() -> None:
    said = RunFacts("w", 1, 1.0, "lanes", "lanes/dlfp", None, BOTH, ("the target cannot be met",))
    assert build_summary(said, RunTally(WindowPlan(0.0)), Counters())["messages"] == ["the target cannot be met"]


def test_a_missing_class_is_the_reason() -> None:
    document = build_summary(facts(frozenset({Class.FOREGROUND})), RunTally(WindowPlan(0.0)), Counters())
    assert document["unavailable"]["background.ttft_ms.p99"] == "the workload has no background stream"
