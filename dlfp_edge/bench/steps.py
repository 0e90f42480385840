"""Single steps straight on a lane, without an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.runtime import Lane, LaneSpec, Output, Priority, Runtime, Sampling, Segment, Step, StepResult


def open_lane(runtime: Runtime, sequences: int, context: int, priority: Priority = Priority.NORMAL) -> Lane:
    """A lane with its sequences open and greedy, and no more context than the runtime can hold."""
    cells = min(context, runtime.capabilities.context)
    lane = runtime.open_lane(LaneSpec(f"bench-{priority.value}", priority, sequences, cells))
    for sequence in range(sequences):
        lane.open(sequence, Sampling(ignore_eos=True))
    return lane


def run_step(runtime: Runtime, lane: Lane, step: Step) -> StepResult:
    """Run one step to its end. Raises RuntimeFailure if it failed."""
    result = result_of(runtime, lane.submit(step))
    if result.error is not None:
        raise RuntimeFailure(f"a step of {step.total_tokens} tokens failed: {result.error}")
    return result


def result_of(runtime: Runtime, handle: int) -> StepResult:
    """Wait for the step with this handle; results of other steps are dropped."""
    while True:
        for result in runtime.wait(None):
            if result.handle == handle:
                return result


def prefill(sequence: int, start: int, tokens: Sequence[int]) -> Segment:
    """Prompt tokens whose outputs nobody needs."""
    return Segment(sequence, start, tuple(tokens))


def decode(sequence: int, start: int, token: int) -> Segment:
    """One token, and the next one asked for."""
    return Segment(sequence, start, (token,), {start: Output.TOKEN})


def random_tokens(runtime: Runtime, count: int, seed: int = 0) -> tuple[int, ...]:
    """Ids that stand for ordinary text, the same for the same seed."""
    generator = random.Random(seed)
    tokenizer = runtime.tokenizer
    lowest = min(256, tokenizer.vocabulary // 4)
    return tuple(generator.randrange(lowest, tokenizer.vocabulary) for _ in range(count))


def service_s(result: StepResult) -> float:
    """How long the device was busy with a step that had the lane to itself."""
    return result.completed - result.submitted
