"""What a controller is told and what it answers. Controllers read no clock and never sleep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class View:
    """A lane before a step is planned.

    `decoders` are protected decodes the step will hold, `prefills` the tokens that could run beside them and `prompts`
    how many prompts are not yet computed, in this lane or in the queue; `target_s`
    the longest gap a stream should see (None while no decode has been measured), `most` the actuator's upper end
    (tokens of the largest step, or threads) and `tile` the runtime's kernel tile in tokens. `fits` are the prefill
    tokens with which even a slow step is predicted to end within the target beside the decodes, None where steps cannot
    be predicted; `unsplit` those of a foreground prompt that had better run at once although it does not, 0 for none.
    `cells` are the KV cells that those decodes read, `prefill_start` the cells that the next prompt has already.
    """

    decoders: int
    prefills: int
    prompts: int
    target_s: float | None
    most: int
    tile: int
    fits: int | None = None
    cells: int = 0
    prefill_start: int = 0
    unsplit: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """A completed, capped step.

    `gap_s` is the gap it made a stream see (service time plus sampling), `interval_s` the time from the scheduler call
    that planned the step to the next one, `budget` the output in force for this step, `used` how much of it ran.
    """

    gap_s: float
    interval_s: float | None
    target_s: float | None
    budget: int
    used: int

    @property
    def filled(self) -> bool:
        """Whether the step used all it was given."""
        return self.used >= self.budget


@dataclass(frozen=True, slots=True)
class Update:
    """What an observation did: the controller's state after it, and the reason where it did not change."""

    value: float | None
    changed: bool
    reason: str | None = None


class Controller(Protocol):
    """One law.

    `resets` counts how often the state went back to its initial value. A `steered` law follows a target the engine
    measures, and the engine's backstop enforces that target.
    """

    name: str
    resets: int
    steered: bool

    @property
    def state(self) -> float | None:
        """The controller's state in units of its actuator; None for a law without one."""
        ...

    def budget(self, view: View, now: float) -> int | None:
        """The most prefill tokens beside the decodes, or threads of the background lane; None means no limit."""
        ...

    def observe(self, observation: Observation) -> Update:
        """Learn from one completed step."""
        ...


def clamp(value: float, low: float, high: float) -> float:
    """`value`, no lower than `low` and no higher than `high`."""
    return max(low, min(high, value))
