"""Frames and messages: whatever arrives, and in whatever pieces, is a message, the end, or one clear error."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge import Class, Finish, Sampling, UsageError
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import TaskRecord, TaskSpec
from dlfp_edge.worker import protocol
from dlfp_edge.worker.messages import RECORD, SETTINGS, SPEC, add_part, part_of, shifted
from dlfp_edge.worker.protocol import BrokenOff, ProtocolError, check_hello, encode_frame, hello, read_frame

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.sampled_from("abc"), VALUES)), max_size=5)


def read_all(data: bytes) -> list[Any]:
    stream, messages = io.BytesIO(data), []
    while (message := read_frame(stream)) is not None:
        messages.append(message)
    return messages


@given(MESSAGES)
def test_messages_arrive_as_they_were_sent(messages: list[tuple[str, dict[str, Any]]]) -> None:
    data = b"".join(encode_frame(kind, **fields) for kind, fields in messages)
    assert read_all(data) == [{"kind": kind, **fields} for kind, fields in messages]


@given(MESSAGES.filter(len), st.data())
def test_a_stream_cut_anywhere_says_so_unless_it_was_cut_between_messages(
    messages: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    frames = [encode_frame(kind, **fields) for kind, fields in messages]
    ends = [sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    cut = data.draw(st.integers(0, ends[-1]))
    whole = b"".join(frames)[:cut]
    if cut in ends:
        assert len(read_all(whole)) == ends.index(cut)
    else:
        with pytest.raises(BrokenOff):
            read_all(whole)


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(message["kind"], str) for message in read_all(garbage))


@pytest.mark.parametrize("payload", [b"[1]", b"{}", b'{"kind": 1}', b"\xff", b"[" * 100_000])
def test_a_frame_that_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="no peer"):
        read_all(struct.pack(">I", len(payload)) + payload)


def test_a_frame_that_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LARGEST_FRAME", 100)
    assert read_all(encode_frame("a", text="x" * 60))
    with pytest.raises(UsageError, match="at most 100"):
        encode_frame("a", text="x" * 100)
    with pytest.raises(ProtocolError, match="a message of 101 bytes, at most 100"):
        read_all(struct.pack(">I", 101) + b"x" * 101)


def test_another_version_is_named_beside_this_one() -> None:
    check_hello({"kind": "hello", **hello()}, "worker")
    other = {"kind": "hello", **hello(), "protocol": 99, "release": "9.9"}
    with pytest.raises(
        ProtocolError, match=r"worker speaks protocol 99 \(dlfp-edge 9\.9\).* this side protocol .*install"
    ):
        check_hello(other, "worker")


@given(
    st.builds(
        TaskSpec,
        prompt=st.lists(st.integers(0, 1000)).map(tuple),
        task_class=st.sampled_from(Class),
        max_tokens=st.integers(1, 100),
        sampling=st.builds(Sampling, temperature=st.floats(0, 2), seed=st.none() | st.integers()),
        pace=st.none() | st.floats(0.1, 100),
        deadline_s=st.none() | st.floats(0, 100),
        label=st.text(),
    )
)
def test_a_request_arrives_as_it_was_sent(spec: TaskSpec) -> None:
    assert SPEC.decode(json.loads(json.dumps(SPEC.encode(spec)))) == spec


def test_settings_arrive_as_they_were_sent() -> None:
    settings = Settings(placement=Placement.SHARED, parameters={"c_min": 16.0}, target_itl_s=0.08, context=4096)
    assert SETTINGS.decode(json.loads(json.dumps(SETTINGS.encode(settings)))) == settings


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (TaskSpec((1, 2), max_tokens="5"), "max_tokens is '5'"),  # type: ignore[arg-type]
        (TaskSpec((1, 2), max_tokens=1.5), "max_tokens is 1.5"),  # type: ignore[arg-type]
        (TaskSpec((1, "2")), "prompt.1 is .2."),  # type: ignore[arg-type]
        (TaskSpec((1, 2), sampling="hot"), "sampling is 'hot'"),  # type: ignore[arg-type]
        (TaskSpec("text"), "prompt is 'text'"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_a_wrong_type_is_named_and_not_converted(wrong: TaskSpec, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SPEC.decode(json.loads(json.dumps(SPEC.encode(wrong))))


@given(st.lists(st.integers(0, 300), max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_a_record_sent_in_parts_comes_to_the_whole(tokens: list[int], cuts: list[int]) -> None:
    times = [1.0 + token for token in tokens]
    whole = TaskRecord("worker's", Class.FOREGROUND, "x", 3, 1.0, started=2.0)
    whole.output_token_ids, whole.token_times, whole.shown_times = tokens, times, times
    whole.contended = [False] * len(tokens)
    here = TaskRecord("mine", Class.FOREGROUND, "x", 3, 1.0)
    start = 0
    for end in [*sorted(min(cut, len(tokens)) for cut in cuts), None]:
        if end is None:
            whole.finish, whole.finished = Finish.LENGTH, 9.0
        part = RECORD.decode(json.loads(json.dumps(RECORD.encode(part_of(whole, start, end)))))
        add_part(here, part)
        start = end or 0
    whole.request_id = "mine"
    assert here == whole


def test_times_move_to_the_other_clock() -> None:
    record = TaskRecord("a", Class.FOREGROUND, "", 1, 1.0, token_times=[2.0], shown_times=[3.0], finished=4.0)
    record.due_times.append(2.5)
    moved = shifted(record, 10.0)
    assert (moved.arrived, moved.started, moved.token_times, moved.shown_times, moved.due_times, moved.finished) == (
        11.0, None, [12.0], [13.0], [12.5], 14.0,
    )  # fmt: skip
