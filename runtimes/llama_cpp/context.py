"""One `llama_context`: a KV cache over the weights, and the calls a lane makes on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dlfp_edge.errors import UsageError

from .library import AbortFlag, library
from .sampler import Logits

UBATCH = 512
LARGEST_STEP = 2048
MOST_OUTPUTS = 64
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What every context of a runtime has in common.

    `exact` trades speed for output that does not depend on the schedule; `kv_type` is a key of `KV_TYPES`.
    `flash_attention` None leaves it to each lane.
    """

    exact: bool
    kv_type: str
    flash_attention: bool | None


class Context:
    """A context for `sequences` sequences that share `cells` KV cells (exact: each has an equal part of them)."""

    def __init__(
        self,
        model: Any,
        settings: ContextSettings,
        sequences: int,
        cells: int,
        threads: int,
        *,
        flash_attention: bool,
    ) -> None:
        api = library()
        self._api = api
        params = api.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = min(cells, LARGEST_STEP)
        params.n_ubatch = min(cells, UBATCH)
        params.n_seq_max = sequences
        params.n_outputs_max = MOST_OUTPUTS + sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.swa_full = True
        params.kv_unified = not settings.exact
        params.no_perf = True
        self.pointer = api.llama_init_from_model(model, params)
        if not self.pointer:
            raise UsageError(
                f"no context of {cells} KV cells for {sequences} sequences: not enough memory, ask for less"
            )
        self._memory = api.llama_get_memory(self.pointer)
        self._vocabulary: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self._threads = threads
        self.flash_attention = flash_attention
        self.abort = AbortFlag(self.pointer)

    def use_threads(self, threads: int) -> None:
        """Run the next decodes on this many threads, whatever their width."""
        if threads != self._threads:
            self._api.llama_set_n_threads(self.pointer, threads, threads)
            self._threads = threads

    def length(self, sequence: int) -> int:
        """Cells the sequence holds in the cache."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def truncate(self, sequence: int, length: int) -> bool:
        """Keep the first `length` cells; False where this cache cannot drop a part of a sequence."""
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def clear(self, sequence: int) -> None:
        """Drop everything a sequence holds."""
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def share(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` cells of `source` too."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def logits(self, row: int) -> Logits:
        """The logits of a row of the last batch, in llama.cpp's own memory."""
        pointer = self._api.llama_get_logits_ith(self.pointer, row)
        return np.ctypeslib.as_array(pointer, (self._vocabulary,))

    def close(self) -> None:
        """Free the context."""
        self._api.llama_free(self.pointer)
