"""The sequences of one lane: free, or at rest with what an ended task has left for prompts that begin the same.

A prompt takes over a sequence at rest whose every cell it can use, and shares the beginning of any other (`fork`).
Where memory or sequences run short, those at rest make room: what background tasks left and nobody has used since goes
first, then the least recently used, of which at first only what was never shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dlfp_edge.handle import Task
from dlfp_edge.running import Running
from dlfp_edge.runtime import Capabilities, Lane, Rollback

SHORTEST = 16
"""Beginnings of fewer tokens than this cost less to compute than to keep."""

Tokens = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Rest:
    """A sequence at rest with the `tokens` in its cells, of which other prompts have used the first `shared`.

    The first `forked` came from another sequence.
    """

    sequence: int
    tokens: Tokens
    foreground: bool
    forked: int
    used_at: float
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """The cells a prompt need not compute: the first `length` of a sequence at rest, or of one that runs.

    `coming`: a task that runs is about to have computed more of the prompt, so that waiting saves doing it twice.
    """

    length: int = 0
    rest: Rest | None = None
    running: Running | None = None
    coming: bool = False


NOTHING = Match()


class Sequences:
    """Sequences 0 to `count` - 1 of a lane. Without `caches` no prompt starts from what another has computed."""

    def __init__(self, lane: Lane, count: int, capabilities: Capabilities, *, caches: bool = True) -> None:
        self._lane = lane
        self._caches = caches
        self._free = list(range(count - 1, -1, -1))
        self._rests: list[Rest] = []
        self._fork = capabilities.fork
        self._waits = capabilities.fork and capabilities.depth == 1 and capabilities.rollback is Rollback.ANY
        self._least_rest = capabilities.min_chunk

    @property
    def available(self) -> bool:
        """Whether a task can have one."""
        return bool(self._free or self._rests)

    def match(self, task: Task, running: Iterable[Running]) -> Match:
        """What is there already of a task's prompt. Sequences in flight cannot be shared."""
        best, coming = NOTHING, 0
        if task.spec.embed or not self._caches:
            return best
        for rest in self._rests:
            length = self._usable(task, rest.tokens, len(rest.tokens))
            if length > best.length and self._lane.keeps(rest.sequence, length) and self._worth(rest, length):
                best = Match(length, rest=rest)
        for other in running if self._fork else ():
            common = self._usable(task, other.task.prompt_ids, len(other.task.prompt_ids))
            length = 0 if other.in_flight else min(common, other.computed)
            if length >= SHORTEST and length > best.length and self._lane.keeps(other.sequence, length):
                best = Match(length, running=other)
            if length < common and self._leaves(other, task):
                coming = max(coming, common)
        return replace(best, coming=True) if coming >= best.length + SHORTEST else best

    def _leaves(self, other: Running, task: Task) -> bool:
        """Whether a task may wait for the prompt of one that runs. Nobody who is watching waits for the background."""
        same = other.task.task_class is task.task_class and not other.task.spec.embed  # which leaves nothing
        return self._waits and same and other.active and not other.ended

    def take(self, task: Task, match: Match, now: float) -> int:
        """Give the task a sequence that holds what was matched. An error costs no sequence."""
        rest, sampling = match.rest, task.spec.sampling
        alone = not self._free and len(self._rests) == 1
        source = rest or match.running
        if rest is not None and (not self._fork or match.length == len(rest.tokens) or alone):
            self._lane.adopt(rest.sequence, sampling)
            self._rests.remove(rest)
            sequence, source = rest.sequence, None
        else:
            if not self._free:
                self._drop(self._oldest(but=rest))
            self._lane.open(self._free[-1], sampling)
            sequence = self._free.pop()
        try:
            if source is not None:
                self._lane.fork(source.sequence, sequence, match.length)
            elif match.length:
                self._lane.truncate(sequence, match.length)
        except BaseException:
            self._free_up(sequence)
            raise
        if rest is not None and source is rest:
            rest.used_at, rest.shared = now, max(rest.shared, match.length)
        return sequence

    def give_back(self, running: Running, now: float) -> None:
        """Take the sequence of a task that has ended, and let it rest where what it holds may be of use.

        Short chunks are what other kernels compute: where a runtime shuns them, decoded cells are not those a prompt
        would give, and only the prompt's are left.
        """
        length = running.computed if self._least_rest <= 1 else min(running.computed, len(running.task.prompt_ids))
        tokens = np.array(running.tokens[:length], np.int32)
        of_use = self._caches and running.active and not running.task.spec.embed and length >= SHORTEST
        if not of_use or not self._lane.keeps(running.sequence, length):
            self._free_up(running.sequence)
            return
        if any(_common(rest.tokens, tokens) == length for rest in self._rests):
            self._free_up(running.sequence)
            return
        for rest in list(self._rests):
            if len(rest.tokens) <= length and _common(rest.tokens, tokens) == len(rest.tokens):
                self._drop(rest)
        self._lane.truncate(running.sequence, length)
        self._rests.append(Rest(running.sequence, tokens, running.foreground, running.forked, now))

    def kept(self, match: Match, *, spare_foreground: bool) -> int:
        """How many cells, at least, stay at rest whatever `make_room` frees."""
        spared = [r for r in self._rests if spare_foreground and r.foreground and r is not match.rest]
        lengths = [(len(rest.tokens), rest) for rest in spared]
        if match.rest is not None:
            lengths.append((match.length, match.rest))
        return sum(max(0, length - rest.forked) for length, rest in lengths)

    def make_room(self, match: Match = NOTHING, *, spare_foreground: bool = False) -> bool:
        """Free some cells of the sequence at rest that is least worth keeping; False where there is none left.

        What was matched stays, and with `spare_foreground` what foreground tasks left.
        """
        rest = self._oldest(but=match.rest, spare_foreground=spare_foreground)
        if rest is None:
            return match.rest is not None and self._trim(match.rest, match.length)
        if not self._trim(rest, rest.shared):
            self._drop(rest)
        return True

    def _trim(self, rest: Rest, length: int) -> bool:
        """Keep no more than the first `length` tokens; False where that would free nothing, or not leave enough."""
        if not SHORTEST <= length < len(rest.tokens) or not self._lane.keeps(rest.sequence, length):
            return False
        self._lane.truncate(rest.sequence, length)
        rest.tokens = rest.tokens[:length]
        return True

    def forget(self, sequences: Iterable[int]) -> None:
        """Drop sequences at rest whose cells the runtime has lost."""
        lost = set(sequences)
        for rest in [rest for rest in self._rests if rest.sequence in lost]:
            self._drop(rest)

    def forget_all(self) -> None:
        """Drop everything at rest."""
        self.forget([rest.sequence for rest in self._rests])

    def _usable(self, task: Task, tokens: Tokens, length: int) -> int:
        """How many of the first `length` tokens the prompt begins with; the last of a prompt are always computed."""
        most = min(length, len(task.prompt_ids) - self._least_rest)
        if most < SHORTEST or not np.array_equal(task.prompt_ids[:SHORTEST], tokens[:SHORTEST]):
            return 0
        return _common(task.prompt_ids[:most], tokens[:most])

    def _worth(self, rest: Rest, length: int) -> bool:
        """Whether a match pays: without forks it costs what the sequence holds beyond it."""
        return self._fork or 2 * length >= len(rest.tokens) or not self._free

    def _oldest(self, but: Rest | None, *, spare_foreground: bool = False) -> Rest | None:
        candidates = [r for r in self._rests if r is not but and not (spare_foreground and r.foreground)]
        return min(candidates, key=lambda rest: (rest.foreground or rest.shared > 0, rest.used_at), default=None)

    def _drop(self, rest: Rest | None) -> None:
        assert rest is not None, "a sequence was promised and there is none"
        self._rests.remove(rest)
        self._free_up(rest.sequence)

    def _free_up(self, sequence: int) -> None:
        self._lane.close(sequence)
        self._free.append(sequence)


def _common(first: Tokens, second: Tokens) -> int:
    """Length of the common beginning."""
    most = min(len(first), len(second))
    differences = np.flatnonzero(first[:most] != second[:most])
    return int(differences[0]) if len(differences) else most
