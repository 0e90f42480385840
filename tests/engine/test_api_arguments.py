"""What the Python API says of an argument that it cannot work with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlfp_edge import UsageError, open_engine

WRONG: list[tuple[str, Any, str]] = [
    ("model", 5, "str or Path or None"),
    ("model", b"x.gguf", "str or Path or None"),
    ("model", "", "a file"),
    ("model", " ", "a file"),
    ("runtime", 5, "str"),
    ("runtime", None, "str"),
    ("setting", 5, "str"),
    ("setting", ["lanes"], "str"),
    ("threads", "a", "int or None"),
    ("threads", 2.0, "int or None"),
    ("threads", True, "int or None"),
    ("threads", 0, "a whole number from 1"),
    ("threads", -1, "a whole number from 1"),
    ("exact", "yes", "bool"),
    ("context", "4096", "int or None"),
    ("context", 0, "a whole number from 1"),
    ("slowdown", "2", "float or None"),
    ("slowdown", float("nan"), "a number from 1"),
    ("target_itl_s", "80ms", "float or None"),
    ("target_itl_s", -1, "a number from"),
    ("runtime_options", ["mode"], "Mapping[str, str] or None"),
    ("runtime_options", {"mode": 5}, "Mapping[str, str] or None"),
    ("isolated", 5, "bool or str"),
    ("isolated", None, "bool or str"),
    ("isolated", "", "unix:PATH"),
]


@pytest.mark.parametrize(("name", "value", "fits"), WRONG)
def test_open_engine_names_the_wrong_argument_and_what_fits(name: str, value: object, fits: str) -> None:
    arguments: dict[str, Any] = {"runtime": "simulated", name: value}
    with pytest.raises(UsageError) as caught:
        open_engine(**arguments)
    said = str(caught.value)
    assert all(word in said for word in (name, repr(value), fits))
    assert "\n" not in said


def test_a_large_wrong_argument_is_shown_in_part() -> None:
    wrong: Any = {"mode": list(range(10_000))}
    with pytest.raises(UsageError) as caught:
        open_engine(runtime="simulated", runtime_options=wrong)
    assert len(str(caught.value)) < 300


def test_right_arguments_are_taken() -> None:
    with open_engine(
        None, runtime="simulated", setting="shared/dlfp", threads=1, slowdown=2, runtime_options={}
    ) as edge:
        assert edge.submit("a", max_tokens=1).wait(timeout_s=60).finish is not None


@pytest.mark.parametrize("sampling", ["", 0, {}, 5])
def test_what_is_no_sampling_is_refused_though_it_is_empty(sampling: Any) -> None:
    with open_engine(runtime="simulated") as edge, pytest.raises(UsageError, match="sampling is"):
        edge.submit("a", sampling=sampling)


@pytest.mark.parametrize("timeout_s", ["1", float("nan"), float("inf"), True])
def test_a_wait_that_cannot_be_timed_is_refused(timeout_s: Any) -> None:
    with open_engine(runtime="simulated") as edge, pytest.raises(UsageError, match="timeout_s is"):
        edge.submit("a", max_tokens=1).wait(timeout_s)


def test_token_ids_may_be_numpy_integers() -> None:
    ids = np.arange(1, 9, dtype=np.int64)
    with open_engine(runtime="simulated") as edge:
        plain, array, listed = (edge.submit(given, max_tokens=3) for given in (ids.tolist(), ids, list(ids)))
        assert plain.spec == array.spec == listed.spec
        assert plain.wait(60).output_token_ids == array.wait(60).output_token_ids
        for wrong in (np.array(5), np.array([[1]]), np.array([0.5]), np.array([True]), np.array(["a"])):
            with pytest.raises(UsageError, match="neither text nor a sequence of token ids"):
                edge.submit(wrong)


def test_a_controller_that_there_is_not_is_said_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match="unknown controller 'x'"):
        open_engine("no-such-model.gguf", setting="lanes/x")
