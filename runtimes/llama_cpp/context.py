"""One `llama_context`: a KV cache over the weights, and the calls a lane makes on it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlfp_edge.errors import RuntimeFailure, UsageError
from dlfp_edge.runtime import LaneSpec

from .draws import Logits
from .library import AbortFlag, library

UBATCH = 512
LARGEST_STEP = 2048
MOST_OUTPUTS = 64
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
"""llama.cpp's numbers of the types its KV cache can have."""

KV_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
"""Bytes a number takes in each."""

KV_BLOCK = 32
"""Numbers of a quantised type that share a scale."""

QUANTISED_KV = frozenset(KV_TYPES) - {"f32", "f16", "bf16"}
ALL_LAYERS = -1


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What every context of a runtime has in common.

    `exact` trades speed for output that does not depend on the schedule; `kv_type` is a key of `KV_TYPES`.
    `flash_attention` None leaves it to each lane. `windowed` keeps of layers with a sliding window only what is in it.
    `gpu_layers` run on a GPU, `ALL_LAYERS` for all of them.
    """

    exact: bool
    kv_type: str
    flash_attention: bool | None
    windowed: bool = False
    gpu_layers: int = 0


def flash_attention(settings: ContextSettings, spec: LaneSpec) -> bool:
    """Whether a lane decodes with flash attention: where nothing says so, unless its words must not hang on threads."""
    return not spec.threads_invariant if settings.flash_attention is None else settings.flash_attention


@dataclass(frozen=True, slots=True)
class Saved:
    """KV cells of one sequence as llama.cpp writes them."""

    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.data.nbytes


def keeps_whole_sequences_only(model: Any) -> bool:
    """Whether the model has a recurrent state, of which no part can be dropped."""
    api = library()
    return bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))


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
        # One more than the lane's, to copy a part of a sequence through; with a stream each there are no parts.
        self._spare = sequences
        params.n_seq_max = sequences + (not settings.exact)
        params.n_outputs_max = MOST_OUTPUTS + sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.swa_full = not settings.windowed
        params.kv_unified = not settings.exact
        params.op_offload = params.offload_kqv = settings.gpu_layers != 0
        params.no_perf = True
        self.pointer = api.llama_init_from_model(model, params)
        if not self.pointer:
            raise UsageError(
                f"no context of {cells} KV cells for {sequences} sequences: not enough memory, ask for less"
            )
        self._memory = api.llama_get_memory(self.pointer)
        self._vocabulary: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self._threads = threads
        self._embeds = False
        self._width: int = api.llama_model_n_embd(model)
        self._window: int = api.llama_model_n_swa(model) if settings.windowed else 0
        self._whole_only = keeps_whole_sequences_only(model)
        self.flash_attention = flash_attention
        self.abort = AbortFlag(self.pointer)

    def use_threads(self, threads: int) -> None:
        """Run the next decodes on this many threads, whatever their width."""
        if threads != self._threads:
            self._api.llama_set_n_threads(self.pointer, threads, threads)
            self._threads = threads

    def give_embeddings(self, wanted: bool) -> None:
        """Whether the next decodes are to give hidden states."""
        if wanted != self._embeds:
            self._api.llama_set_embeddings(self.pointer, wanted)
            self._embeds = wanted

    def hidden(self, row: int) -> Logits:
        """The final hidden state of a row of the last batch, in llama.cpp's own memory."""
        pointer = self._api.llama_get_embeddings_ith(self.pointer, row)
        return np.ctypeslib.as_array(pointer, (self._width,))

    def synchronize(self) -> None:
        """Wait until the device has finished what was given to it; on a CPU it always has."""
        self._api.llama_synchronize(self.pointer)

    def length(self, sequence: int) -> int:
        """Cells the sequence holds in the cache."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def keeps(self, sequence: int, length: int) -> bool:
        """Whether nothing is missing of the first `length` cells that what follows them would look at."""
        if not length or length >= self.length(sequence):
            return True
        if self._whole_only or not self._window:
            return not self._whole_only
        first = int(self._api.llama_memory_seq_pos_min(self._memory, sequence))
        return 0 <= first <= max(0, length - self._window)

    def truncate(self, sequence: int, length: int) -> bool:
        """Keep the first `length` cells; False where this cache cannot drop a part of a sequence."""
        if not self.keeps(sequence, length):
            return False
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def clear(self, sequence: int) -> None:
        """Drop everything a sequence holds."""
        self._api.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def share(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` cells of `source` too."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def copy_out(self, sequence: int, start: int, end: int) -> Saved:
        """The cells [start, end) of a sequence in memory of their own.

        llama.cpp writes out whole sequences, so the part becomes one for a moment. That moves nothing.
        """
        self._api.llama_memory_seq_cp(self._memory, sequence, self._spare, start, end)
        try:
            data = np.empty(self._api.llama_state_seq_get_size(self.pointer, self._spare), np.uint8)
            written = self._api.llama_state_seq_get_data(self.pointer, _bytes(data), data.nbytes, self._spare)
        finally:
            self.clear(self._spare)
        if written != data.nbytes:
            raise RuntimeFailure(f"llama.cpp wrote {written} of {data.nbytes} bytes of a sequence's state")
        return Saved(data)

    def copy_in(self, sequence: int, start: int, end: int, saved: Saved) -> bool:
        """Put copied cells at the end of a sequence; False where llama.cpp finds no room for them."""
        read = self._api.llama_state_seq_set_data(self.pointer, _bytes(saved.data), saved.nbytes, self._spare)
        if read:
            self._api.llama_memory_seq_cp(self._memory, self._spare, sequence, start, end)
        self.clear(self._spare)
        return bool(read)

    def logits(self, row: int) -> Logits:
        """The logits of a row of the last batch, in llama.cpp's own memory."""
        pointer = self._api.llama_get_logits_ith(self.pointer, row)
        return np.ctypeslib.as_array(pointer, (self._vocabulary,))

    def close(self) -> None:
        """Free the context."""
        self._api.llama_free(self.pointer)


def _bytes(data: npt.NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
