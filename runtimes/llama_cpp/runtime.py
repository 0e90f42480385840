"""One model and the lanes over it.

Flash attention decides two things here. It skips the cells of other sequences, where plain attention computes them and
then masks them; and it splits the KV cache by thread for steps of one token past 512 cells, so that words depend on the
thread count. A lane whose words must not (the foreground's) decodes without it, every other lane runs with it. Measured
on two CPUs of an x86-64 virtual machine:

    prefill of 1,500 tokens beside 0, 1, 2, 3 sequences of that length in the cache, tokens/s
        Gemma 3 270M Q4_K_M     off: 577, 395, 299, 240       on: 590, 548, 543, 523
        Qwen3-0.6B shape Q4_K   off: 172, 106, 77, 59         on: 178, 157, 132, 134
    decode of one sequence at 100, 600, 2,000, 4,000 cells, two threads, ms
        Gemma 3 270M Q4_K_M     off: 13.9, 15.0, 17.4, 21.2   on: 13.0, 13.9, 16.2, 16.2
        Qwen3-0.6B shape Q4_K   off: 20.2, 25.5, 43.0, 65.9   on: 18.5, 30.0, 60.4, 97.9

Greedy ids on one and two threads were equal in all places compared with it off (100, 600 and 4,000 cells), and differed
for Qwen3 at 600 with it on. The other way to make words independent is one thread count for good: it costs a stream
that runs alone 1.3 to 1.5 times its time. Where flash attention is asked for (`flash_attention=on`, or a quantised
cache, which needs it), steps of one token in the foreground's lane have the probe's decode threads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import psutil

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.errors import EngineClosed, UsageError
from dlfp_edge.runtime import (
    Capabilities,
    Interruptible,
    Lane,
    LaneSpec,
    LoadOptions,
    Priority,
    Rollback,
    Sampling,
    StepResult,
    Tokenizer,
    refuse_lane,
)

from .context import KV_BYTES, LARGEST_STEP, MOST_OUTPUTS, UBATCH, Context, keeps_whole_sequences_only
from .hashing import file_sha256
from .lane import LlamaLane, Surroundings
from .library import library, version
from .mailbox import Mailbox
from .model import Model, cache_directory, default_model
from .options import check_options, context_settings, most_threads, wants_probe
from .priority import can_restore, system_priority
from .probe import ProbeResult, probe
from .sampler import Sampler
from .synth import RANDOM_WEIGHTS
from .threads import thread_finder
from .tokens import LlamaTokenizer
from .workers import Workers

_MOST_CELLS = 1 << 20
_MEMORY_SHARE = 0.5
"""How much of the memory that is free may go to the KV cache of one lane."""


class LlamaRuntime:
    """The `Runtime` over llama.cpp. See `dlfp_edge.runtime.Runtime` for what its methods promise.

    `messages` are lines a person should see once: what the system refused, what has no effect here.
    """

    def __init__(self, options: LoadOptions) -> None:
        check_options(options)
        self.clock: Clock = SystemClock()
        self.messages: list[str] = []
        self._options = options
        self._settings = context_settings(options)
        self._most_threads = most_threads(options)
        self._model = Model(options.model or default_model(), options.exact)
        self._mailbox = Mailbox(self.clock)
        self._priority = system_priority()
        self._lanes: list[LlamaLane] = []
        self._llama_tokenizer = LlamaTokenizer(self._model.vocab, str(self._model.path))
        self.tokenizer: Tokenizer = self._llama_tokenizer
        self._end_tokens = np.array(sorted(self._llama_tokenizer.end_tokens), np.intp)
        self.capabilities = self._unprobed_capabilities()
        self._probed: ProbeResult | None = None
        self._single_threads: int | None = None
        if wants_probe(options):
            try:
                self._probe()
            except BaseException:
                self.close()
                raise
        self._single_threads = self.capabilities.decode_threads

    def open_lane(self, spec: LaneSpec) -> Lane:
        self._lanes = [lane for lane in self._lanes if lane.is_open]
        refuse_lane(spec, [lane.spec.name for lane in self._lanes], self.capabilities.lanes)
        lane = self._open(spec)
        self._lanes.append(lane)
        if spec.priority is Priority.LOWEST and not can_restore(self._priority):
            self._say(
                "this system does not let a lowered priority be raised again: "
                "on a busy machine an interrupt of the background may take long"
            )
        return lane

    def wait(self, until: float | None) -> list[StepResult]:
        return self._mailbox.take(until)

    def wake(self) -> None:
        self._mailbox.wake()

    def describe(self) -> dict[str, Any]:
        model = self._model.describe()
        return {
            "runtime": "llama_cpp",
            "llama_cpp_python": version(),
            "system_info": library().llama_print_system_info().decode(),
            "model": model,
            "sha256": file_sha256(self._model.path, cache_directory() / "sha256.json"),
            "random_weights": RANDOM_WEIGHTS in model["name"],
            **dataclasses.asdict(self._settings),
            "threads": {
                "decode": self.capabilities.decode_threads,
                "prefill": self.capabilities.prefill_threads,
            },
            "priority": self.capabilities.priority,
            "priority_effective": self.capabilities.priority_effective,
            "probe": self._probed and dataclasses.asdict(self._probed),
            "lanes": {
                lane.spec.name: {"flash_attention": lane.flash_attention, **lane.workers.describe()}
                for lane in self._lanes
            },
            "messages": list(self.messages),
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.shut()
        self._llama_tokenizer.close()
        self._model.close()

    def _open(self, spec: LaneSpec) -> LlamaLane:
        self._check(spec)
        if not self._model.pointer:
            raise EngineClosed(f"the model {self._model.path} is closed: open it again")
        flash = self._flash_attention(spec)
        context = Context(
            self._model.pointer,
            self._settings,
            spec.sequences,
            spec.context,
            self._most_threads,
            flash_attention=flash,
        )
        workers = Workers(spec.priority, self._priority, thread_finder(), self._options.cpus, spec.cores, self._say)
        own_cells = spec.context // spec.sequences if self._settings.exact else spec.context
        around = Surroundings(
            self._sampler,
            self._mailbox,
            self.clock,
            self.tokenizer.vocabulary,
            min(own_cells, self._model.trained_context),
            self._settings.exact,
            self._most_threads,
            self._single_threads if flash and spec.threads_invariant else None,
        )
        try:
            return LlamaLane(spec, context, workers, around)
        except BaseException:
            context.close()
            raise

    def _flash_attention(self, spec: LaneSpec) -> bool:
        forced = self._settings.flash_attention
        return not spec.threads_invariant if forced is None else forced

    def _check(self, spec: LaneSpec) -> None:
        if not 1 <= spec.sequences <= self.capabilities.sequences:
            raise UsageError(
                f"{spec.sequences} sequences in a lane is not possible; 1 to {self.capabilities.sequences} are"
            )
        most = self._most_cells()
        if not 1 <= spec.context <= most:
            raise UsageError(f"a lane of {spec.context} KV cells is not possible: memory allows 1 to {most}")

    def _say(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)

    def _sampler(self, sampling: Sampling) -> Sampler:
        return Sampler(sampling, self.tokenizer.vocabulary, self._end_tokens)

    def _most_cells(self) -> int:
        """KV cells a lane may have in the memory that is free now."""
        free = psutil.virtual_memory().available * _MEMORY_SHARE
        cells = int(free / self._model.kv_cell_values() / KV_BYTES[self._settings.kv_type])
        return max(256, min(_MOST_CELLS, cells))

    def _probe(self) -> None:
        """Measure, and enter what was found. With flash attention on everywhere decodes have one thread count."""
        self._probed = found = probe(self, self._open, self._most_threads, self._options.cpus)
        times = found.decode_s_by_threads
        if self._settings.flash_attention:
            times = {found.decode_threads: times[found.decode_threads]}
        self.capabilities = dataclasses.replace(
            self.capabilities,
            decode_threads=found.decode_threads,
            prefill_threads=found.prefill_threads,
            decode_s_by_threads=times,
            prefill_tokens_per_s=found.prefill_rate_by_threads[found.prefill_threads],
            priority_effective=found.priority_effective,
        )
        if found.priority_effective is False:
            self._say("lowest priority has no effect here: the background is kept off by threads and affinity alone")

    def _unprobed_capabilities(self) -> Capabilities:
        exact, windowed = self._settings.exact, self._settings.windowed
        recurrent = keeps_whole_sequences_only(self._model.pointer)
        decode_threads = max(1, self._most_threads // 2)
        return Capabilities(
            lanes=2,
            batched=True,
            depth=1,
            sequences=int(library().llama_max_parallel_sequences()),
            context=self._most_cells(),
            sequence_context=self._model.trained_context,
            largest_step=LARGEST_STEP,
            ubatch=UBATCH,
            tile=16,
            min_chunk=8 if exact else 1,
            interruptible=Interruptible.NODES,
            fork=not (exact or recurrent),
            save=not (exact or recurrent or windowed),
            rollback=Rollback.NONE if recurrent else Rollback.WINDOW if windowed else Rollback.ANY,
            pooling=self._model.pooling,
            outputs=MOST_OUTPUTS,
            schedule_invariant=exact,
            decode_threads=decode_threads,
            prefill_threads=self._most_threads,
            decode_s_by_threads={},
            threads_invariant=True,
            prefill_tokens_per_s=None,
            priority=self._priority.name,
            priority_effective=None,
        )
