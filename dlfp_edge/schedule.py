"""What the next step of a lane holds. Pure: everything it needs is in its arguments, and it changes nothing.

In a step that holds a foreground decode (a *protected* step) the controller's cap bounds all other work: foreground
prefill first, then background decodes, then background prefill; what the background's floor demands goes before all of
it. A foreground prefill with no foreground decode running shares its steps with no background work. What is left is
background work alone, as large as an interruption may lose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Work:
    """A running task as the planner sees it.

    `position` is the next KV cell, `remaining` the known tokens not yet computed: 1 for a decode, more for a prefill.
    `due` says a foreground decode must be in the next step; a paced one with enough in reserve is not, and `ahead` says
    whether it may still join a step that runs anyway.
    """

    sequence: int
    foreground: bool
    position: int
    remaining: int
    decode: bool
    due: bool = True
    ahead: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the next step.

    `cap`           prefill tokens (and background decodes) beside foreground decodes; None: no limit
    `isolated`      tokens of a step of background work alone
    `largest_step`, `min_chunk`, `tile`   the runtime's
    `decode_only`   nothing but foreground decodes in the next step that holds one
    `hold`          no background work at all
    `owed`          background tokens the floor demands where the cap makes no whole tile of a step; 0: nothing is owed
    `decode_weight` prefill tokens one background decode costs
    """

    cap: int | None
    isolated: int
    largest_step: int
    min_chunk: int = 1
    tile: int = 1
    decode_only: bool = False
    hold: bool = False
    owed: int = 0
    decode_weight: float = 1.0


@dataclass(slots=True)
class Plan:
    """The next step: how many tokens of each work, in order.

    `protected`: it holds a foreground decode and other work; `floor`: background work got what it was owed, whatever
    the cap says.
    """

    parts: list[tuple[Work, int]] = field(default_factory=list)
    protected: bool = False
    floor: bool = False

    @property
    def total(self) -> int:
        """Tokens in the step."""
        return sum(count for _, count in self.parts)


def plan(works: Iterable[Work], limits: Limits) -> Plan | None:
    """The next step of a lane, or None when there is nothing to run. `works` come in order of precedence."""
    works = list(works)
    decodes = [w for w in works if w.foreground and w.decode]
    prefills = [w for w in works if w.foreground and not w.decode]
    background = [] if limits.hold else [w for w in works if not w.foreground]
    if any(w.due for w in decodes):
        return _protected([w for w in decodes if w.due or w.ahead], prefills, background, limits)
    if limits.owed and background and prefills:
        return _floor(prefills, background, limits)
    if prefills:
        return _alone([], prefills, limits.largest_step, limits)
    if background:
        return _alone(
            [w for w in background if w.decode], [w for w in background if not w.decode], limits.isolated, limits
        )
    ahead = [w for w in decodes if w.ahead]
    return Plan([(w, 1) for w in ahead]) if ahead else None


def _protected(decodes: list[Work], prefills: list[Work], background: list[Work], limits: Limits) -> Plan:
    step = Plan([(w, 1) for w in decodes])
    if limits.decode_only or len(decodes) >= limits.largest_step:
        step.parts = step.parts[: limits.largest_step]
        return step
    free = limits.largest_step - len(decodes)
    room = free if limits.cap is None else min(free, max(limits.cap, limits.min_chunk))
    if limits.owed and background:
        _owed(step, prefills, background, room, limits)
    else:
        room = _prefill(step, prefills, room, limits.min_chunk, within=limits.largest_step)
        _background(step, background, room, limits)
    step.protected = len(step.parts) > len(decodes)
    return step


def _owed(step: Plan, prefills: list[Work], background: list[Work], room: int, limits: Limits) -> None:
    """What is owed comes out of what foreground prompts would have, so that decodes keep their target.

    Where the cap makes no whole tile of the step, or leaves the background too small a part of it to ever come to what
    it is owed, it is a floor step, which does.
    """
    decodes = sum(work.decode for work in background)
    # The background's own decodes leave no room for a chunk in the least that is legal: it has to hold both.
    chunk = limits.min_chunk + (decodes if limits.min_chunk > decodes < len(background) else 0)
    before, least = step.total, max(limits.tile - step.total, chunk, step.total // 10)
    step.floor = room < least
    if step.floor:
        piece = max(least, limits.tile - step.total % limits.tile)
    else:
        # Whole chunks leave up to a chunk's length of their room unused.
        efficient = max(limits.owed, limits.min_chunk + max(limits.min_chunk, (before + room) // 20 + 1)) + decodes
        piece = max(min(room, efficient), room - sum(work.remaining for work in prefills))
    piece = min(piece, limits.largest_step - step.total)
    spent = piece - _background(step, background, piece, limits)
    room -= max(spent, step.total - before)
    _prefill(step, prefills, min(room, limits.largest_step - step.total), limits.min_chunk)


def _background(step: Plan, background: list[Work], room: int, limits: Limits) -> int:
    """Decodes within `room`, then prefill; returns what is left of it."""
    waiting = [w for w in background if not w.decode]
    room = _decode(step, [w for w in background if w.decode], room, limits, share=bool(waiting))
    return _prefill(step, waiting, room, limits.min_chunk, within=limits.largest_step)


def _floor(prefills: list[Work], background: list[Work], limits: Limits) -> Plan | None:
    """Background work that is owed goes before a foreground prefill, which takes the rest of the step."""
    decodes = [w for w in background if w.decode]
    step = _alone(decodes, [w for w in background if not w.decode], limits.owed, limits)
    if step is None:
        return None
    step.floor = True
    _prefill(step, prefills, limits.largest_step - step.total, limits.min_chunk)
    return step


def _alone(decodes: list[Work], prefills: list[Work], room: int, limits: Limits) -> Plan | None:
    """A step of one class: every decode rides along, prefill fills the rest up to a whole tile."""
    step = Plan([(w, 1) for w in decodes[: limits.largest_step]])
    room = min(max(room, 2 * limits.min_chunk - 1, 1), limits.largest_step)
    rounded = room - room % limits.tile
    _prefill(step, prefills, (rounded or room) - len(step.parts), limits.min_chunk)
    if not step.parts and prefills:
        _prefill(step, prefills, room, limits.min_chunk)
    return step if step.parts else None


def _decode(step: Plan, decodes: list[Work], room: int, limits: Limits, *, share: bool) -> int:
    """Background decodes within `room`; at most half of it while prefills wait too, but never none."""
    allowed = max(1.0, room / 2) if share else float(room)
    for work in decodes:
        if room < 1 or allowed < min(limits.decode_weight, 1.0) or step.total >= limits.largest_step:
            break
        step.parts.append((work, 1))
        room -= max(1, round(limits.decode_weight))
        allowed -= limits.decode_weight
    return max(room, 0)


def _prefill(step: Plan, works: list[Work], room: int, min_chunk: int, *, within: int = 0) -> int:
    """Fill `room` with prefill, in the order of `works`; returns what is left of it.

    Where there is room for a chunk, the rest of a prompt that cannot be cut into two legal ones runs in one piece
    although it takes more, if the step stays `within` so many tokens.
    """
    longest = 2 * min_chunk - 1 if min_chunk > 1 else 0
    for work in works:
        in_one = room >= min_chunk and work.remaining <= min(longest, within - step.total)
        count = work.remaining if in_one else whole_chunks(work.remaining, room, min_chunk)
        if count:
            step.parts.append((work, count))
            room -= count
    return max(room, 0)


def whole_chunks(remaining: int, room: int, min_chunk: int) -> int:
    """Tokens to take so that neither the chunk nor what it leaves is shorter than `min_chunk`, where it can be."""
    if remaining <= room:
        return remaining
    count = min(room, remaining - min_chunk)
    return count if count >= min_chunk else 0
