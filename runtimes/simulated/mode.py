"""The kinds of runtime that can be simulated."""

from __future__ import annotations

from dataclasses import dataclass

from dlfp_edge.runtime import Interruptible, Pooling, Rollback


@dataclass(frozen=True, slots=True)
class Mode:
    """What the simulated runtime can do; the fields mean what they mean in `Capabilities`.

    With `loses_on_failure` a failed step takes the KV of all its sequences with it; without, its last segment fails
    alone. Under `Rollback.WINDOW` a sequence can be cut only as long as it holds at most `window` cells.
    """

    lanes: int = 1
    batched: bool = True
    depth: int = 1
    interruptible: Interruptible = Interruptible.NODES
    fork: bool = True
    save: bool = True
    rollback: Rollback = Rollback.ANY
    window: int = 128
    pooling: Pooling = Pooling.MEAN
    loses_on_failure: bool = False
    sequences: int = 64
    context: int = 1 << 20
    sequence_context: int = 1 << 17
    largest_step: int = 1 << 16
    ubatch: int = 512
    min_chunk: int = 1


MODES: dict[str, Mode] = {
    "lanes": Mode(lanes=2),
    "batched": Mode(),
    "sequential": Mode(batched=False, interruptible=Interruptible.SEGMENTS, fork=False, save=False),
    "windowed": Mode(lanes=2, save=False, rollback=Rollback.WINDOW),
    "depth2": Mode(depth=2, interruptible=Interruptible.NO),
    "rigid": Mode(lanes=2, interruptible=Interruptible.NO),
    "fragile": Mode(loses_on_failure=True, save=False, rollback=Rollback.NONE),
    "null": Mode(lanes=2),
}
"""Named modes: `lanes` and `batched` are like llama.cpp with one context or two, `sequential` like a phone's runtime,
`windowed` keeps a sliding window only, `depth2` is like a GPU's queue, `rigid` cannot be interrupted, `fragile` loses
sequences when a step fails and can drop no part of one, and on `null` nothing takes any time."""
