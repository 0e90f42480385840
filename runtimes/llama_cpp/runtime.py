"""One model and the lanes over it.

Flash attention decides two things here. It skips the cells of other sequences, where plain attention computes them and
then masks them; and it splits the KV cache by thread for steps of one token past 512 cells, so that words depend on the
thread count. A lane whose words must not (the foreground's) decodes without it, every other lane runs with it. Measured
on two CPUs of an x86-64 virtual machine:

    prefill of 1,500 tokens beside 0, 1, 2, 3 sequences of that length in the cache, tokens/s
        Gemma 3 270M Q4_K_M       off: 577, 395, 299, 240       on: 590, 548, 543, 523
        Qwen3-0.6B shape Q4_K_M   off: 172, 106, 77, 59         on: 178, 157, 132, 134
    decode of one sequence at 100, 600, 2,000, 4,000 cells, two threads, ms
        Gemma 3 270M Q4_K_M       off: 13.9, 15.0, 17.4, 21.2   on: 13.0, 13.9, 16.2, 16.2
        Qwen3-0.6B shape Q4_K_M   off: 20.2, 25.5, 43.0, 65.9   on: 18.5, 30.0, 60.4, 97.9

Greedy ids on one and two threads were equal in all places compared with it off (100, 600 and 4,000 cells), and differed
for Qwen3 at 600 with it on. The other way to make words independent is one thread count for good: it costs a stream
that runs alone 1.3 to 1.5 times its time. Where flash attention is asked for (`flash_attention=on`, or a quantised
cache, which needs it), steps of one token in the foreground's lane have the probe's decode threads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.errors import EngineClosed, UsageError
from dlfp_edge.plugins import detect_device
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

from .budget import MOST_CELLS, Budget
from .context import (
    KV_BLOCK,
    LARGEST_STEP,
    MOST_OUTPUTS,
    QUANTISED_KV,
    UBATCH,
    Context,
    flash_attention,
    keeps_whole_sequences_only,
)
from .hashing import file_sha256
from .lane import LlamaLane, Surroundings
from .library import has_amx, library, version
from .mailbox import Mailbox
from .memory import LaneNeed, MemoryNeed
from .model import Model, cache_directory, default_model
from .model_files import ModelFiles, read_model_files
from .options import check_options, context_settings, most_threads, wants_probe
from .priority import can_restore, system_priority
from .probe import ProbeResult, probe
from .sampler import Sampler
from .synth import RANDOM_WEIGHTS
from .threads import thread_finder
from .tokens import LlamaTokenizer
from .workers import Workers

NO_AMX = (
    "llama.cpp was built with AMX kernels, which crash where some compilers built them: slower ones are used. To have "
    "the usual ones, run  CMAKE_ARGS='-DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__' "
    "pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python"
)


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
        files = read_model_files(options.model or default_model())
        self._budget = self._checked_budget(files)
        self._model = Model(files, options.exact, self._settings.gpu_layers)
        if has_amx() and not options.exact:
            self._say(NO_AMX)
        self._mailbox = Mailbox(self.clock)
        self._priority = system_priority()
        self._lanes: list[LlamaLane] = []
        self._llama_tokenizer = LlamaTokenizer(self._model.vocab, str(self._model.path))
        self.tokenizer: Tokenizer = self._llama_tokenizer
        self._end_tokens = np.array(sorted(self._llama_tokenizer.end_tokens), np.intp)
        self.capabilities = self._unprobed_capabilities()
        self._probed: ProbeResult | None = None
        self._single_threads: int | None = None
        if options.known is not None:
            self.capabilities = options.known
        elif wants_probe(options):
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
            "sha256": self._sha256(),
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
        if not self._model.pointer:
            raise EngineClosed(f"the model {self._model.path} is closed: open it again")
        flash = flash_attention(self._settings, spec)
        need = self._check(spec, flash)
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
            self._on_gpu,
            need.buffers,
        )
        try:
            return LlamaLane(spec, context, workers, around)
        except BaseException:
            context.close()
            raise

    def _check(self, spec: LaneSpec, flash_attention: bool) -> LaneNeed:
        """What the lane needs. Raises UsageError where that is not possible."""
        if not 1 <= spec.sequences <= self.capabilities.sequences:
            raise UsageError(
                f"{spec.sequences} sequences in a lane is not possible; 1 to {self.capabilities.sequences} are"
            )
        reserved = sum(lane.buffer_bytes for lane in self._lanes)
        return self._budget.check_lane(spec, flash_attention=flash_attention, reserved=reserved)

    @property
    def _on_gpu(self) -> bool:
        return self._settings.gpu_layers != 0

    def _checked_budget(self, files: ModelFiles) -> Budget:
        """The memory there is. Raises UsageError where the model cannot fit, or not with such a KV cache.

        What goes to a GPU needs memory that nothing here can count: there llama.cpp itself tells what does not fit.
        """
        device = detect_device()
        need = MemoryNeed(files.header, self._settings)
        if self._settings.kv_type in QUANTISED_KV and any(size % KV_BLOCK for size in need.shape.head_sizes):
            raise UsageError(
                f"kv_type={self._settings.kv_type} needs heads of a multiple of {KV_BLOCK} numbers, "
                f"{files.first.name} has {max(need.shape.head_sizes)}: use f16 or bf16"
            )
        budget = Budget(need, lambda: None if self._on_gpu else device.memory().available)
        budget.check_model(files.first)
        return budget

    def _sha256(self) -> str | list[str]:
        """The hash of the model's file, or of each of its parts."""
        hashes = [file_sha256(path, cache_directory() / "sha256.json") for path in self._model.files.paths]
        return hashes[0] if len(hashes) == 1 else hashes

    def _say(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)

    def _sampler(self, sampling: Sampling) -> Sampler:
        pieces = None if sampling.grammar is None else self._llama_tokenizer.pieces
        return Sampler(sampling, self.tokenizer.vocabulary, self._end_tokens, pieces)

    def _probe(self) -> None:
        """Measure, and enter what was found. With flash attention on everywhere decodes have one thread count."""
        beside = self._options.cpus if self.capabilities.lanes > 1 else ()
        self._probed = found = probe(self, self._open, self._most_threads, beside)
        times = found.decode_s_by_threads
        if self._settings.flash_attention:
            times = {found.decode_threads: times[found.decode_threads]}
        self.capabilities = dataclasses.replace(
            self.capabilities,
            decode_threads=found.decode_threads,
            prefill_threads=found.prefill_threads,
            decode_s_by_threads=times,
            decodes_s=found.decodes_s,
            decode_s_per_cell=found.decode_s_per_cell,
            stretch_beside=found.stretch_beside,
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
            lanes=1 if self._on_gpu else 2,
            batched=True,
            depth=1,
            sequences=int(library().llama_max_parallel_sequences()) - 1,
            context=MOST_CELLS,
            sequence_context=self._model.trained_context,
            largest_step=LARGEST_STEP,
            ubatch=UBATCH,
            tile=16,
            min_chunk=8 if exact else 1,
            interruptible=Interruptible.CALLS if self._on_gpu else Interruptible.NODES,
            fork=not (exact or recurrent),
            save=not (exact or recurrent or windowed),
            rollback=Rollback.NONE if recurrent else Rollback.WINDOW if windowed else Rollback.ANY,
            pooling=self._model.pooling,
            outputs=MOST_OUTPUTS,
            schedule_invariant=exact,
            decode_threads=decode_threads,
            prefill_threads=self._most_threads,
            decode_s_by_threads={},
            decodes_s={},
            decode_s_per_cell={},
            stretch_beside={},
            threads_invariant=True,
            prefill_tokens_per_s=None,
            priority="none" if self._on_gpu else self._priority.name,
            priority_effective=None,
        )
