"""The load client on a target with virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from dlfp_edge.errors import QueueFull, UsageError
from dlfp_edge.experiment.client import RETRY_S, StreamClient
from dlfp_edge.experiment.prompts import Prompt, arrival_times
from dlfp_edge.experiment.workload import Stream
from dlfp_edge.task import Class, Finish

from .fake_target import FakeTarget, Journal


def stream(**changes: Any) -> Stream:
    """A closed loop of one client, changed as asked."""
    table: dict[str, Any] = {"name": "s", "class": "foreground", "clients": 1, "prompt_tokens": 4, "max_tokens": 2}
    table.update(changes)
    return Stream.model_validate({key: value for key, value in table.items() if value is not None})


def client(target: FakeTarget, journal: Journal, **changes: Any) -> StreamClient:
    def prompts(number: int, index: int) -> Prompt:
        return Prompt((number, index, 0, 0), 0)

    result = StreamClient(target, stream(**changes), prompts, journal, seed=5)
    result.start(0.0)
    return result


def test_a_closed_loop_waits_for_each_answer() -> None:
    target, journal = FakeTarget(service_s=1.0), Journal()
    client(target, journal)
    target.run(until=4.5)
    assert [record.arrived for record in journal.records] == [0.0, 1.0, 2.0, 3.0]
    assert [spec.label for spec in target.specs] == [f"s/0/{index}" for index in range(5)]


def test_think_time_and_start_are_kept() -> None:
    target, journal = FakeTarget(service_s=1.0), Journal()
    client(target, journal, think_s=2.0, start_s=0.5)
    target.run(until=8.0)
    assert [record.arrived for record in journal.records] == [0.5, 3.5, 6.5]


def test_clients_run_beside_each_other() -> None:
    target, journal = FakeTarget(), Journal()
    client(target, journal, clients=3)
    target.run(until=0.5)
    assert sorted(spec.prompt[0] for spec in target.specs) == [0, 1, 2]


@pytest.mark.parametrize(("clients", "requests"), [(1, 1), (1, 4), (2, 5), (3, 7), (4, 2)])
def test_a_limit_is_kept_and_dealt_out(clients: int, requests: int) -> None:
    target, journal = FakeTarget(), Journal()
    loop = client(target, journal, clients=clients, requests=requests)
    target.run(until=100.0)
    assert len(journal.records) == requests
    shares = [sum(spec.prompt[0] == number for spec in target.specs) for number in range(clients)]
    assert max(shares) - min(shares) <= 1
    assert loop.done()


def test_open_loop_counts_latency_from_the_scheduled_arrival() -> None:
    target, journal = FakeTarget(service_s=3.0), Journal()
    loop = client(target, journal, clients=None, rate=1.0, requests=10)
    assert not loop.done()
    target.run(until=100.0)
    times = arrival_times(loop.stream, seed=5)
    assert [record.arrived for record in journal.records] == pytest.approx(times)
    assert loop.done()


def test_a_full_queue_is_a_failed_record_and_is_tried_again_later() -> None:
    target, journal = FakeTarget(refusals=[QueueFull("full"), None]), Journal()
    client(target, journal)
    target.run(until=1.5)
    refused, served = journal.records
    assert (refused.failed, refused.error, refused.finish) == (True, "full", Finish.ERROR)
    assert served.arrived == pytest.approx(RETRY_S)


def test_an_open_loop_loses_no_refused_request() -> None:
    target, journal = FakeTarget(refusals=[QueueFull("full")] * 3), Journal()
    loop = client(target, journal, clients=None, rate=10.0, requests=8)
    target.run(until=100.0)
    assert [record.failed for record in journal.records].count(True) == 3
    assert len(journal.records) == 8
    assert loop.done()


def test_failed_requests_are_not_hammered() -> None:
    target, journal = FakeTarget(service_s=0.0, finish=Finish.ERROR), Journal()
    client(target, journal)
    target.run(until=1.0)
    assert len(journal.records) <= 1.0 / RETRY_S + 1


def test_a_prompt_that_cannot_run_ends_the_client() -> None:
    target, journal = FakeTarget(refusals=[UsageError("too long")]), Journal()
    client(target, journal)
    target.run(until=5.0)
    assert [str(error) for error in journal.errors] == ["too long"]
    assert target.specs == []


def test_stop_lets_the_answer_finish_and_sends_no_other() -> None:
    target, journal = FakeTarget(), Journal()
    loop = client(target, journal, clients=2)
    target.run(until=0.5)
    loop.stop()
    assert not loop.done()
    target.run(until=10.0)
    assert len(journal.records) == 2
    assert loop.done()


def test_stop_drops_arrivals_to_come() -> None:
    target, journal = FakeTarget(service_s=0.1), Journal()
    loop = client(target, journal, clients=None, rate=1.0, requests=20)
    target.run(until=5.0)
    loop.stop()
    sent = len(target.specs)
    target.run(until=100.0)
    assert len(target.specs) == sent
    assert loop.done()


def test_cancel_ends_what_is_under_way() -> None:
    target, journal = FakeTarget(service_s=50.0), Journal()
    loop = client(target, journal)
    target.run(until=1.0)
    loop.stop()
    loop.cancel()
    assert [record.finish for record in journal.records] == [Finish.CANCELLED]
    assert loop.idle


def test_a_task_is_asked_for_as_the_stream_says() -> None:
    target, journal = FakeTarget(), Journal()
    client(target, journal, pace=12.0, deadline_s=30.0, temperature=0.5, **{"class": "background"})
    target.run(until=0.5)
    spec = target.specs[0]
    assert (spec.task_class, spec.max_tokens, spec.pace, spec.deadline_s) == (Class.BACKGROUND, 2, 12.0, 30.0)
    assert (spec.sampling.temperature, spec.sampling.ignore_eos) == (0.5, True)
