"""Who calls `llama_decode`: the driver itself, or a thread of its own that is at idle priority for good.

A thread at idle priority must not hold anything others wait for, Python's GIL above all: preempted while holding it, it
stops the whole process until the system next has an idle moment. ctypes takes the GIL again as soon as a call returns,
so a Python thread cannot lower itself around `llama_decode` without such a window, and where raising priority again is
not permitted it could never come back.

`IdleExecutor` is therefore a thread that never runs Python. It is a `pthread` that walks rings of three prepared
contexts (`makecontext`): wait for a semaphore, call `llama_decode`, post another semaphore, and so on.
The driver, always at normal priority, writes the arguments, posts the first semaphore and waits for the second.
llama.cpp's OpenMP workers belong to the thread that calls it and inherit its priority. The return value of
`llama_decode` is lost on this way; what the KV cache holds afterwards says the same.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .library import libc, library

_SMALL_STACK, _LARGE_STACK = 64 << 10, 8 << 20
_CONTEXT_BYTES = 8192
_SEMAPHORE_BYTES = 64
_LINK_OFFSET, _STACK_OFFSET, _STACK_SIZE_OFFSET = 8, 16, 32


class Executor(Protocol):
    """Runs decodes one after another, each to its end."""

    def run(self, context: Any, batch: Any) -> None:
        """Call `llama_decode` and return when it has returned."""
        ...

    def close(self) -> None:
        """Release the thread, if there is one."""
        ...


class DirectExecutor:
    """Calls `llama_decode` in the thread that asks."""

    def __init__(self) -> None:
        self._decode = library().llama_decode

    def run(self, context: Any, batch: Any) -> None:
        self._decode(context, batch)

    def close(self) -> None:
        """Nothing to release."""


def idle_executor_supported() -> bool:
    """Whether this system's calling convention and C library are those `IdleExecutor` knows."""
    known = platform.machine() in ("x86_64", "aarch64") and sys.maxsize > 2**32
    return sys.platform == "linux" and known and hasattr(libc(), "makecontext")


class IdleExecutor:
    """Calls `llama_decode` in a thread that runs no Python. Used from one thread only."""

    def __init__(self) -> None:
        self._libc = libc()
        self._begin, self._done = self._semaphore(), self._semaphore()
        # Two rings take turns: when the driver hears that a call is done, the thread is still on its way out of it.
        self._rings = (_Ring(), _Ring())
        self._turn = 0
        self._thread = ctypes.c_ulong()
        first = self._rings[0]
        with _signals_blocked():
            first.wait.prepare(self._libc.sem_wait, (_address(self._begin),), first.call)
            start = ctypes.c_void_p(first.wait.address)
            failed = self._libc.pthread_create(ctypes.byref(self._thread), None, self._libc.setcontext, start)
        if failed:
            raise OSError(failed, "pthread_create")

    def run(self, context: Any, batch: Any) -> None:
        ring, self._turn = self._rings[self._turn], 1 - self._turn
        following = self._rings[self._turn]
        function, arguments = _decode_call(context, batch)
        with _signals_blocked():
            ring.call.prepare(function, arguments, ring.report)
            ring.report.prepare(self._libc.sem_post, (_address(self._done),), following.wait)
            following.wait.prepare(self._libc.sem_wait, (_address(self._begin),), following.call)
        self._libc.sem_post(self._begin)
        while self._libc.sem_wait(self._done):
            """A signal came; wait on."""

    def close(self) -> None:
        """End the thread, and with it llama.cpp's workers for it."""
        self._rings[self._turn].call.prepare(self._libc.pthread_exit, (0,), None)
        self._libc.sem_post(self._begin)
        self._libc.pthread_join(self._thread, None)

    def _semaphore(self) -> Any:
        semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(semaphore, 0, 0)
        return semaphore


class _Ring:
    """The three calls of one turn: wait to begin, the call asked for, report that it is done."""

    def __init__(self) -> None:
        self.wait = _PreparedCall(_SMALL_STACK)
        self.call = _PreparedCall(_LARGE_STACK)
        self.report = _PreparedCall(_SMALL_STACK)


class _PreparedCall:
    """A `ucontext_t` that calls one C function with integer or pointer arguments and then goes on to another."""

    def __init__(self, stack_bytes: int) -> None:
        self._memory = mmap.mmap(-1, _CONTEXT_BYTES)
        self._stack = mmap.mmap(-1, stack_bytes)
        self.address = _address(ctypes.c_char.from_buffer(self._memory))
        self._stack_address = _address(ctypes.c_char.from_buffer(self._stack))

    def prepare(self, function: Any, arguments: tuple[int, ...], following: _PreparedCall | None) -> None:
        here = ctypes.c_void_p(self.address)
        libc().getcontext(here)
        ctypes.c_size_t.from_address(self.address + _LINK_OFFSET).value = following.address if following else 0
        ctypes.c_size_t.from_address(self.address + _STACK_OFFSET).value = self._stack_address
        ctypes.c_size_t.from_address(self.address + _STACK_SIZE_OFFSET).value = len(self._stack)
        values = [ctypes.c_uint64(argument) for argument in arguments]
        libc().makecontext(here, function, ctypes.c_int(len(values)), *values)


def _decode_call(context: Any, batch: Any) -> tuple[Any, tuple[int, ...]]:
    """`llama_decode` and its arguments as machine words.

    The batch is passed by value. On x86-64 such a structure lies on the stack behind six registers; on AArch64 a
    pointer to it is passed.
    """
    size = ctypes.sizeof(batch)
    if platform.machine() == "aarch64":
        return library().llama_decode, (context, _address(batch))
    words = (ctypes.c_uint64 * (size // 8)).from_buffer(batch)
    return library().llama_decode, (context, 0, 0, 0, 0, 0, *words)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """What is prepared meanwhile runs with signals blocked: they are for threads that run Python."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _address(thing: Any) -> int:
    return ctypes.addressof(thing)
