"""Background work gets on beside a foreground that never stops asking and could fill every KV cell by itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Sampling
from dlfp_edge.runtimes.simulated import MODES, Mode, SimulatedRuntime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, TaskSpec

CASES: dict[str, Mode] = {
    "batched": MODES["batched"],
    "cannot save": replace(MODES["batched"], save=False),
    "sequential": MODES["sequential"],
    "depth2": MODES["depth2"],
    "fragile": MODES["fragile"],
}


class Chain:
    """Readers who ask again as soon as they have been answered."""

    def __init__(self, engine: Engine, random: Random, prompt: int, output: int) -> None:
        self._engine, self._random = engine, random
        self._prompt, self._output = prompt, output
        self.asked: list[Task] = []
        self.broken = False

    def ask(self, _: object = None) -> None:
        if self.broken:
            return
        prompt = self._random.randint(self._prompt // 2, self._prompt)
        output = self._random.randint(self._output // 2, self._output)
        self.asked.append(
            self._engine.submit(_spec(self._random, Class.FOREGROUND, prompt, output), on_finish=self.ask)
        )


def _spec(random: Random, task_class: Class, prompt: int, output: int) -> TaskSpec:
    tokens = tuple(random.randrange(250) for _ in range(prompt))
    return TaskSpec(tokens, task_class, output, Sampling(ignore_eos=True))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 2**16), begun=st.booleans(), readers=st.integers(2, 8))
def test_a_document_is_read_beside_an_endless_chain_of_readers(case: str, seed: int, begun: bool, readers: int) -> None:
    random = Random(seed)
    engine = Engine(SimulatedRuntime(mode=CASES[case], seed=seed), Settings(placement=Placement.SHARED, context=2000))
    chain = Chain(engine, random, random.choice([100, 500, 900]), random.choice([100, 400, 900]))
    paper = _spec(random, Class.BACKGROUND, random.randint(300, 1500), random.randint(10, 300))
    task = engine.submit(paper) if begun else None
    engine.run_until(lambda: engine.clock.now() > 0.1)
    for _ in range(readers):
        chain.ask()
    engine.run_until(lambda: engine.clock.now() > 5.0)
    task = task or engine.submit(paper)
    engine.run_until(lambda: task.done or engine.clock.now() > 400.0)
    assert task.record.finish is Finish.LENGTH, f"paused {task.record.pauses} times, {engine.snapshot()}"
    chain.broken = True
    engine.run_until(lambda: False)
    assert all(reader.record.finish is Finish.LENGTH for reader in chain.asked), "nobody is given up for it"
    engine.close()


def test_a_document_that_the_runtime_refuses_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(SimulatedRuntime(mode="batched"), Settings(placement=Placement.SHARED, context=1000))
    random = Random(1)
    first = engine.submit(_spec(random, Class.FOREGROUND, 100, 890))
    engine.run_until(lambda: bool(first.record.output_token_ids))
    paper = engine.submit(_spec(random, Class.BACKGROUND, 900, 5))
    engine.run_until(lambda: engine.clock.now() > 11.0)
    second = engine.submit(_spec(random, Class.FOREGROUND, 900, 5))

    def refuse_once(*_: object) -> None:
        monkeypatch.undo()
        raise ValueError("not today")

    monkeypatch.setattr(engine._lanes.background.lane, "open", refuse_once)
    engine.run_until(lambda: first.done and engine.clock.now() > 30.0)
    assert paper.record.finish is Finish.ERROR
    assert second.record.finish is Finish.LENGTH
    engine.close()
