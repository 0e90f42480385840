"""The kinds of runtime that can be simulated."""

from __future__ import annotations

from dataclasses import dataclass

from dlfp_edge.runtime import Interruptible


@dataclass(frozen=True, slots=True)
class Mode:
    """What the simulated runtime can do; the fields mean what they mean in `Capabilities`.

    With `loses_on_failure` a failed step takes the KV of all its sequences with it; without, its last segment fails
    alone.
    """

    lanes: int = 1
    batched: bool = True
    depth: int = 1
    interruptible: Interruptible = Interruptible.NODES
    fork: bool = True
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
    "sequential": Mode(batched=False, interruptible=Interruptible.SEGMENTS, fork=False),
    "depth2": Mode(depth=2, interruptible=Interruptible.NO),
    "rigid": Mode(lanes=2, interruptible=Interruptible.NO),
    "fragile": Mode(loses_on_failure=True),
    "null": Mode(lanes=2),
}
"""Named modes: `lanes` and `batched` are like llama.cpp with one context or two, `sequential` like a phone's runtime,
`depth2` like a GPU's queue, `rigid` cannot be interrupted, `fragile` loses sequences when a step fails, and on `null`
nothing takes any time."""
