"""The few things every other module here needs from llama.cpp's shared library and from libc.

llama.cpp is reached through llama-cpp-python's low-level bindings, and only on first use: importing this package costs
nothing and needs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlfp_edge.errors import MissingExtra

KEPT_LOG_LINES = 50

_SPIN = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "30000"}
"""How long libgomp's threads look for their next work before they sleep.

With the threads of two lanes libgomp counts more threads than CPUs and lets them look 100 times, so that they sleep at
nearly every graph node: two threads then decode in 15 to 21 ms what takes them 13 in one lane (Gemma 3 270M on two
CPUs). `active` raises that to 1,000 times, which brings the 13 ms back and costs the background nothing. The second
count is for where CPUs are enough. By default it would be 300,000; a tenth of it takes no longer on a quiet machine
(13 to 14 ms), and beside another program on each CPU, where looking keeps out the thread that is waited for, two-thread
decodes took 25 to 26 ms instead of 30 to 51, the slowest of 40 33 to 147 instead of 196 to 208.
"""


@functools.cache
def library() -> Any:
    """The module of low-level bindings, with llama.cpp initialised and silent. Raises MissingExtra."""
    try:
        with _spinning():
            importlib.import_module("llama_cpp")
        api = importlib.import_module("llama_cpp.llama_cpp")
    except ImportError as error:
        raise MissingExtra(
            "the llama_cpp runtime needs llama-cpp-python: run  pip install 'dlfp-edge[llama-cpp]'"
        ) from error
    api.llama_log_set(_silent_log(api), None)
    api.llama_backend_init()
    return api


def has_amx() -> bool:
    """Whether llama.cpp was built with AMX kernels for a CPU that has them."""
    return "AMX_INT8 = 1" in library().llama_print_system_info().decode()


def version() -> str:
    """The version of llama-cpp-python."""
    return str(importlib.import_module("llama_cpp").__version__)


@functools.cache
def libc() -> Any:
    """The C library of this process."""
    return ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)


@contextmanager
def _spinning() -> Iterator[None]:
    """Say to libgomp, which reads the environment as it is loaded, how to wait; whoever set that already decides."""
    if not _uses_libgomp() or any(name in os.environ for name in _SPIN):
        yield
        return
    os.environ.update(_SPIN)
    try:
        yield
    finally:
        for name in _SPIN:
            del os.environ[name]


def _uses_libgomp() -> bool:
    """Whether llama.cpp was built on libgomp. Another OpenMP library would take `active` to mean for ever."""
    package = importlib.util.find_spec("llama_cpp")
    folders = package.submodule_search_locations if package else None
    libraries = Path(folders[0]).glob("lib/libggml-cpu*.so") if folders else ()
    return any(b"libgomp" in library.read_bytes() for library in libraries)


def _silent_log(api: Any) -> Any:
    """A log callback that does nothing and is no Python: libc's `abs` looks at the level and returns.

    A Python callback would take the GIL inside `llama_decode`, where the thread may be at idle priority.
    """
    return ctypes.cast(libc().abs, api.llama_log_callback)


@contextmanager
def collected_log() -> Iterator[deque[str]]:
    """Collect the last lines llama.cpp logs meanwhile. Only for loading, while no lane runs."""
    api = library()
    lines: deque[str] = deque(maxlen=KEPT_LOG_LINES)

    def keep(_level: int, text: bytes, _data: object) -> None:
        lines.append(text.decode("utf-8", "replace").rstrip())

    callback = api.llama_log_callback(keep)
    api.llama_log_set(callback, None)
    try:
        yield lines
    finally:
        api.llama_log_set(_silent_log(api), None)


class AbortFlag:
    """A flag that `llama_decode` reads between graph nodes.

    The callback is libc's `strlen` over two bytes, so reading the flag costs nothing and needs no GIL: an empty string
    has length 0 (go on), a string of one byte length 1 (abort).
    """

    def __init__(self, context: Any) -> None:
        api = library()
        self._bytes = ctypes.create_string_buffer(2)
        self._callback = ctypes.cast(libc().strlen, api.ggml_abort_callback)
        api.llama_set_abort_callback(context, self._callback, self._bytes)

    def set(self) -> None:
        """Ask the running decode to stop."""
        self._bytes[0] = b"\1"

    def clear(self) -> None:
        """Let decodes run."""
        self._bytes[0] = b"\0"
