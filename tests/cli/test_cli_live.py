"""The live view as text: it fits any terminal, says what matters and obeys nothing that the model says."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dlfp_edge.cli.cells import cut, printable, width, wrap
from dlfp_edge.cli.live import LineView, Rate, Scene
from dlfp_edge.cli.panels import Frame, progress_bar, render, sparkline, tall_sparkline, wrapped_tail
from dlfp_edge.cli.transcript import Transcript
from dlfp_edge.task import Class, TaskRecord
from dlfp_edge.trace import Snapshot, StuckStep

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
    paused=0,
    background_finished=5,
    background_prompt_tokens=6000,
    kv_used=1000,
    kv_cells=4000,
    last_gap_s=0.02,
)
FRAME = Frame(
    snapshot=SNAPSHOT,
    documents=20,
    text="▸ chat\n" + "naïve words, 日本語 and averyveryverylongwordwithoutanyspace " * 60,
    title="chat",
    gaps_s=[0.02, 0.05] * 100,
    pace=None,
    elapsed_s=12.0,
    foreground_rate=18.3,
    background_rate=300.0,
)


HOSTILE = (
    "a\x1b[31mred\x1b]0;title\x07 \x9b2J \rback\x08 \u202eright to left\u202c שלום عربي 👩‍👩‍👧 ❤️ 🇩🇪 日本語\x7f\x00 "
    * 40
)
SIZES = [(300, 90), (120, 35), (80, 24), (60, 20), (40, 24), (40, 10), (20, 10), (8, 8), (2, 1)]
STUCK = StuckStep("background", 34.0, 0.9)


def lines_of(frame: Frame, columns: int, rows: int) -> list[str]:
    return [line.plain for line in render(frame, columns, rows)]


def picture_of(frame: Frame, columns: int, rows: int) -> str:
    return "\n".join(lines_of(frame, columns, rows))


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("pace", [None, 12.0])
@pytest.mark.parametrize("text", [FRAME.text, HOSTILE])
def test_it_fits(columns: int, rows: int, text: str, pace: float | None) -> None:
    snapshot = replace(SNAPSHOT, stuck=(STUCK,), controller="shared/dlfp-bounded")
    frame = replace(FRAME, snapshot=snapshot, text=text, title=text, notices=[text, text], pace=pace)
    lines = lines_of(frame, columns, rows)
    assert len(lines) <= rows
    assert max(cell_len(line) for line in lines) <= columns


@given(st.text(max_size=300), st.integers(2, 60))
def test_no_text_is_wider_than_its_columns_or_reaches_the_terminal(text: str, columns: int) -> None:
    for line in wrap(printable(text).replace("\n", " "), columns):
        assert cell_len(line) <= columns
        assert width(line) <= columns
        assert all(unicodedata.category(character) not in ("Cc", "Cs") for character in line)
    assert cell_len(cut(printable(text).replace("\n", " "), columns)) <= columns


@pytest.mark.parametrize("columns", [120, 40])
def test_it_says_what_matters(columns: int) -> None:
    frame = replace(FRAME, snapshot=replace(SNAPSHOT, stuck=(STUCK,)), notices=["note: a target is infeasible"])
    picture = picture_of(frame, columns, 30)
    for words in ("50 ms", "target 35", "1.6 threads", "infeasible", "25%", "chat", "stuck", "18.3 tok/s", "5 of 20"):
        assert words in picture


def test_what_matters_most_stays_where_there_is_little_room() -> None:
    frame = replace(FRAME, snapshot=replace(SNAPSHOT, stuck=(STUCK,)), notices=["note: something"])
    picture = picture_of(frame, 40, 9)
    for words in ("stuck", "50 ms", "5 of 20", "something"):
        assert words in picture
    assert "KV" not in picture
    assert "25%, 2 paused" in picture_of(replace(frame, snapshot=replace(SNAPSHOT, paused=2)), 40, 10)


def test_an_engine_that_knows_nothing_yet() -> None:
    empty = replace(SNAPSHOT, target_s=None, decode_only_s=None, budget=None, kv_cells=0)
    picture = picture_of(replace(FRAME, snapshot=empty, text="", gaps_s=[]), 80, 24)
    assert "no limit" in picture
    assert "no two tokens yet" in picture


def test_an_open_end_has_no_bar() -> None:
    assert "5 done, 3 running, 4 waiting" in picture_of(replace(FRAME, documents=None), 80, 24)
    assert "documents" not in picture_of(replace(FRAME, documents=0), 80, 24)


def test_escape_sequences_become_visible() -> None:
    picture = picture_of(replace(FRAME, text="a\x1b[31mb\x9b1mc\u202ed"), 80, 24)
    assert "a␛[31mb�1mcd" in picture


def test_wide_characters_wrap_by_cells() -> None:
    assert [line.plain for line in wrapped_tail("日本語日本語", 7, 3)] == ["日本語", "日本語", ""]
    assert cut("日本語", 4) == "日…"


def test_empty_lines_at_the_end_take_no_room() -> None:
    assert [line.plain for line in wrapped_tail("one\ntwo\n\n\n\n", 10, 2)] == ["one", "two"]


def test_gaps_over_the_limit_are_red() -> None:
    line = sparkline([0.01, 0.01, 0.09], limit=0.035, columns=10)
    assert [span.style for span in line.spans] == ["green", "red"]
    assert line.plain[-1] == "█"


def test_two_rows_have_the_limit_between_them() -> None:
    upper, lower = tall_sparkline([0.0349, 0.052, 0.01], limit=0.035, columns=10)
    assert upper.plain == " ▄ "
    assert lower.plain == "██▃"


def test_a_paced_gap_is_held_against_the_pace() -> None:
    gaps = [1 / 12] * 20
    assert "0 over" in picture_of(replace(FRAME, gaps_s=gaps, pace=12.0), 80, 24)
    assert "20 over" in picture_of(replace(FRAME, gaps_s=gaps), 80, 24)


def test_progress() -> None:
    assert progress_bar(1, 4, 8).plain == "━━──────"
    assert progress_bar(0, 0, 4).plain == "────"
    assert progress_bar(9, 4, 4).plain == "━━━━"


def test_rate_over_a_while() -> None:
    rate = Rate()
    assert rate.per_second(0.0, 0.0) == 0.0
    assert rate.per_second(2.0, 30.0) == 15.0


def test_transcript_shows_the_pieces_of_an_answer() -> None:
    transcript = Transcript()
    record = _record("chat/0", Class.FOREGROUND, ["", "é", "!"])
    for index in range(3):
        transcript.on_token(record, index)
    assert transcript.tail(100).endswith("é!")
    assert transcript.tokens == 3
    assert list(transcript.gaps_s) == pytest.approx([0.5, 0.5])


def test_transcript_shows_what_was_held_back_to_the_end() -> None:
    transcript = Transcript()
    record = _record("chat/0", Class.FOREGROUND, ["x"])
    transcript.on_token(record, 0)
    record.pieces.append("\n")
    transcript.on_finish(record)
    assert transcript.tail(10).endswith("x\n")


def test_transcript_leaves_the_background_out() -> None:
    transcript = Transcript()
    transcript.on_token(_record("notes/0", Class.BACKGROUND, ["x"]), 0)
    assert transcript.tail(100) == ""


def test_lines_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    with LineView(_Engine(), Transcript(), Scene(documents=None, simulated=True)):
        pass
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("simulated, foreground: 0 tokens")
    assert "5 done, 3 running, 4 waiting, 6,000 prompt tokens" in line


class _Engine:
    def snapshot(self) -> Snapshot:
        return SNAPSHOT


def _record(label: str, task_class: Class, pieces: list[str]) -> TaskRecord:
    record = TaskRecord(label, task_class, label, prompt_tokens=1, arrived=0.0, pieces=pieces)
    record.output_token_ids = list(range(len(pieces)))
    record.shown_times = [0.5 * index for index in range(len(pieces))]
    return record
