"""The settings of an engine, and how people spell them: `placement/controller`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dlfp_edge.errors import UsageError, hint
from dlfp_edge.given import YEAR_S, check_number


class Placement(str, Enum):
    """Where background work runs: in a lane of its own, or in the foreground's steps."""

    AUTO = "auto"
    LANES = "lanes"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine schedules.

    `controller` is a name of `dlfp_edge.controls` ("auto" picks the placement's default), `parameters` its named
    parameters where they differ from the preset. `target_itl_s` is an absolute target for a foreground gap; without it
    the target is `slowdown` x the decode-only time (None: 1.75 in lanes, 3 in shared steps). `context` counts the KV
    cells of all lanes together and `foreground_share` the part of them the foreground lane gets (None: a third);
    `foreground_sequences` and `background_sequences` how many tasks of a class can run at
    once; `queue_limit` how many more of each class may wait.

    The others take parts of the policy away, to see what each is worth; a `controller` may set them (see
    `dlfp_edge.controls`). With `single_class` all tasks stand in one line and every decode is protected. Without
    `interrupts` no step is stopped for an arrival, a cancel, a measurement or its bound; without `priority` the
    background's lane has the priority of the foreground's; without `prefix_cache` every prompt is computed from its
    first token, and nothing is kept for later ones.
    """

    placement: Placement = Placement.AUTO
    controller: str = "auto"
    preset: str = "edge"
    parameters: Mapping[str, float] = field(default_factory=dict)
    target_itl_s: float | None = None
    slowdown: float | None = None
    context: int | None = None
    foreground_share: float | None = None
    foreground_sequences: int = 4
    background_sequences: int = 8
    queue_limit: int = 1024
    single_class: bool = False
    interrupts: bool = True
    priority: bool = True
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        """Raises UsageError for a number that makes no sense."""
        if self.target_itl_s is not None:
            check_number("target_itl_s", self.target_itl_s, 1e-6, YEAR_S)
        if self.slowdown is not None:
            check_number("slowdown", self.slowdown, 1, 1e6)
        if self.target_itl_s is not None and self.slowdown is not None:
            raise UsageError("a target ITL and a slowdown are two ways to say one target: give only one")
        if self.context is not None:
            check_number("context", self.context, 1, 2**40, whole=True)
        if self.foreground_share is not None:
            check_number("foreground_share", self.foreground_share, 0.0001, 0.9999)
        for name in ("foreground_sequences", "background_sequences", "queue_limit"):
            check_number(name, getattr(self, name), 1, 2**31, whole=True)


def parse_controller(text: str) -> tuple[str, dict[str, float]]:
    """Split a controller as people write it, such as `stall-cap:T=0.08:c_min=16`, into its name and its parameters.

    Raises UsageError for a part that is not NAME=VALUE; `fixed:32` is a name.
    """
    name, *pairs = text.split(":") if "=" in text else [text]
    return name, parse_parameters(pairs, f"controller '{text}'")


def parse_parameters(pairs: Iterable[str], where: str) -> dict[str, float]:
    """Controller parameters from NAME=VALUE pairs. Raises UsageError that begins with `where`."""
    parameters: dict[str, float] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise UsageError(f"{where}: '{pair}' is not NAME=VALUE, for example c_min=16")
        try:
            parameters[name.strip()] = float(value)
        except ValueError:
            raise UsageError(f"{where}: the value of '{name}' must be a number, not '{value}'") from None
    return parameters


def parse_setting(text: str) -> tuple[Placement, str]:
    """Split `auto`, `placement/controller` or a bare placement. Raises UsageError naming the nearest placement."""
    placement, _, controller = text.partition("/")
    names = [member.value for member in Placement]
    if placement not in names:
        known = hint(placement, names, "placements are")
        where = "" if text == placement else f" in setting '{text}'"
        raise UsageError(f"unknown placement '{placement}'{where}: {known}")
    return Placement(placement), controller or "auto"
