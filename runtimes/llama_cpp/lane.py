"""A lane: one context, one driver thread, one step at a time.

The engine's thread calls the methods; the driver only executes steps and posts results. Changes to the cache that are
asked for while a step runs wait until it has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dlfp_edge.clock import Clock
from dlfp_edge.errors import RuntimeFailure
from dlfp_edge.runtime import (
    Basis,
    Content,
    LaneSpec,
    Output,
    Sampling,
    Segment,
    Step,
    StepResult,
    Transfer,
)

from .batch import Batch, requested_rows
from .calls import CallSize, split_off
from .cells import CellLedger
from .checks import check_step, check_transfer
from .context import LARGEST_STEP, MOST_OUTPUTS, UBATCH, Context, Saved
from .mailbox import Mailbox
from .outputs import Outputs
from .parts import embeds, parts
from .sampler import Sampler
from .workers import Workers

MakeSampler = Callable[[Sampling], Sampler]

_TOUCH_DECODES, _LONGEST_TOUCH_S = 8, 0.5
"""How long the ubatch that touches buffers may run: in decodes, about two layers' worth, and in seconds."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a lane gets from its runtime. `sequence_cells` is the most one sequence may hold.

    `divided` says that the sequences do not share the KV cells: each has a stream of its own. `single_threads` is the
    thread count of every step of one token, whatever the step says; None leaves it to the step. `short_calls` says that
    a call cannot be stopped, so that a step is made of short ones; `buffer_bytes` what the context's buffers may take.
    """

    make_sampler: MakeSampler
    mailbox: Mailbox
    clock: Clock
    vocabulary: int
    sequence_cells: int
    divided: bool
    most_threads: int
    single_threads: int | None
    short_calls: bool = False
    buffer_bytes: int = 0


@dataclass(slots=True)
class _Job:
    """A submitted step. `stop` says an interrupt was asked for, `running` that `llama_decode` may see the flag."""

    handle: int
    step: Step
    submitted: float
    stop: bool = False
    running: bool = False


class LlamaLane:
    """The `Lane` of this runtime. See `dlfp_edge.runtime.Lane` for what its methods promise."""

    def __init__(self, spec: LaneSpec, context: Context, workers: Workers, around: Surroundings) -> None:
        self.spec = spec
        self.sequence_context = min(around.sequence_cells, spec.context)
        self.workers = workers
        self.flash_attention = context.flash_attention
        # Flash attention skips the cells of other sequences, and where each has a stream there are none.
        self.reads_all = not (context.flash_attention or around.divided)
        self.buffer_bytes = around.buffer_bytes
        self._context = context
        self._around = around
        self._clock = around.clock
        self._batch = Batch(LARGEST_STEP)
        self._call_size = CallSize()
        self._cells = CellLedger()
        self._samplers: dict[int, Sampler] = {}
        self._lock = threading.RLock()
        self._job: _Job | None = None
        self._later: list[Callable[[], object]] = []
        self._handles = 0
        self._shut = False
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._driver = threading.Thread(target=self._drive, name=f"driver of lane {spec.name}", daemon=True)
        self._failure: Exception | None = None
        self._driver.start()
        try:
            self._ready.wait()
            self._raise_failure()
        except BaseException:  # Ctrl-C too: the driver must be gone before the context is
            self._inbox.put(None)
            self._driver.join()
            raise

    @property
    def is_open(self) -> bool:
        """Whether `shut` has not been called."""
        return not self._shut

    def submit(self, step: Step) -> int:
        with self._lock:
            self._raise_failure()
            if self._job is not None:
                raise ValueError("a step is in flight; this runtime takes one at a time")
            if step.transfer is not None:
                check_transfer(step.transfer, self._cells, copies=not self._around.divided)
            else:
                check_step(step, self._cells, self._around.vocabulary, MOST_OUTPUTS + self.spec.sequences)
            self._handles += 1
            self._job = _Job(self._handles, step, self._clock.now())
            self._inbox.put(self._job)
            return self._handles

    def interrupt(self, handle: int) -> None:
        with self._lock:
            job = self._job
            if job is None or job.handle != handle:
                return
            job.stop = True
            if job.running and not self._around.short_calls:
                self.workers.hurry()
                self._context.abort.set()

    def pin(self, cores: Sequence[int] | None) -> None:
        self.workers.pin(cores)

    def open(self, sequence: int, sampling: Sampling) -> None:
        if not 0 <= sequence < self.spec.sequences:
            raise ValueError(f"sequence {sequence} is not in 0..{self.spec.sequences - 1}")
        if sequence in self._cells:
            raise ValueError(f"sequence {sequence} is open already")
        with self._lock:
            self._samplers[sequence] = self._around.make_sampler(sampling)
            self._cells.open(sequence)

    def adopt(self, sequence: int, sampling: Sampling) -> None:
        with self._lock:
            if sequence not in self._cells:
                raise ValueError(f"sequence {sequence} is not open")
            self._refuse_in_flight(sequence)
            sampler = self._around.make_sampler(sampling)
            self._samplers[sequence].close()
            self._samplers[sequence] = sampler

    def close(self, sequence: int) -> None:
        with self._lock:
            if sequence not in self._cells:
                return
            self._refuse_in_flight(sequence)
            self._samplers.pop(sequence).close()
            self._cells.close(sequence)
            self._soon(lambda: self._context.clear(sequence))

    def keeps(self, sequence: int, length: int) -> bool:
        with self._lock:
            return self._context.keeps(sequence, length)

    def truncate(self, sequence: int, length: int) -> None:
        with self._lock:
            self._refuse_in_flight(sequence)
            if not 0 <= length <= self._cells.held(sequence):
                raise ValueError(f"sequence {sequence} holds {self._cells.held(sequence)} cells, not {length}")
            self._cells.truncate(sequence, length)
            self._soon(lambda: self._context.truncate(sequence, length))

    def fork(self, source: int, target: int, length: int) -> None:
        with self._lock:
            self._refuse_in_flight(source)
            self._refuse_in_flight(target)
            if self._cells.held(target) or not 0 <= length <= self._cells.held(source):
                raise ValueError(f"cannot fork {length} cells of sequence {source} to sequence {target}")
            self._cells.fork(source, target, length)
            self._soon(lambda: self._context.share(source, target, length))

    def kv_used(self) -> int:
        with self._lock:
            return self._cells.used()

    def cpu_s(self) -> float | None:
        return self.workers.cpu_s()

    def thread_states(self) -> Mapping[str, int] | None:
        return self.workers.states()

    def shut(self) -> None:
        with self._lock:
            if self._shut:
                return
            self._shut = True
            if self._job is not None:
                self.interrupt(self._job.handle)
        self._inbox.put(None)
        self._driver.join()
        self._around.mailbox.forget(self.spec.name)
        self._context.close()
        for sampler in self._samplers.values():
            sampler.close()

    def _refuse_in_flight(self, sequence: int) -> None:
        if self._job is None:
            return
        step = self._job.step
        copied = step.transfer is not None and step.transfer.sequence == sequence
        if copied or any(segment.sequence == sequence for segment in step.segments):
            raise ValueError(f"sequence {sequence} is in the step in flight")

    def _soon(self, change: Callable[[], object]) -> None:
        """Change the cache now, or when the step in flight has ended."""
        if self._job is None:
            change()
        else:
            self._later.append(change)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeFailure(f"lane {self.spec.name} failed: {self._failure!r}") from self._failure

    def _drive(self) -> None:
        """The driver's life. Whatever goes wrong in it, every step gets a result: the engine waits for one."""
        try:
            self.workers.begin()
            self._touch_buffers()
            self.workers.settle()
        except Exception as error:
            self._failure = error
            self.workers.end()
            return
        finally:
            self._ready.set()
        while (job := self._inbox.get()) is not None:
            try:
                result = self._execute(job)
            except Exception as error:
                result = self._failed(job, error)
            with self._lock:
                self._change_cache()
                self._job = None
            self._around.mailbox.post(result)
        self.workers.end()

    def _failed(self, job: _Job, error: Exception) -> StepResult:
        """What goes wrong in a step ends it and its sequences, not the lane, unless they cannot even be cleared."""
        lost = [segment.sequence for segment in job.step.segments]
        try:
            for sequence in lost:
                self._lose(sequence)
        except Exception as worse:
            self._failure = worse
        nothing = [0] * len(lost)
        reason = f"lane {self.spec.name} failed: {error!r}"
        return self._result(job, self._clock.now(), nothing, [Outputs() for _ in lost], reason, lost)

    def _change_cache(self) -> None:
        """Make the changes that waited for the step to end; after one that fails nothing about the cache is certain."""
        try:
            for change in self._later:
                change()
        except Exception as error:
            self._failure = error
        self._later.clear()

    def _touch_buffers(self) -> None:
        """Write to the buffers of the largest kind of step now, so that no later step meets pages not there yet.

        Layers share their buffers, so a full ubatch may be stopped after about two of them.
        """
        threads = self._around.most_threads
        began = self._clock.now()
        self._try_out(Step((Segment(0, 0, (0,), {0: Output.TOKEN}),), threads))
        decode_s = self._clock.now() - began
        stop = threading.Timer(min(_TOUCH_DECODES * decode_s, _LONGEST_TOUCH_S), self._context.abort.set)
        stop.start()
        self._try_out(Step((Segment(0, 0, (0,) * min(UBATCH, self.spec.context)),), threads))
        stop.cancel()
        stop.join()
        self._context.abort.clear()

    def _try_out(self, step: Step) -> None:
        self._batch.fill(step)
        self._context.use_threads(step.threads)
        self.workers.run(self._context.pointer, self._batch.raw, step.threads)
        self._context.clear(0)

    def _execute(self, job: _Job) -> StepResult:
        if job.step.transfer is not None:
            return self._copy(job, job.step.transfer)
        error = self._refusal(job.step)
        done = {segment.sequence: Outputs() for segment in job.step.segments}
        completed = self._clock.now()
        for part in () if error else self._parts(job.step):
            began = self._clock.now()
            ran = self._run(job, part)
            completed = self._clock.now()
            if not ran:
                break
            self._call_size.observe(part.total_tokens, completed - began)
            for segment, rows in zip(part.segments, requested_rows(part), strict=True):
                done[segment.sequence].read(segment, rows, self._context, self._samplers[segment.sequence])
        if job.stop:
            self.workers.settle()
        return self._settle(job, completed, error, done)

    def _copy(self, job: _Job, transfer: Transfer) -> StepResult:
        """Copy KV cells out or in. Short enough for nobody to have to stop it."""
        sequence, start, end = transfer.sequence, transfer.start, transfer.end
        if transfer.content is None:
            content = self._context.copy_out(sequence, start, end)
            return self._result(job, self._clock.now(), [], [], None, [], content)
        assert isinstance(transfer.content, Saved)
        error = None
        if self._cells.used() + end - start > self.spec.context:
            error = f"{end - start} cells do not fit the KV cache of lane {self.spec.name}"
        elif not self._context.copy_in(sequence, start, end, transfer.content):
            error = f"llama.cpp could not put back cells in lane {self.spec.name}"
        else:
            self._cells.append(sequence, end - start)
        return self._result(job, self._clock.now(), [], [], error, [])

    def _parts(self, step: Step) -> Iterator[Step]:
        """The calls a step is made of, each one planned when those before it have ended."""
        for part in parts(step, exact=self._around.divided, flash_attention=self.flash_attention):
            rest: Step | None = part
            while rest is not None:
                call, rest = split_off(rest, self._call_size.tokens) if self._around.short_calls else (rest, None)
                yield call

    def _run(self, job: _Job, part: Step) -> bool:
        """Execute one part of a step; whether all of it is in the cache afterwards."""
        single = self._around.single_threads if part.total_tokens == 1 else None
        threads = single or part.threads
        self._batch.fill(part)
        self._context.use_threads(threads)
        self._context.give_embeddings(embeds(part.segments[0]))
        if self._starts(job):
            self.workers.run(self._context.pointer, self._batch.raw, threads)
            if self._around.short_calls:
                self._context.synchronize()
        with self._lock:
            job.running = False
        return all(self._context.length(segment.sequence) >= segment.end for segment in part.segments)

    def _refusal(self, step: Step) -> str | None:
        """Why a step does not fit the KV cache; None where it does."""
        free = self.spec.context - self._cells.used()
        if step.total_tokens > free:
            return f"{step.total_tokens} tokens do not fit the KV cache of lane {self.spec.name}: {free} cells are free"
        most = self._around.sequence_cells
        for segment in step.segments:
            if segment.end > most:
                return f"sequence {segment.sequence} would hold {segment.end} cells; the most is {most}"
        return None

    def _starts(self, job: _Job) -> bool:
        """Clear the flag and start, unless an interrupt came first."""
        with self._lock:
            self._context.abort.clear()
            job.running = not job.stop
            return job.running

    def _settle(self, job: _Job, completed: float, error: str | None, done: Mapping[int, Outputs]) -> StepResult:
        """Keep what is certain of a step. `done` has what was read of the outputs of each sequence."""
        step = job.step
        lost: list[int] = []
        consumed = [
            0 if error else self._keep_certain(segment, done[segment.sequence], lost) for segment in step.segments
        ]
        outputs = [Outputs() if segment.sequence in lost else done[segment.sequence] for segment in step.segments]
        for segment, read in zip(step.segments, outputs, strict=True):
            read.accept(self._samplers[segment.sequence])
        if error is None and consumed != [len(segment.tokens) for segment in step.segments] and not job.stop:
            error = f"llama.cpp could not execute the step in lane {self.spec.name}"
        for segment, count in zip(step.segments, consumed, strict=True):
            if segment.sequence not in lost:
                self._cells.append(segment.sequence, count)
        return self._result(job, completed, consumed, outputs, error, lost)

    def _result(
        self,
        job: _Job,
        completed: float,
        consumed: list[int],
        outputs: Sequence[Outputs],
        error: str | None,
        lost: list[int],
        content: Content | None = None,
    ) -> StepResult:
        whole = consumed == [len(segment.tokens) for segment in job.step.segments]
        return StepResult(
            lane=self.spec.name,
            handle=job.handle,
            step=job.step,
            segments=tuple(read.result(count, completed) for count, read in zip(consumed, outputs, strict=True)),
            submitted=job.submitted,
            completed=completed,
            sampling_s=self._clock.now() - completed,
            clock=self._clock.name,
            basis=Basis.SYNCHRONOUS,
            interrupted=job.stop and not whole and error is None,
            error=error,
            lost=tuple(lost),
            content=content,
        )

    def _keep_certain(self, segment: Segment, done: Outputs, lost: list[int]) -> int:
        """Cut a sequence after an unfinished step, before the first output that was lost. Returns tokens kept."""
        certain = min([self._context.length(segment.sequence), *done.missing(segment)])
        if certain >= segment.end:
            return len(segment.tokens)
        certain = max(certain, segment.start)
        if self._context.truncate(segment.sequence, certain):
            return certain - segment.start
        self._lose(segment.sequence)
        lost.append(segment.sequence)
        return 0

    def _lose(self, sequence: int) -> None:
        """Drop all a sequence holds."""
        self._context.clear(sequence)
        self._cells.truncate(sequence, 0)
