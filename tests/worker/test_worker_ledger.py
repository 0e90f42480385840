"""What a worker's death makes of the tasks it had, for any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import Class, Finish
from dlfp_edge.handle import Task
from dlfp_edge.runtimes.simulated import ByteTokenizer
from dlfp_edge.task import TaskRecord, TaskSpec
from dlfp_edge.worker.ledger import Entry, Fate, Ledger

RUNNING = {Class.FOREGROUND: 2, Class.BACKGROUND: 3}


def entry(number: int, task_class: Class = Class.BACKGROUND) -> Entry:
    record = TaskRecord(f"t{number}", task_class, "", 1, 0.0)
    return Entry(number, Task(TaskSpec((1,), task_class), record, ByteTokenizer(), lambda task: None, None, None))


def send(ledger: Ledger) -> list[Entry]:
    sent = ledger.to_send()
    for each in sent:
        assert not each.sent, "nothing goes there twice"
        ledger.sent(each)
    return sent


def test_everything_goes_to_the_worker_in_order() -> None:
    ledger, entries = Ledger(RUNNING), [entry(0), entry(1, Class.FOREGROUND), entry(2)]
    for each in entries:
        ledger.add(each)
    assert send(ledger) == entries
    assert send(ledger) == []


def test_after_a_death_suspects_go_first_and_alone_while_fresh_answers_go_beside() -> None:
    ledger, entries = Ledger(RUNNING), [entry(number) for number in range(5)]
    for each in entries:
        ledger.add(each)
    send(ledger)
    assert {fate for _, fate in ledger.died(outside=False)} == {Fate.AGAIN}
    chat = entry(9, Class.FOREGROUND)
    ledger.add(chat)
    assert send(ledger) == [entries[0], chat]
    ledger.remove(entries[0])
    assert send(ledger) == [entries[1]]
    ledger.remove(entries[1])
    assert send(ledger) == [entries[2]]
    ledger.remove(entries[2])
    assert send(ledger) == entries[3:], "those that could not have run are no suspects"


def complete(ledger: Ledger, each: Entry) -> None:
    each.task.record.finish = Finish.LENGTH
    ledger.remove(each)


def test_once_some_suspects_have_completed_the_others_go_together() -> None:
    ledger, entries = Ledger({Class.BACKGROUND: 8}), [entry(number) for number in range(10)]
    for each in entries:
        ledger.add(each)
    send(ledger)
    ledger.died(outside=False)
    for each in entries[:3]:
        assert send(ledger) == [each]
        complete(ledger, each)
    assert send(ledger) == entries[3:]
    assert {fate for _, fate in ledger.died(outside=False)} == {Fate.AGAIN}, "nobody was alone, so nobody is blamed"
    for each in entries[3:]:
        assert send(ledger) == [each], "one of them kills after all"
        complete(ledger, each)


@pytest.mark.parametrize(
    ("shown", "cancelled", "fate"),
    [(False, False, Fate.AGAIN), (True, False, Fate.LOST), (True, True, Fate.CANCELLED), (False, True, Fate.CANCELLED)],
)
def test_an_answer_under_way_is_lost_and_one_not_begun_is_not(shown: bool, cancelled: bool, fate: Fate) -> None:
    ledger, chat = Ledger(RUNNING), entry(0, Class.FOREGROUND)
    ledger.add(chat)
    send(ledger)
    chat.cancelled = cancelled
    chat.task.record.shown_times += [1.0] * shown
    assert ledger.died(outside=False) == [(chat, fate)]


@settings(max_examples=200)
@given(classes=st.lists(st.sampled_from(Class), min_size=1, max_size=12), poison=st.integers(0, 11), turns=st.data())
def test_a_task_that_kills_is_found_and_nobody_else_is_blamed(
    classes: list[Class], poison: int, turns: st.DataObject
) -> None:
    ended, deaths = run_all(classes, {poison}, turns)
    assert {number for number, blamed in ended.items() if blamed} == {poison} & set(ended)
    assert deaths in ((3, 4) if poison < len(classes) else (0,))


def test_somebody_who_kills_must_do_so_more_often() -> None:
    ledger, document = Ledger(RUNNING), entry(0)
    ledger.add(document)
    fates = []
    for _ in range(6):
        send(ledger)
        fates += [fate for _, fate in ledger.died(outside=True)]
    assert fates == [Fate.AGAIN] * 5 + [Fate.BLAMED]


@settings(max_examples=200)
@given(
    classes=st.lists(st.sampled_from(Class), min_size=1, max_size=12),
    poison=st.sets(st.integers(0, 11), max_size=4),
    turns=st.data(),
)
def test_several_that_kill_are_all_found(classes: list[Class], poison: set[int], turns: st.DataObject) -> None:
    ended, deaths = run_all(classes, poison, turns)
    assert all(ended[number] for number in poison & set(ended))
    assert deaths <= 4 * len(poison)


def run_all(classes: list[Class], poison: set[int], turns: st.DataObject) -> tuple[dict[int, bool], int]:
    """Tasks on a worker that runs the first of each class it was given and dies of a poisonous one.

    For each task, whether it was blamed; and how often the worker died.
    """
    ledger = Ledger(RUNNING)
    entries = [entry(number, task_class) for number, task_class in enumerate(classes)]
    for each in entries:
        ledger.add(each)
    given_to_worker: list[Entry] = []
    ended: dict[int, bool] = {}
    deaths = 0
    while len(ledger):
        given_to_worker += send(ledger)
        assert given_to_worker, "something can always go on"
        running = [
            each
            for task_class, most in RUNNING.items()
            for each in [one for one in given_to_worker if one.task.task_class is task_class][:most]
        ]
        if any(each.number in poison for each in running):
            deaths += 1
            given_to_worker = []
            for each, fate in ledger.died(outside=False):
                if fate is Fate.BLAMED:
                    ledger.remove(each)
                    ended[each.number] = True
        else:
            done = turns.draw(st.sampled_from(running))
            given_to_worker.remove(done)
            complete(ledger, done)
            ended[done.number] = False
    assert sorted(ended) == list(range(len(entries)))
    return ended, deaths
