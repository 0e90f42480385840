"""The settings people can name, `placement/name`: which law each runs, what else it switches off, and where it is from.

A row compares with the next ones because all share one engine: what a name does not change stays as in the law it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dlfp_edge.settings import Placement, Settings

_ONE_CLASS = {"single_class": True, "interrupts": False}
_OURS = "ours"


@dataclass(frozen=True, slots=True)
class Control:
    """One named setting.

    `law` is the controller that it runs, `changes` are the fields of `Settings` that it sets, whatever they were.
    `what` is a line for people, `source` who published it and with which constants.
    """

    placement: Placement
    name: str
    law: str
    what: str
    source: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """As people write it."""
        return f"{self.placement.value}/{self.name}"


def _lanes(name: str, law: str, what: str, source: str, **changes: bool) -> Control:
    return Control(Placement.LANES, name, law, what, source, changes)


def _shared(name: str, law: str, what: str, source: str, **changes: bool) -> Control:
    return Control(Placement.SHARED, name, law, what, source, changes)


CONTROLS: tuple[Control, ...] = (
    _lanes("dlfp", "dlfp", "the controller sets how many threads the background has", _OURS),
    _lanes("static", "static", "the background has every thread, at the lowest priority, always", _OURS),
    _lanes(
        "no-priority",
        "static",
        "the same with the background's threads at normal priority: two servers side by side",
        "ours, an ablation of lanes/static",
        priority=False,
    ),
    _lanes(
        "affinity",
        "dlfp",
        "lanes/dlfp on threads and affinity alone, as on a system that refuses a lower priority",
        "ours, an ablation of lanes/dlfp",
        priority=False,
    ),
    _lanes(
        "no-prefix-cache",
        "dlfp",
        "lanes/dlfp in which every prompt is computed from its first token",
        "ours, an ablation of lanes/dlfp",
        prefix_cache=False,
    ),
    _shared("slack", "slack", "as many tokens join a foreground step as are predicted to end in time", _OURS),
    _shared("dlfp", "dlfp", "the controller sets how many tokens join a foreground step", "the paper, repaired"),
    _shared(
        "dlfp-bounded",
        "dlfp-bounded",
        "the same, an update changing the cap by at most a quarter",
        "the paper's completion-aware revision; the quarter is ours",
    ),
    _shared(
        "dlfp-cadence",
        "dlfp-cadence",
        "the paper's law on the interval between scheduler calls",
        "the paper's prototype: T = 80 ms, 3072 initial, 1024 to 6144",
    ),
    _shared(
        "fixed:N",
        "fixed:N",
        "at most N tokens join a foreground step",
        "chunked prefill: Sarathi-Serve (OSDI 2024)",
    ),
    _shared(
        "stall-cap",
        "stall-cap",
        "as many tokens as the best rate seen so far takes 500 ms for",
        "oMLX, pull request 2633 (2026): 500 ms, 512 initial, 256 to 2048, multiples of 64",
    ),
    _shared(
        "tick",
        "tick",
        "a chunk halved until the last rate seen fits it into 500 ms",
        "gmlx 0.1.2, prefill ticks (2026): 500 ms, from 2048 down to 256",
    ),
    _shared(
        "pressure",
        "pressure",
        "a small step where two prompts wait and somebody decodes, else a large one",
        "P-PAS (arXiv 2608.15171, 2026): 1280 and 16384",
    ),
    _shared(
        "predictor",
        "predictor",
        "as many tokens as a latency model, fitted offline on this device, predicts to fit the target",
        "LPRS (arXiv 2606.09061, 2026), with the formula of ROCm/ATOM, pull request 2007 (2026), fitted here",
    ),
    _shared("unlimited", "unlimited", "classes and interruption without a cap", "ours, an ablation of shared/dlfp"),
    _shared(
        "classes-only",
        "unlimited",
        "the foreground first, without a cap or interruption",
        "priority scheduling, as in vLLM's --scheduling-policy priority (2024)",
        interrupts=False,
    ),
    _shared(
        "interruption-only",
        "unlimited",
        "one line for all, without a cap; a foreground arrival interrupts background work",
        "ConServe's preemption within a step (arXiv 2410.01228, 2024), without its priorities",
        single_class=True,
    ),
    _shared(
        "cap-only",
        "dlfp",
        "one line for all, without interruption, under the cap of shared/dlfp",
        "what the paper's scheduler did: every decode is protected from every prompt",
        **_ONE_CLASS,
    ),
    _shared(
        "fcfs",
        "unlimited",
        "one line for all, without a cap or interruption: what stock servers do",
        "iteration-level scheduling: Orca (OSDI 2022)",
        **_ONE_CLASS,
    ),
    _shared(
        "no-prefix-cache",
        "slack",
        "shared/slack in which every prompt is computed from its first token",
        "ours, an ablation of shared/slack",
        prefix_cache=False,
    ),
)


def controller_names(placement: Placement) -> list[str]:
    """The names that go with a placement, as people write them."""
    return [control.name for control in CONTROLS if control.placement is placement]


DEFAULTS = {Placement.LANES: "dlfp", Placement.SHARED: "slack", Placement.AUTO: "dlfp"}
"""What `auto` stands for; before the placement is known, the lanes'."""


def find_control(placement: Placement, name: str) -> Control | None:
    """The control of a placement, for `auto` the lanes' before the one for shared steps; None where there is none."""
    if name == "auto":
        name = DEFAULTS[placement]
    name = "fixed:N" if name.startswith("fixed:") else name
    fitting = (control for control in CONTROLS if placement in (Placement.AUTO, control.placement))
    return next((control for control in fitting if control.name == name), None)


def with_control(settings: Settings) -> Settings:
    """The settings with the fields that the name of their controller sets; as they are where it is unknown."""
    control = find_control(settings.placement, settings.controller)
    return settings if control is None else replace(settings, **control.changes)
