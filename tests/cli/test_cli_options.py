"""How values are read."""

from __future__ import annotations

import pytest

from dlfp_edge.cli.options import build_settings, parse_duration, parse_pace
from dlfp_edge.cli.output import cell, to_json
from dlfp_edge.errors import UsageError
from dlfp_edge.settings import Placement, Settings


@pytest.mark.parametrize(
    ("text", "seconds"), [("80ms", 0.08), ("0.08s", 0.08), (".5s", 0.5), ("90 s", 90), ("2m", 120), ("1H", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "--x") == pytest.approx(seconds)


def test_bare_numbers_need_a_unit_unless_one_is_given() -> None:
    assert parse_duration("10", "--x", bare_unit="s") == 10
    with pytest.raises(UsageError, match="has no unit: write"):
        parse_duration("10", "--x")


@pytest.mark.parametrize("text", ["", "ms", "-1s", "1e9s", "inf", "nan", "5 parsecs"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text, "--x", bare_unit="s")


def test_pace() -> None:
    assert parse_pace("off") is None
    assert parse_pace("12") == 12
    with pytest.raises(UsageError):
        parse_pace("inf")


def test_json_is_strict() -> None:
    assert (
        to_json({"a": float("nan"), "b": [float("inf"), 1.5]})
        == '{\n  "a": null,\n  "b": [\n    null,\n    1.5\n  ]\n}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (0.12345, "0.123"), (123.4, "123"), (4321.0, "4,321"), (True, "yes")],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def settings(setting: str, *parameters: str, controller: str | None = None) -> Settings:
    return build_settings(setting, None, controller, "edge", parameters, None, None, None)


def test_a_setting_by_name_is_all_that_it_stands_for() -> None:
    fcfs = settings("shared/fcfs")
    assert (fcfs.placement, fcfs.controller) == (Placement.SHARED, "fcfs")
    assert (fcfs.single_class, fcfs.interrupts, fcfs.priority, fcfs.prefix_cache) == (True, False, True, True)
    assert settings("auto", controller="fcfs") == fcfs, "which only shared steps have"
    assert not settings("lanes/no-priority").priority
    assert not settings("auto", controller="no-prefix-cache").prefix_cache
    assert settings("auto", controller="no-prefix-cache").placement is Placement.AUTO


def test_parameters_stand_after_a_name_or_by_themselves() -> None:
    assert settings("shared/stall-cap:T=0.08:c_min=16").parameters == {"T": 0.08, "c_min": 16}
    assert settings("shared/stall-cap:T=0.08", "T=0.1").parameters == {"T": 0.1}
    assert settings("shared/fixed:32").parameters == {}
    assert settings("auto", controller="tick:T=1").controller == "tick"
