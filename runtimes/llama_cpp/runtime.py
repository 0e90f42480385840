"""One model and the lanes over it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import numpy as np

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import (
    Capabilities,
    Interruptible,
    Lane,
    LaneSpec,
    LoadOptions,
    Sampling,
    StepResult,
    Tokenizer,
)

from .context import KV_TYPES, LARGEST_STEP, UBATCH, Context, ContextSettings
from .lane import LlamaLane
from .library import library, version
from .mailbox import Mailbox
from .model import Model, default_model
from .priority import system_priority
from .sampler import Sampler, make_sampler
from .tokens import LlamaTokenizer
from .workers import Workers

OPTIONS = ("probe", "kv_type", "flash_attention")
INSIST_S = 0.005


class LlamaRuntime:
    """The `Runtime` over llama.cpp. See `dlfp_edge.runtime.Runtime` for what its methods promise."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._settings = context_settings(options)
        if options.cpu_limit < 1 or (options.threads is not None and options.threads < 1):
            raise UsageError(f"{options.threads} threads; give at least 1")
        self.clock: Clock = SystemClock()
        self.messages: list[str] = []
        self._model = Model(options.model or default_model(), options.exact)
        self._mailbox = Mailbox(self.clock)
        self._priority = system_priority()
        self._lanes: list[LlamaLane] = []
        tokenizer = LlamaTokenizer(self._model.vocab, str(self._model.path))
        self.tokenizer: Tokenizer = tokenizer
        self._end_tokens = np.array(tokenizer.end_tokens(), np.intp)
        self.capabilities = self._capabilities()

    def open_lane(self, spec: LaneSpec) -> Lane:
        limit = spec.context // spec.sequences if self._settings.exact else spec.context
        context = Context(self._model.pointer, self._settings, spec.sequences, spec.context, self._threads())
        workers = Workers(spec.priority, self._priority, self._options.cpus, spec.cores)
        lane = LlamaLane(
            spec,
            context,
            workers,
            self._sampler,
            self._mailbox,
            self.clock,
            min(limit, self._model.trained_context),
            self.tokenizer.vocabulary,
        )
        self._lanes.append(lane)
        return lane

    def wait(self, until: float | None) -> list[StepResult]:
        return self._mailbox.take(until)

    def wake(self) -> None:
        self._mailbox.wake()

    def describe(self) -> dict[str, Any]:
        return {
            "runtime": "llama_cpp",
            "llama_cpp_python": version(),
            "system_info": library().llama_print_system_info().decode(),
            "model": self._model.describe(),
            "exact": self._settings.exact,
            "kv_type": self._settings.kv_type,
            "flash_attention": self._settings.flash_attention,
            "decode_threads": self.capabilities.decode_threads,
            "prefill_threads": self.capabilities.prefill_threads,
            "lanes": {lane.spec.name: lane.workers.describe() for lane in self._lanes},
            "messages": list(self.messages),
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.shut()
        self._lanes.clear()
        self._model.close()

    def _sampler(self, sampling: Sampling) -> Sampler:
        return make_sampler(sampling, self.tokenizer.vocabulary, self._end_tokens)

    def _threads(self) -> int:
        return self._options.threads or self._options.cpu_limit

    def _capabilities(self) -> Capabilities:
        exact = self._settings.exact
        return Capabilities(
            lanes=2,
            batched=True,
            depth=1,
            sequences=int(library().llama_max_parallel_sequences()),
            context=1 << 20,
            sequence_context=self._model.trained_context,
            largest_step=LARGEST_STEP,
            ubatch=UBATCH,
            tile=16,
            min_chunk=8 if exact else 1,
            interruptible=Interruptible.NODES,
            fork=not exact,
            schedule_invariant=exact,
            decode_threads=max(1, self._threads() // 2),
            prefill_threads=self._threads(),
            decode_s=None,
            solo_threads=max(1, self._threads() // 2),
            best_decode_s=None,
            threads_invariant=not self._settings.flash_attention,
            prefill_tokens_per_s=None,
            priority=self._priority.name,
            priority_effective=None,
        )


def context_settings(options: LoadOptions) -> ContextSettings:
    """The settings of every context. Raises UsageError for options that are unknown or contradict each other."""
    for key in options.options:
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(OPTIONS)}"
            raise UsageError(f"the llama_cpp runtime has no option '{key}'; {hint}")
    kv_type = options.options.get("kv_type", "f32" if options.exact else "f16")
    if kv_type not in KV_TYPES:
        raise UsageError(f"kv_type '{kv_type}' is not known; use one of {', '.join(KV_TYPES)}")
    if options.exact and kv_type != "f32":
        raise UsageError(f"exact output needs kv_type f32, not {kv_type}; leave one of the two out")
    return ContextSettings(options.exact, kv_type, kv_type == "q8_0")


def model_path(options: LoadOptions) -> Path:
    """The model to load."""
    return options.model or default_model()
