"""One model and the lanes over it.

Words do not depend on the thread count. llama.cpp's CPU flash attention splits the KV cache by thread for steps of one
token past 512 cells, so it may give other tokens on two threads than on one. Either it is off, or steps of one token
always have the same number of threads. Median decode times in ms, off and on, on two shared cores of an x86-64
virtual machine (on one thread; for Qwen3 at 4,000 cells CPU time on a busy machine, to be read as a tendency):

    cells                     100           600           4,000
    Gemma 3 270M Q4_K_M       20.3, 18.7    19.3, 18.7    30.4, 22.2
    Qwen3-0.6B shape Q4_K     30.4, 26.1    42.7, 48.3    103, 198

Greedy ids on one and two threads were equal in all five places compared with it off (Qwen3 at 4,000 was not), and
differed for Qwen3 at 600 with it on. One thread for good costs a stream that runs alone 1.3 to 1.4 times its time
(Gemma with it on at 600 and 4,000 cells: 14.0 and 16.1 on two threads, 18.7 and 22.2 on one). Leaving it off costs 3 to
17% at short contexts, 37% for Gemma at 4,000, and gains for Qwen3 from 600 on. So it is off unless asked for; where it
is on (`flash_attention=on`, or a quantised cache, which needs it) steps of one token have the probe's decode threads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import (
    Capabilities,
    Interruptible,
    Lane,
    LaneSpec,
    LoadOptions,
    Priority,
    Sampling,
    StepResult,
    Tokenizer,
)

from .context import KV_BYTES, LARGEST_STEP, UBATCH, Context
from .hashing import file_sha256
from .lane import LlamaLane, Surroundings
from .library import library, version
from .mailbox import Mailbox
from .model import Model, cache_directory, default_model
from .options import check_options, context_settings, most_threads, wants_probe
from .priority import can_restore, system_priority
from .probe import ProbeResult, probe
from .sampler import Sampler, make_sampler
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
        self._end_tokens: npt.NDArray[np.intp] | None = None
        self.capabilities = self._unprobed_capabilities()
        self._probed: ProbeResult | None = None
        self._single_threads: int | None = None
        if wants_probe(options):
            self._probe()
        self._single_threads = self.capabilities.decode_threads if self._settings.flash_attention else None

    def open_lane(self, spec: LaneSpec) -> Lane:
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
                "solo": self.capabilities.solo_threads,
                "prefill": self.capabilities.prefill_threads,
            },
            "priority": self.capabilities.priority,
            "priority_effective": self.capabilities.priority_effective,
            "probe": self._probed and dataclasses.asdict(self._probed),
            "lanes": {lane.spec.name: lane.workers.describe() for lane in self._lanes},
            "messages": list(self.messages),
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.shut()
        self._lanes.clear()
        self._model.close()

    def _open(self, spec: LaneSpec) -> LlamaLane:
        self._check(spec)
        context = Context(self._model.pointer, self._settings, spec.sequences, spec.context, self._most_threads)
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
            self._single_threads,
        )
        return LlamaLane(spec, context, workers, around)

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
        if self._end_tokens is None and sampling.ignore_eos:
            self._end_tokens = np.array(self._llama_tokenizer.end_tokens(), np.intp)
        forbidden = self._end_tokens if sampling.ignore_eos else None
        return make_sampler(sampling, self.tokenizer.vocabulary, forbidden)

    def _most_cells(self) -> int:
        """KV cells a lane may have in the memory that is free now."""
        free = psutil.virtual_memory().available * _MEMORY_SHARE
        cells = int(free / self._model.kv_cell_values() / KV_BYTES[self._settings.kv_type])
        return max(256, min(_MOST_CELLS, cells))

    def _probe(self) -> None:
        """Measure, and enter what was found. With flash attention decodes have one thread count, the fastest or not."""
        self._probed = found = probe(self, self._open, self._most_threads, self._options.cpus)
        solo_threads = found.decode_threads if self._settings.flash_attention else found.solo_threads
        self.capabilities = dataclasses.replace(
            self.capabilities,
            decode_threads=found.decode_threads,
            prefill_threads=found.prefill_threads,
            solo_threads=solo_threads,
            decode_s=found.decode_s_by_threads[found.decode_threads],
            best_decode_s=found.decode_s_by_threads[solo_threads],
            prefill_tokens_per_s=found.prefill_rate_by_threads[found.prefill_threads],
            priority_effective=found.priority_effective,
        )
        if found.priority_effective is False:
            self._say("lowest priority has no effect here: the background is kept off by threads and affinity alone")

    def _unprobed_capabilities(self) -> Capabilities:
        exact = self._settings.exact
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
            fork=not exact,
            schedule_invariant=exact,
            decode_threads=decode_threads,
            prefill_threads=self._most_threads,
            decode_s=None,
            solo_threads=decode_threads,
            best_decode_s=None,
            threads_invariant=True,
            prefill_tokens_per_s=None,
            priority=self._priority.name,
            priority_effective=None,
        )
