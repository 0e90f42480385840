"""Workload files: what they may say, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.errors import UsageError
from dlfp_edge.experiment.workload import load_workload
from dlfp_edge.task import Class

GOOD = """
name = "mine"
description = "Mine."
duration_s = 10

[[stream]]
name = "chat"
class = "foreground"
clients = 1
prompt_tokens = 64
shared_prefix_tokens = 16
max_tokens = 8
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_a_good_file_loads(file: Path) -> None:
    file.write_text(GOOD)
    workload = load_workload(str(file))
    stream = workload.streams[0]
    assert (workload.name, workload.duration_s, stream.task_class) == ("mine", 10.0, Class.FOREGROUND)
    assert (stream.prompt_tokens, stream.runs_past_end) == (64, True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("clients = 1", "clinets = 1", "unknown key 'clinets': did you mean 'clients'?"),
        ("clients = 1", "", "either 'clients'"),
        ("clients = 1", "clients = 1\nrate = 2.0", "either 'clients'"),
        ("clients = 1", "rate = -1.0\nrequests = 3", "'rate': input should be greater than 0, not -1.0"),
        ("clients = 1", "rate = 1.0", "'rate' needs 'requests'"),
        ("clients = 1", "clients = 'one'", "'clients': input should be a valid integer, not 'one'"),
        ("clients = 1", "clients = true", "'clients'"),
        ("clients = 1", "rate = 1.0\nrequests = 3\nthink_s = 1.0", "'think_s' goes with 'clients'"),
        ("max_tokens = 8", "", "missing key 'max_tokens'"),
        ("max_tokens = 8", "max_token = 8", "did you mean 'max_tokens'?"),
        ("max_tokens = 8", "max_tokens = 0", "'max_tokens'"),
        ("max_tokens = 8", "max_tokens = 8\nstop = ['']", "stop string ''"),
        ("max_tokens = 8", "max_tokens = 8\nstop = 'x'", "'stop'"),
        ("max_tokens = 8", "max_tokens = 8\npace = inf", "'pace'"),
        ('"foreground"', '"forground"', "'foreground' or 'background', not 'forground'"),
        ("prompt_tokens = 64", "", "either 'prompt_tokens'"),
        ("shared_prefix_tokens = 16", "shared_prefix_tokens = 64", "less than 'prompt_tokens'"),
        ("shared_prefix_tokens = 16", "instruction = 'x'", "'instruction' goes with 'texts'"),
        ("duration_s = 10", "", "never ends"),
        ("duration_s = 10", "duration_s = -1", "'duration_s'"),
        ("duration_s = 10", "duratoin_s = 10", "did you mean 'duration_s'?"),
        ("[[stream]]", "[stream]", "[[stream]]"),
        ('name = "mine"', "", "missing key 'name'"),
        ('name = "mine"', "name = ", "not valid TOML"),
        ('name = "mine"', 'name = "mine"\n"two\\nlines" = 1', "unknown key 'two\\nlines'"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_the_key_and_the_mend(file: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError) as raised:
        load_workload(str(file))
    message = str(raised.value)
    assert message.startswith(f"{file}: ")
    assert says in message
    assert "\n" not in message


def test_two_streams_with_one_name_are_told_apart(file: Path) -> None:
    file.write_text(GOOD + GOOD[GOOD.index("[[stream]]") :])
    with pytest.raises(UsageError, match="two streams are named 'chat'"):
        load_workload(str(file))


def test_texts_are_read_from_beside_the_file(file: Path) -> None:
    file.write_text(GOOD.replace("prompt_tokens = 64\nshared_prefix_tokens = 16", 'texts = ["a.txt"]'))
    with pytest.raises(UsageError, match=r"stream 'chat': a\.txt: cannot read"):
        load_workload(str(file))
    (file.parent / "a.txt").write_text("Hello")
    workload = load_workload(str(file))
    assert workload.text(workload.streams[0], "a.txt") == "Hello"
    assert not workload.streams[0].runs_past_end
    assert workload.scaled(2.0).text(workload.streams[0], "a.txt") == "Hello"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00"])
def test_a_file_that_is_no_text(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.toml"):
        load_workload(str(file))


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_workload(str(file))


def test_an_unknown_name_gives_the_nearest_and_the_list() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'chat-ingest'\?.*single-session"):
        load_workload("chat-ingst")


@given(st.floats(min_value=1e-6, max_value=100.0))
def test_scaling_keeps_a_workload_valid(factor: float) -> None:
    workload = load_workload("ingest-summary").scaled(factor)
    again = type(workload).model_validate(workload.as_json())
    assert again.streams == workload.streams


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_must_be_positive(factor: float) -> None:
    with pytest.raises(UsageError, match="scale"):
        load_workload("chat-ingest").scaled(factor)


def test_pace_replaces_that_of_foreground_streams_only() -> None:
    workload = load_workload("chat-ingest").paced(12.0)
    assert [stream.pace for stream in workload.streams] == [12.0, None]
