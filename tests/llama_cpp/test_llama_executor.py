"""The thread that decodes at idle priority and runs no Python."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import pytest

from dlfp_edge.runtimes.llama_cpp import executor

pytestmark = pytest.mark.skipif(not executor.idle_executor_supported(), reason="needs glibc on x86-64 or AArch64")


def test_many_calls_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the thread leaves behind in one call must not be in the way of the next."""
    total = ctypes.c_int(0)
    source, target = ctypes.create_string_buffer(b"words", 16), ctypes.create_string_buffer(16)

    def copy(_context: Any, _batch: Any) -> tuple[Any, tuple[int, ...]]:
        return executor.libc().strcpy, (ctypes.addressof(target), ctypes.addressof(source))

    monkeypatch.setattr(executor, "_decode_call", copy)
    runner = executor.IdleExecutor()
    for number in range(2000):
        source.value = str(number).encode()
        runner.run(None, None)
        total.value += target.value == source.value
    runner.close()
    assert total.value == 2000


def test_the_thread_is_another_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/task"))
    runner = executor.IdleExecutor()
    (made,) = set(os.listdir("/proc/self/task")) - before
    assert int(made) not in {thread.native_id for thread in threading.enumerate()}
    runner.close()
    assert made not in os.listdir("/proc/self/task")
