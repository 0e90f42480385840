"""Sessions on the simulated runtime: what runs, what counts, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.experiment.artefacts import Artefacts
from dlfp_edge.experiment.session import (
    Finished,
    Session,
    SessionEvent,
    Submitted,
    TokenShown,
    Window,
    run_workload,
    running,
)
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.measure.summary import Summary
from dlfp_edge.runtime import StepResult
from dlfp_edge.task import Class, Finish

from .simulated import engine


def workload(*streams: dict[str, Any], duration_s: float | None = None) -> Workload:
    table = {"name": "w", "description": "", "duration_s": duration_s, "stream": list(streams)}
    return Workload.model_validate(table)


CHAT = {"name": "chat", "class": "foreground", "clients": 1, "prompt_tokens": 16, "max_tokens": 12}
INGEST = {"name": "ingest", "class": "background", "clients": 2, "prompt_tokens": 300, "max_tokens": 4}


@pytest.mark.parametrize(
    "setting", ["lanes/dlfp", "lanes/static", "shared/dlfp", "shared/fixed:32", "shared/unlimited"]
)
def test_the_files_reconcile_with_the_summary(setting: str, tmp_path: Path) -> None:
    with engine(setting) as made, Artefacts(tmp_path) as artefacts:
        outcome = run_workload(made, load_workload("chat-ingest"), duration_s=12.0, artefacts=artefacts)
        summary = outcome.summary()
        artefacts.finish(summary, {})
    Summary.model_validate(summary)
    requests = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    foreground = [line for line in requests if line["class"] == "foreground"]
    assert len(foreground) == summary["foreground"]["requests"] > 0
    assert summary["foreground"]["itl_ms"]["count"] == sum(len(line["token_times"]) - 1 for line in foreground)
    assert len(requests) == len(outcome.records)
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == summary["steps"]
    assert summary["controller"] == setting
    assert summary["background"]["prompt_tokens_per_s"] > 0


def test_the_last_answers_are_whole_and_the_background_is_cancelled() -> None:
    with engine() as made:
        outcome = run_workload(made, workload(CHAT, INGEST, duration_s=3.0))
    by_class = {c: [r.finish for r in outcome.records if r.task_class is c] for c in Class}
    assert set(by_class[Class.FOREGROUND]) == {Finish.LENGTH}
    assert Finish.CANCELLED in by_class[Class.BACKGROUND]
    assert not outcome.stopped


def test_the_duration_is_a_bound_for_what_waits_and_for_long_answers() -> None:
    crowd = {**CHAT, "clients": 80, "max_tokens": 4000}
    with engine("shared/dlfp") as made:
        outcome = run_workload(made, workload(crowd, INGEST, duration_s=5.0), windows=None)
    foreground = [record for record in outcome.records if record.task_class is Class.FOREGROUND]
    waited = [record for record in foreground if record.started is None]
    answered = [record for record in foreground if record.started is not None]
    assert waited
    assert answered
    assert all(record.finished == pytest.approx(5.0, abs=1.0) for record in waited)
    assert all(record.finished is not None and record.finished < 16.0 for record in answered)
    assert all(record.finish is Finish.CANCELLED for record in foreground)
    assert outcome.tally.foreground.counted_s < 16.0
    assert len(outcome.tally.foreground.gaps) == sum(len(record.token_times) - 1 for record in answered)


def test_limited_streams_end_the_run() -> None:
    with engine() as made:
        outcome = run_workload(made, workload({**CHAT, "requests": 3}, INGEST))
    foreground = [record.label for record in outcome.records if record.task_class is Class.FOREGROUND]
    assert foreground == ["chat/0/0", "chat/0/1", "chat/0/2"]


def test_background_alone_runs_to_its_limit() -> None:
    with engine() as made:
        outcome = run_workload(made, workload({**INGEST, "requests": 5}))
    assert outcome.tally.background.complete == 5
    assert outcome.tally.background.prompt_tokens == pytest.approx(5 * 300)


def test_open_loop_requests_all_count_from_their_scheduled_arrival() -> None:
    stream = {"name": "open", "class": "foreground", "rate": 5.0, "requests": 20, "prompt_tokens": 64, "max_tokens": 8}
    with engine("shared/dlfp") as made:
        outcome = run_workload(made, workload(stream), seed=801)
    assert outcome.tally.foreground.complete == 20
    assert all(record.started is None or record.started >= record.arrived for record in outcome.records)


def test_solo_windows_alternate_and_are_measured() -> None:
    events: list[SessionEvent] = []
    with engine("shared/unlimited") as made:
        outcome = run_workload(made, workload(CHAT, INGEST, duration_s=16.0), on_event=events.append)
    windows = [event.solo for event in events if isinstance(event, Window)]
    assert windows[:4] == [True, False, True, False]
    summary = outcome.summary()
    assert summary["solo_itl_ms"]["count"] > 0
    assert summary["solo_itl_ms"]["p99"] < summary["foreground"]["contended_itl_ms"]["p99"]
    assert summary["contended_s"] < summary["duration_s"]


def test_without_windows_nothing_is_held() -> None:
    events: list[SessionEvent] = []
    with engine() as made:
        outcome = run_workload(made, workload(CHAT, INGEST, duration_s=8.0), windows=None, on_event=events.append)
    assert not any(isinstance(event, Window) for event in events)
    assert outcome.summary()["unavailable"]["solo_itl_ms.p99"]


def test_a_single_session_is_all_solo() -> None:
    with engine() as made:
        summary = run_workload(made, workload(CHAT, duration_s=3.0)).summary()
    assert summary["solo_itl_ms"]["count"] == summary["foreground"]["itl_ms"]["count"]


def test_events_tell_the_whole_story() -> None:
    events: list[SessionEvent] = []
    with engine() as made:
        outcome = run_workload(made, workload({**CHAT, "requests": 2}), on_event=events.append)
    submitted = [event for event in events if isinstance(event, Submitted)]
    finished = [event for event in events if isinstance(event, Finished)]
    tokens = [event.position for event in events if isinstance(event, TokenShown)]
    assert len(submitted) == len(finished) == 2
    assert tokens == [*range(12), *range(12)]
    assert [event.record for event in finished] == list(outcome.records)


def test_stop_cuts_the_run_short_and_keeps_what_there_is() -> None:
    seen: list[SessionEvent] = []

    def on_event(event: SessionEvent) -> None:
        seen.append(event)
        if len(seen) == 40:
            session.stop()

    with engine() as made:
        session = Session(made, workload(CHAT, INGEST, duration_s=1e6), on_event=on_event)
        outcome = session.run()
    assert outcome.stopped
    assert all(record.finish is not None for record in outcome.records)
    Summary.model_validate(outcome.summary())


def test_scale_is_applied_and_recorded() -> None:
    with engine() as made:
        outcome = run_workload(made, workload({**CHAT, "requests": 1}), scale=0.5)
    assert outcome.records[0].prompt_tokens == 8
    assert len(outcome.records[0].output_token_ids) == 6
    assert outcome.summary()["scale"] == 0.5


def test_the_same_seed_asks_the_same_under_any_setting() -> None:
    answers = []
    for setting in ("lanes/dlfp", "shared/fixed:32"):
        with engine(setting) as made:
            outcome = run_workload(made, workload({**CHAT, "requests": 3}, INGEST), seed=7)
        answers.append({r.label: r.output_token_ids for r in outcome.records if r.task_class is Class.FOREGROUND})
    assert answers[0] == answers[1]


def test_a_prompt_that_does_not_fit_ends_the_run_with_its_error() -> None:
    with engine() as made, pytest.raises(UsageError, match="do not fit"):
        run_workload(made, workload({**CHAT, "prompt_tokens": 300_000, "requests": 1}, INGEST))


def test_a_missed_deadline_is_counted() -> None:
    slow = {**INGEST, "clients": 1, "requests": 2, "prompt_tokens": 4000, "deadline_s": 0.5}
    with engine() as made:
        summary = run_workload(made, workload(slow)).summary()
    assert summary["background"]["missed_deadlines"] == summary["background"]["failed"] == 2


def test_paced_streams_have_shown_gaps() -> None:
    with engine() as made:
        summary = run_workload(made, workload({**CHAT, "pace": 20.0, "requests": 2}, INGEST)).summary()
    assert summary["foreground"]["shown_itl_ms"]["count"] == 22
    assert summary["foreground"]["late_tokens"] == {"count": 0, "share": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    assert summary["foreground"]["lowered_pace"] == {"requests": 0, "tokens_per_s": None}


def test_a_pace_that_had_to_be_lowered_is_in_the_summary() -> None:
    with engine() as made:
        summary = run_workload(made, workload({**CHAT, "pace": 1000.0, "requests": 2}, INGEST)).summary()
    lowered = summary["foreground"]["lowered_pace"]
    assert lowered["requests"] == 2
    assert 10.0 < lowered["tokens_per_s"] < 1000.0
    assert any("a pace of 1000 tokens/s" in message for message in summary["messages"])


def test_paced_and_unpaced_answers_in_real_time_are_all_counted() -> None:
    paced = {**CHAT, "name": "paced", "clients": 3, "requests": 12, "pace": 300.0}
    shown: dict[str, list[int]] = {}

    def note(event: SessionEvent) -> None:
        if isinstance(event, TokenShown):
            shown.setdefault(event.record.label, []).append(event.position)

    with engine(clock="real", base_s="0.001") as made, running(made):
        outcome = run_workload(made, workload(paced, {**CHAT, "requests": 6}, INGEST), on_event=note)
    assert outcome.tally.foreground.complete == 18
    assert outcome.summary()["foreground"]["shown_itl_ms"]["count"] == 12 * 11
    foreground = [label for label in shown if not label.startswith("ingest")]
    assert len(foreground) == 18
    assert all(shown[label] == list(range(12)) for label in foreground)


def test_an_engine_with_a_thread_of_its_own_is_waited_for() -> None:
    with engine() as made:
        made.clock.name = "its own"
        with running(made):
            outcome = run_workload(made, workload({**CHAT, "requests": 3}, INGEST))
    assert outcome.tally.foreground.complete == 3


def test_an_engine_that_fails_on_the_way_is_reported() -> None:
    def broken(until: float | None) -> list[StepResult]:
        raise OSError("the device is gone")

    with engine() as made:
        made.clock.name = "its own"
        made.runtime.wait = broken  # type: ignore[method-assign]
        with running(made), pytest.raises(RuntimeFailure, match="the device is gone"):
            run_workload(made, workload({**CHAT, "requests": 3}))


def test_two_runs_on_one_engine_are_measured_apart() -> None:
    with engine() as made:
        first = run_workload(made, workload({**CHAT, "requests": 1}))
        second = run_workload(made, workload({**CHAT, "requests": 2}))
    assert (first.tally.foreground.requests, second.tally.foreground.requests) == (1, 2)
