"""Whether two trials said the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict, Field

from dlfp_edge.experiment.record import Request, TrialRecord


class Agreement(BaseModel):
    """Answers to the same prompts, compared with the baseline's as far as both go; the baseline's own with its repeat.

    `tokens` counts the tokens compared and `same` those before the first difference of their answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    answers: int = Field(description="answers compared")
    alike: int = Field(description="answers without a difference")
    tokens: int
    same: int

    @property
    def share(self) -> float:
        """The share of answers without a difference."""
        return self.alike / self.answers


def agreement(records: Sequence[TrialRecord], others: Sequence[TrialRecord]) -> Agreement | None:
    """None where nothing can be compared: no common answers, or a target that gives no token ids."""
    answers = alike = tokens = same = 0
    for mine, theirs in _pairs(records, others):
        both = min(len(mine), len(theirs))
        first = next((at for at in range(both) if mine[at] != theirs[at]), both)
        answers, alike, tokens, same = answers + 1, alike + (first == both), tokens + both, same + first
    return Agreement(answers=answers, alike=alike, tokens=tokens, same=same) if answers else None


def _pairs(records: Sequence[TrialRecord], others: Sequence[TrialRecord]) -> Iterator[tuple[list[int], list[int]]]:
    """The ids of answers to one prompt in trials of one seed, but never of one and the same trial."""
    for record in records:
        for other in others:
            # An arm against itself is its first run against its repeat; against another, the repeat says nothing new.
            if record.seed != other.seed or record.repeat or bool(other.repeat) != (record.arm == other.arm):
                continue
            known = {request.label: request for request in other.requests}
            for request in record.requests:
                twin = known.get(request.label)
                if twin is not None and _comparable(request, twin):
                    assert request.ids is not None
                    assert twin.ids is not None
                    yield request.ids, twin.ids


def _comparable(one: Request, other: Request) -> bool:
    return one.prompt == other.prompt and bool(one.ids) and bool(other.ids)
