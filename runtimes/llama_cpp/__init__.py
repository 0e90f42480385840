"""llama.cpp as a runtime, through llama-cpp-python's low-level bindings: the entry point `llama_cpp`."""

from __future__ import annotations

from pathlib import Path

from dlfp_edge.model_reference import HubModel
from dlfp_edge.runtime import LoadOptions, Runtime, Tell


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

    def default_model(self) -> Path:
        """The small model of the `demo` extra, put together on first use. Raises MissingExtra."""
        from .model import default_model

        return default_model()

    def shapes(self) -> list[str]:
        """The shapes that `synthesize` knows."""
        from .synth import SHAPES

        return list(SHAPES)

    def quantisations(self) -> list[str]:
        """The quantisations that `synthesize` knows."""
        from .synth import QUANTS

        return list(QUANTS)

    def synthesize(self, shape: str, quant: str, out: Path, seed: int = 0) -> Path:
        """Write a model of a known shape with random weights; see `synth.synthesize`."""
        from .synth import synthesize

        return synthesize(shape, quant, out, seed)


provider = LlamaCppProvider()
