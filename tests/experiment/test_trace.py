"""Traces: what is written is what is replayed, and a bad row is named with its mend."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.prompts import arrival_times
from dlfp_edge.experiment.session import run_workload
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.trace import TraceRequest, parse_trace
from dlfp_edge.experiment.workload import Stream, Workload, load_workload
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class

from .simulated import engine

gaps = st.floats(min_value=0.0, max_value=1e4, allow_subnormal=False)
tokens = st.integers(1, 100_000)
tables = st.lists(st.tuples(gaps, tokens, tokens, st.sampled_from(list(Class))), min_size=1, max_size=30)

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9805900,396,9\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.2+00:00,374,44\n2024-05-10 00:00:04.5+00:00,396,9"
)
BURST_GPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,374,44,418,Conversation log\n9.3,GPT-4,396,9,405,API log\n"
)
MOONCAKE = (
    '{"timestamp": 27000, "input_length": 374, "output_length": 44, "hash_ids": [46, 47]}\n'
    '{"timestamp": 31300, "input_length": 396, "output_length": 9, "hash_ids": []}\n'
)
OURS = "arrival_s,prompt_tokens,max_tokens\n"


def parse(text: str, name: str = "t.csv", task_class: Class = Class.FOREGROUND) -> tuple[TraceRequest, ...]:
    return parse_trace(text, name, task_class, shown=name)


def as_csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False))


def as_jsonl(frame: pd.DataFrame) -> str:
    return "\n".join(json.dumps(row) for row in frame.to_dict("records"))


@pytest.mark.parametrize(("write", "name"), [(as_csv, "t.csv"), (as_jsonl, "t.jsonl")])
@given(tables)
def test_what_is_written_is_read(
    write: Callable[[pd.DataFrame], str], name: str, table: list[tuple[float, int, int, Class]]
) -> None:
    frame = pd.DataFrame(table, columns=["gap", "prompt_tokens", "max_tokens", "kind"])
    frame["arrival_s"] = frame["gap"].cumsum()
    frame["class"] = [kind.value for *_, kind in table]
    text = write(frame.drop(columns=["gap", "kind"]))
    for task_class in {kind for *_, kind in table}:
        ours = frame[frame["class"] == task_class.value]
        rows = parse(text, name, task_class)
        assert [row[1:] for row in rows] == list(zip(ours["prompt_tokens"], ours["max_tokens"], strict=True))
        assert [row.arrival_s for row in rows] == pytest.approx(
            (ours["arrival_s"] - frame["arrival_s"].iloc[0]).tolist(), abs=1e-6
        )


@pytest.mark.parametrize(
    ("text", "name"),
    [(AZURE, "a.csv"), (AZURE_2024, "a.csv"), (BURST_GPT, "b.csv"), (MOONCAKE, "m.jsonl")],
    ids=["Azure 2023", "Azure 2024", "BurstGPT", "Mooncake"],
)
def test_published_traces_are_read_as_they_are(text: str, name: str) -> None:
    first, second = parse(text, name)
    assert first == (0.0, 374, 44)
    assert (second.arrival_s, *second[1:]) == pytest.approx((4.3, 396, 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no row"),
        (OURS, "holds no row"),
        ("arrival_s,prompt_tokens\n0,1\n", "missing column 'max_tokens'"),
        ("x,y\n0,1\n", "missing column 'arrival_s'"),
        (OURS + "0,1,1\n1,0,1\n", "row 2: 'prompt_tokens' '0' is no whole number of tokens from 1"),
        (OURS + "0,1,1\n1,1,0\n", "row 2: 'max_tokens' '0'"),
        (OURS + "0,-5,1\n", "row 1: 'prompt_tokens' '-5'"),
        (OURS + "0,1.5,1\n", "row 1: 'prompt_tokens' '1.5'"),
        (OURS + "0,nan,1\n", "row 1: 'prompt_tokens' 'nan'"),
        (OURS + "0,many,1\n", "row 1: 'prompt_tokens' 'many'"),
        (OURS + "0,1,99999999999\n", "row 1: 'max_tokens' '99999999999'"),
        (OURS + "0,1\n", "row 1: 'max_tokens' ''"),
        (OURS + "-1,1,1\n", "row 1: 'arrival_s' '-1' is no time of at least 0"),
        (OURS + "nan,1,1\n", "row 1: 'arrival_s' 'nan'"),
        (OURS + "inf,1,1\n", "row 1: 'arrival_s' 'inf'"),
        (OURS + "0,1,1\n2,1,1\n1.5,1,1\n", "row 3: 'arrival_s' '1.5' is earlier than the row before: sort the rows"),
        (OURS + "0,1,1,1\n", "more cells than the header"),
        (OURS + "0,1,1\n0,1,1,1\n", "Expected 3 fields in line 3, saw 4"),
        (OURS + '0,"1,1\n', "not valid CSV"),
        (AZURE.replace("2023-11-16 18:15:50", "later"), "row 2: 'TIMESTAMP' 'later.9805900' is no date and time"),
        (BURST_GPT.replace(",44,", ",0,"), "row 1: 'Response tokens' '0'"),
        (
            OURS.replace("max_tokens", "max_tokens,class") + "0,1,1,watched\n",
            "'class' 'watched' is not 'foreground' or",
        ),
        (OURS.replace("max_tokens", "max_tokens,class") + "0,1,1,background\n", "no row is of class 'foreground'"),
    ],
)
def test_a_bad_csv_is_one_line_with_the_row_and_the_mend(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    message = str(raised.value)
    assert message.startswith("t.csv: ")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no row"),
        ("{}", "missing column"),
        ('{"timestamp": 1,', "row 1 is not valid JSON"),
        (MOONCAKE + "\n[1, 2]", "row 3 is no JSON object"),
        (MOONCAKE + '{"timestamp": 40000, "input_length": 3}', "row 3: 'output_length' ''"),
        (MOONCAKE.replace("374", "null"), "row 1: 'input_length' 'None'"),
        (MOONCAKE.replace("374", "[374]"), "row 1: 'input_length' '[374]'"),
        (MOONCAKE.replace("374", "true"), "row 1: 'input_length' 'True'"),
        (MOONCAKE.replace("27000", "NaN"), "row 1: 'timestamp' 'nan'"),
        (MOONCAKE.replace("27000", "1e999"), "row 1: 'timestamp' 'inf'"),
        ("[" * 100_000, "row 1 is not valid JSON"),
    ],
)
def test_a_bad_jsonl_is_one_line_with_the_row_and_the_mend(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "t.jsonl")
    message = str(raised.value)
    assert message.startswith("t.jsonl: ")
    assert says in message
    assert "\n" not in message


@given(
    st.sampled_from([("", "t.csv"), (OURS, "t.csv"), (AZURE, "t.csv"), ("", "t.jsonl"), (MOONCAKE, "t.jsonl")]),
    st.text() | st.text(alphabet='0123456789.,-+eE"\n {}:T'),
)
def test_whatever_follows_there_are_rows_or_one_error(begun: tuple[str, str], text: str) -> None:
    with contextlib.suppress(UsageError):
        rows = parse(begun[0] + text, begun[1])
        assert rows[0].arrival_s == 0.0
        assert all(row.prompt_tokens >= 1 and row.max_tokens >= 1 for row in rows)


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\.csv or a \.jsonl"):
        parse(OURS, "t.parquet")


FILE = """
name = "mine"
description = "Mine."

[[stream]]
name = "readers"
class = "foreground"
trace = "t.csv"
"""
ROWS = OURS.replace("max_tokens", "max_tokens,class") + (
    "10,40,4,background\n10.5,30,6,foreground\n12.5,300,2,foreground\n14.5,20,9,foreground\n"
)


def workload(folder: Path, more: str = "", rows: str = ROWS) -> Workload:
    (folder / "t.csv").write_text(rows)
    (folder / "mine.toml").write_text(FILE + more)
    return load_workload(str(folder / "mine.toml"))


def readers(folder: Path, more: str = "", rows: str = ROWS) -> Stream:
    return workload(folder, more, rows).streams[0]


def test_a_stream_takes_the_rows_of_its_class_at_their_times(tmp_path: Path) -> None:
    stream = readers(tmp_path)
    assert arrival_times(stream, seed=0) == arrival_times(stream, seed=1) == [0.5, 2.5, 4.5]
    assert [(stream.prompt_length(index), stream.answer_length(index)) for index in range(3)] == [
        (30, 6),
        (300, 2),
        (20, 9),
    ]
    assert (stream.requests, stream.longest, stream.longest_prompt, stream.runs_past_end) == (3, 1, 300, True)


def test_a_trace_can_be_replayed_faster_and_in_part(tmp_path: Path) -> None:
    assert arrival_times(readers(tmp_path, "speed = 2.0"), seed=0) == [0.25, 1.25, 2.25]
    first = readers(tmp_path, "requests = 1")
    assert (arrival_times(first, seed=0), first.longest_prompt) == ([0.5], 30)


def test_scale_multiplies_the_tokens_of_each_row(tmp_path: Path) -> None:
    scaled = workload(tmp_path).scaled(0.1).streams[0]
    assert [row[1:] for row in scaled.rows] == [(3, 1), (30, 1), (2, 1)]
    assert arrival_times(scaled, seed=0) == [0.5, 2.5, 4.5]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("prompt_tokens = 4", "'prompt_tokens' does not go with 'trace'"),
        ("max_tokens = 4", "'max_tokens' does not go with 'trace'"),
        ("think_s = 1.0", "'think_s' does not go with 'trace'"),
        ("shared_prefix_tokens = 1", "'shared_prefix_tokens' does not go with 'trace'"),
        ("texts = ['a.txt']", "'texts' does not go with 'trace'"),
        ("clients = 1", "either 'clients'"),
        ("rate = 1.0", "either 'clients'"),
        ("turns = 2", "'turns' goes with 'clients'"),
        ("speed = 0", "'speed': input should be greater than 0"),
        ("speed = -1", "'speed'"),
        ("speed = nan", "'speed'"),
        ("requests = 4", "'requests' is 4, but the trace has 3"),
    ],
)
def test_a_trace_stands_for_what_it_says(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        workload(tmp_path, more)
    assert says in str(raised.value)
    assert "stream 'readers': " in str(raised.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read_is_named_with_its_stream(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml: stream 'readers': t\.csv: "):
        load_workload(str(tmp_path / "mine.toml"))


def test_a_replay_asks_for_each_row_exactly(tmp_path: Path) -> None:
    asked = workload(tmp_path)
    with engine() as made:
        outcome = run_workload(made, asked)
    records = sorted(outcome.records, key=lambda record: record.arrived)
    start = records[0].arrived - 0.5
    assert [record.arrived - start for record in records] == pytest.approx([0.5, 2.5, 4.5])
    assert [record.prompt_tokens for record in records] == [30, 300, 20]
    assert [len(record.token_times) for record in records] == [6, 2, 9]


@pytest.mark.parametrize(("row", "says"), [("30000,2", "30000 tokens and 2"), ("300,50000", "300 tokens and 50000")])
def test_a_row_that_does_not_fit_is_named_before_any_is_sent(tmp_path: Path, row: str, says: str) -> None:
    asked = workload(tmp_path, rows=ROWS.replace("300,2", row))
    with engine() as made, pytest.raises(UsageError, match=rf"stream 'readers': .*{says} to generate do not fit"):
        run_workload(made, asked)
    assert (sized(Settings(), asked).context or 0) >= 3 * sum(map(int, row.split(",")))
