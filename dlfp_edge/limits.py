"""What a loaded model takes: whether a task could ever run on it, judged before it is queued or sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlfp_edge.errors import UsageError
from dlfp_edge.given import YEAR_S, check_number, check_stop
from dlfp_edge.running import most_cells
from dlfp_edge.runtime import check_sampling
from dlfp_edge.task import Class, TaskSpec


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The lane that runs a class, by name, and the KV cells that one of its sequences can have."""

    name: str
    cells: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the tasks of an engine are held to. `embeds` says whether the model gives embeddings."""

    vocabulary: int
    embeds: bool
    lanes: Mapping[Class, LaneLimits]

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for a task that could never run, whatever it holds; its grammar is judged elsewhere."""
        _check_kinds(spec)
        self._check_tokens(spec)
        check_number("max_tokens", spec.max_tokens, 1, 2**31, whole=True)
        if spec.sampling.min_tokens > spec.max_tokens:
            raise UsageError(f"min_tokens is {spec.sampling.min_tokens}: give at most max_tokens, {spec.max_tokens}")
        check_stop(spec.stop)
        self._check_fits(spec)
        if spec.pace is not None:
            check_number("pace", spec.pace, 1 / YEAR_S, 1e9)
        if spec.deadline_s is not None:
            check_number("deadline_s", spec.deadline_s, -YEAR_S, YEAR_S)

    def _check_tokens(self, spec: TaskSpec) -> None:
        last = self.vocabulary - 1
        if not spec.prompt:
            raise UsageError("the prompt is empty: give it at least one token")
        if not 0 <= min(spec.prompt) <= max(spec.prompt) <= last:
            raise UsageError(f"the prompt holds a token id outside 0..{last}: tokenise it for this model")
        check_sampling(spec.sampling)
        if max(spec.sampling.logit_bias, default=0) > last:
            raise UsageError(f"logit_bias holds a token id outside 0..{last}: take the ids of this model")

    def _check_fits(self, spec: TaskSpec) -> None:
        lane = self.lanes[spec.task_class]
        if spec.embed and not self.embeds:
            raise UsageError("this model gives no embeddings: load one that does")
        if spec.embed and len(spec.prompt) > lane.cells:
            raise UsageError(
                f"a text of {len(spec.prompt)} tokens does not fit the {lane.name} lane's {lane.cells} cells a "
                "sequence: cut it, or use a larger context (--ctx)"
            )
        if most_cells(spec) > lane.cells:
            raise UsageError(
                f"a prompt of {len(spec.prompt)} tokens and {spec.max_tokens} to generate do not fit the {lane.name} "
                f"lane's {lane.cells} cells a sequence: shorten the prompt or use a larger context (--ctx)"
            )


def _check_kinds(spec: TaskSpec) -> None:
    """What every part of a task is to be, where nothing else here looks at it."""
    if not isinstance(spec, TaskSpec):
        raise UsageError(f"the task is {spec!r}: give a dlfp_edge.TaskSpec")
    if not isinstance(spec.task_class, Class):
        raise UsageError(f"task_class is {spec.task_class!r}: give a dlfp_edge.Class")
    kinds = set(map(type, spec.prompt)) if isinstance(spec.prompt, tuple) else {object}
    if any(kind is bool or not issubclass(kind, int) for kind in kinds):
        raise UsageError("the prompt is no tuple of whole numbers: give the token ids of the text")
    if not isinstance(spec.embed, bool):
        raise UsageError(f"embed is {spec.embed!r}: give True or False")
    if not isinstance(spec.label, str):
        raise UsageError(f"label is {spec.label!r}: give a string")
