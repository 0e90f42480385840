"""The live view as text: it fits any terminal, says what matters and is cheap to draw."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from rich.cells import cell_len

from dlfp_edge.cli.live import LineView, Rate, Scene
from dlfp_edge.cli.panels import Frame, progress_bar, render, sparkline, wrapped_tail
from dlfp_edge.cli.transcript import Transcript
from dlfp_edge.runtimes.simulated import ByteTokenizer
from dlfp_edge.task import Class, TaskRecord
from dlfp_edge.trace import Snapshot

SNAPSHOT = Snapshot(
    now=12.0,
    placement="lanes",
    controller="lanes/dlfp",
    target_s=0.035,
    decode_only_s=0.02,
    budget=1.6,
    foreground_running=1,
    foreground_queued=2,
    background_running=3,
    background_queued=4,
    background_finished=5,
    background_prompt_tokens=6000,
    kv_used=1000,
    kv_cells=4000,
    last_gap_s=0.02,
    messages=("a target of 10 ms is infeasible: decoding alone takes 20 ms here",),
)
FRAME = Frame(
    snapshot=SNAPSHOT,
    documents=20,
    text="▸ chat\n" + "naïve words, 日本語 and averyveryverylongwordwithoutanyspace " * 60,
    title="chat",
    gaps_s=[0.02, 0.05] * 100,
    elapsed_s=12.0,
    foreground_rate=18.3,
    background_rate=300.0,
)


@pytest.mark.parametrize(("width", "height"), [(200, 60), (120, 35), (80, 24), (60, 20), (40, 15), (20, 10), (8, 8)])
def test_it_fits(width: int, height: int) -> None:
    lines = render(FRAME, width, height).plain.split("\n")
    assert len(lines) <= height
    assert max(cell_len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [120, 40])
def test_it_says_what_matters(width: int) -> None:
    picture = render(FRAME, width, 30).plain
    for words in ("50 ms", "target 35", "1.6 threads", "infeasible", "25%", "chat"):
        assert words in picture


def test_nothing_known_yet() -> None:
    empty = replace(SNAPSHOT, target_s=None, decode_only_s=None, budget=None, kv_cells=0, messages=())
    picture = render(replace(FRAME, snapshot=empty, text="", gaps_s=[], documents=0), 80, 24).plain
    assert "no limit" in picture


def test_an_open_end_has_no_bar() -> None:
    assert "5 done" in render(replace(FRAME, documents=None), 80, 24).plain
    assert "5 of 20 done" in render(FRAME, 80, 24).plain


def test_a_picture_is_cheap() -> None:
    times = []
    for _ in range(20):
        began = time.thread_time()
        render(FRAME, 120, 35)
        times.append(time.thread_time() - began)
    assert sorted(times)[10] < 0.005


def test_wide_characters_wrap_by_cells() -> None:
    assert [line.plain for line in wrapped_tail("日本語日本語", 6, 3)] == ["日本語", "日本語", ""]


def test_gaps_over_the_target_are_red() -> None:
    line = sparkline([0.01, 0.01, 0.09], target=0.035, width=10)
    assert [span.style for span in line.spans] == ["green", "red"]
    assert line.plain[-1] == "█"


def test_progress() -> None:
    assert progress_bar(1, 4, 8).plain == "━━──────"
    assert progress_bar(0, 0, 4).plain == "────"


def test_rate_over_a_while() -> None:
    rate = Rate()
    assert rate.per_second(0.0, 0.0) == 0.0
    assert rate.per_second(2.0, 30.0) == 15.0


def test_transcript_joins_the_bytes_of_a_character() -> None:
    transcript = Transcript(ByteTokenizer())
    record = _record("chat/0", Class.FOREGROUND, "é!".encode())
    for index in range(3):
        transcript.on_token(record, index)
    assert transcript.tail(100).endswith("é!")
    assert transcript.tokens == 3
    assert list(transcript.gaps_s) == pytest.approx([0.5, 0.5])


def test_transcript_keeps_nothing_of_requests_that_ended() -> None:
    transcript = Transcript(ByteTokenizer())
    record = _record("chat/0", Class.FOREGROUND, b"x")
    transcript.on_token(record, 0)
    transcript.on_finish(record)
    assert not transcript._decoders
    assert transcript.tail(10).endswith("x")


def test_transcript_leaves_the_background_out() -> None:
    transcript = Transcript(ByteTokenizer())
    transcript.on_token(_record("notes/0", Class.BACKGROUND, b"x"), 0)
    assert transcript.tail(100) == ""


def test_lines_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    with LineView(_Engine(), Transcript(ByteTokenizer()), Scene(documents=None, simulated=True)):
        pass
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("simulated, foreground: 0 tokens")
    assert "5 done, 3 running, 4 waiting, 6,000 prompt tokens" in line


class _Engine:
    def snapshot(self) -> Snapshot:
        return SNAPSHOT


def _record(label: str, task_class: Class, content: bytes) -> TaskRecord:
    record = TaskRecord(label, task_class, label, prompt_tokens=1, arrived=0.0)
    record.output_token_ids = list(content)
    record.shown_times = [0.5 * index for index in range(len(content))]
    return record
