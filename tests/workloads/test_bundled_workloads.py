"""The bundled workloads load, and the paper's are the paper's."""

from __future__ import annotations

import pytest

from dlfp_edge.experiment.workload import load_workload, workload_names
from dlfp_edge.task import Class

EXPECTED = {
    "agent",
    "chat",
    "chat-ingest",
    "decode-heavy",
    "conversations",
    "agent-branches",
    "bursts",
    "light-load",
    "demo",
    "ingest-summary",
    "rag",
    "rag-matching",
    "single-session",
    "two-chats",
}


def test_all_are_there() -> None:
    assert set(workload_names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_loads_under_its_own_name(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.description
    assert workload.of_class(Class.FOREGROUND)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("chat", 1024, 128), ("rag", 8192, 256), ("agent", 16384, 256), ("decode-heavy", 256, 1024)],
)
def test_the_papers_workloads(name: str, prompt: int, output: int) -> None:
    (stream,) = load_workload(name).streams
    assert (stream.prompt_tokens, stream.max_tokens) == (prompt, output)
    assert (stream.rate, stream.requests, stream.temperature) == (1.0, 100, 0.0)


def test_background_never_runs_dry_beside_the_chat() -> None:
    chat, ingest = load_workload("chat-ingest").streams
    assert (chat.prompt_tokens, chat.max_tokens) == (64, 128)
    assert (ingest.prompt_tokens, ingest.max_tokens, ingest.clients, ingest.requests) == (1500, 8, 2, None)


def test_the_texts_of_the_demo_are_bundled() -> None:
    workload = load_workload("demo")
    for stream in workload.streams:
        assert len(stream.texts) == stream.requests
        assert all(workload.text(stream, name).strip() for name in stream.texts)
