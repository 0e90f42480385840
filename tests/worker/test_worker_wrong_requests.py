"""A wrong request is refused in the same words, whichever process the engine is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlfp_edge import Edge, Finish, Sampling, TaskSpec, open_engine
from dlfp_edge.task import Class

from .conftest import ENDLESS

WRONG: list[dict[str, Any]] = [
    {"prompt": ""},
    {"prompt": "\ud800"},
    {"prompt": 5},
    {"prompt": b"bytes"},
    {"prompt": []},
    {"prompt": [1, True]},
    {"prompt": [1, "2"]},
    {"prompt": [1, 2.0]},
    {"prompt": [-1]},
    {"prompt": [1000]},
    {"prompt": [1, 2**40]},
    {"prompt": [1] * 3_000_000},
    *({"max_tokens": value} for value in (True, 1.5, 0, -3, float("nan"), "5", None, 2**40)),
    *({"temperature": value} for value in (float("nan"), -1, float("inf"), "hot", None, True)),
    *({"seed": value} for value in (1.5, True, "7")),
    *({"stop": value} for value in ("\ud800", "", [""], 5, ["a", 5], b"a", ["x"] * 17, "x" * 257, {"a": 1})),
    *({"pace": value} for value in (float("nan"), 0, -1, True, "fast", float("inf"))),
    *({"deadline_s": value} for value in (float("nan"), float("inf"), True, "soon", -1e12)),
    *({"task_class": value} for value in ("chat", 5, None)),
    *({"sampling": value} for value in ("hot", 5)),
    {"json_schema": {"type": "strange"}},
    {"json_schema": {"const": "a long answer"}, "max_tokens": 3},
]


@pytest.fixture(scope="module")
def fronts() -> Iterator[tuple[Edge, Edge]]:
    """The same engine in this process and in one of its own."""
    with (
        open_engine(runtime="simulated") as here,
        open_engine(runtime="simulated", runtime_options={"clock": "real"}, isolated=True) as there,
    ):
        yield here, there


def refusal(action: Callable[[], object]) -> tuple[type, str] | None:
    """What comes of it, in words; None where nothing is wrong."""
    try:
        action()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40].encode("ascii", "replace").decode())
def test_what_is_wrong_is_said_in_the_same_words(fronts: tuple[Edge, Edge], wrong: dict[str, Any]) -> None:
    asked = {"prompt": [1, 2], **wrong}
    here, there = (refusal(lambda edge=edge: edge.submit(**asked)) for edge in fronts)  # type: ignore[misc]
    assert here is not None
    assert here == there
    kind, words = here
    assert kind.__name__ == "UsageError"
    assert "\n" not in words
    assert "pydantic" not in words
    assert "should be" not in words


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(), max_size=3),  # with lone surrogates
    st.binary(max_size=2),
    st.lists(st.integers(-5, 2000), max_size=3),
    st.tuples(st.text(st.characters(), max_size=2)),
    st.tuples(st.one_of(st.integers(-5, 2000), st.booleans(), st.floats())),
    st.sampled_from(Class),
)
FIELDS = st.sampled_from(["prompt", "task_class", "max_tokens", "pace", "deadline_s", "embed", "label", "stop"])


@given(name=FIELDS, value=ODD, arrived=st.one_of(st.none(), ODD))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_take_the_same_tasks(fronts: tuple[Edge, Edge], name: str, value: object, arrived: object) -> None:
    spec: TaskSpec = replace(TaskSpec((1, 2), max_tokens=3, sampling=ENDLESS), **{name: value})  # type: ignore[arg-type]
    ends, refused = [], []
    for edge in fronts:

        def submit(edge: Edge = edge) -> None:
            task = edge.engine.submit(spec, arrived=arrived)  # type: ignore[arg-type]
            task.cancel()
            ends.append(task.wait(60).finish)

        refused.append(refusal(submit))
    assert refused[0] == refused[1]
    assert not ends or None not in ends


@pytest.mark.parametrize("label", ["\udcff.txt", "x" * (17 << 20)])
def test_a_label_is_whatever_its_owner_calls_it(fronts: tuple[Edge, Edge], label: str) -> None:
    spec = TaskSpec((1, 2), max_tokens=3, sampling=ENDLESS, label=label)
    for edge in fronts:
        edge.engine.check(spec)
        record = edge.engine.submit(spec).wait(60)
        assert (record.finish, record.label) == (Finish.LENGTH, label)


def test_ignore_eos_is_yes_or_no() -> None:
    assert refusal(lambda: Sampling(ignore_eos="no")) is not None  # type: ignore[arg-type]
