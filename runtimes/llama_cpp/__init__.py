"""llama.cpp as a runtime, through llama-cpp-python's low-level bindings: the entry point `llama_cpp`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dlfp_edge.model_reference import HubModel
from dlfp_edge.runtime import LaneSpec, LoadOptions, Runtime, Tell, Tokenizer


class LlamaCppProvider:
    """Loads models for llama.cpp, and makes ones to measure with."""

    name = "llama_cpp"

    def load(self, options: LoadOptions) -> Runtime:
        """Load a GGUF model. Raises UsageError with one line that names the file and the mend."""
        from .runtime import LlamaRuntime

        return LlamaRuntime(options)

    def fetch(self, model: HubModel, tell: Tell | None = None) -> Path:
        """The file of a model on a hub, fetched unless it is here already; see `hub.fetch`."""
        from .hub import fetch

        return fetch(model, tell)

    def find_cached(self, model: HubModel) -> Path:
        """The file of a model that was fetched before. Raises UsageError."""
        from .hub import find_cached

        return find_cached(model)

    def cached_models(self) -> list[tuple[str, Path, int]]:
        """The reference, file and bytes of each model file in the hub's cache. Raises MissingExtra."""
        from .hub import cached_files

        return [(file.reference, file.path, file.size) for file in cached_files()]

    def inspect(self, options: LoadOptions, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
        """What a model is and needs, by its header; see `inspection.inspect`."""
        from .inspection import inspect

        return inspect(options, lanes)

    def expected_resident(self, options: LoadOptions, lanes: Sequence[LaneSpec], filled: int) -> tuple[int, int]:
        """Bytes resident once loaded, and with lanes in use; see `inspection.expected_resident`."""
        from .inspection import expected_resident

        return expected_resident(options, lanes, filled)

    @contextmanager
    def tokenizer(self, model: Path) -> Iterator[Tokenizer]:
        """The tokenizer of a GGUF file, whose weights stay where they are. Raises UsageError as `load`."""
        from .model import Model
        from .model_files import read_model_files
        from .tokens import LlamaTokenizer

        with (
            closing(Model(read_model_files(model), exact=False, gpu_layers=0, vocab_only=True)) as loaded,
            closing(LlamaTokenizer(loaded.vocab, str(model))) as tokenizer,
        ):
            yield tokenizer

    def default_model(self) -> Path:
        """The small model of the `demo` extra, put together on first use. Raises MissingExtra."""
        from .model import default_model

        return default_model()

    def shapes(self) -> dict[str, dict[str, int]]:
        """The shapes that `synthesize` knows, and the bytes of each in each quantisation."""
        from .mixture import QUANTS, weight_bytes
        from .shapes import SHAPES

        return {name: {quant: weight_bytes(shape, quant) for quant in QUANTS} for name, shape in SHAPES.items()}

    def synthesize(self, shape: str, quant: str, out: Path, seed: int = 0) -> Path:
        """Write a model of a known shape with random weights; see `synth.synthesize`."""
        from .synth import synthesize

        return synthesize(shape, quant, out, seed)


provider = LlamaCppProvider()
