"""What bars say of trials."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.verdict import verdict
from dlfp_edge.prove.bars import judge, parse_bar
from dlfp_edge.prove.disturbed import background_per_s
from dlfp_edge.prove.measures import MEASURES
from dlfp_edge.prove.scored import Scored
from tests.experiment.trials import request, trial

SEEDS = (1, 2, 3)


def scored(mine: list[TrialRecord], *others: list[TrialRecord], **fields: Any) -> Scored:
    every = {records[0].arm: {record.seed: record for record in records} for records in (mine, *others)}
    usual = {"candidate": "auto", "solo": "solo", "trials": every, "paces": {}, "ratios": dict.fromkeys(every, 1.0)}
    return Scored(**{**usual, **fields})


def trials(arm: str, **fields: Any) -> list[TrialRecord]:
    return [trial(arm, seed, **fields) for seed in SEEDS]


def value(name: str, found: Scored) -> float | None:
    return MEASURES[name].of(found)


def state(bar: str, found: Scored, *, control: str = "other") -> str:
    theirs = list(found.trials.get(control, {}).values())
    judged = verdict(
        control, found.own, theirs, slo=None, ratios=found.ratios, gates=[], quick=False, exact=False, harness=None
    )
    return judge(parse_bar(bar), found, [judged]).state


def test_gaps_and_first_tokens_are_held_against_the_foreground_alone() -> None:
    alone = trials("solo", gap_s=0.02, background=None)
    late = request(gaps_s=[0.03] * 1000, ttft_s=0.15)
    found = scored(trials("auto", requests=[late]), alone)
    assert value("p99_over_solo", found) == pytest.approx(1.5)
    assert value("ttft_over_solo_ms", found) == pytest.approx(50.0)


def test_a_paced_token_is_late_from_15_ms_on() -> None:
    shown = [0.1] * 98 + [0.114, 0.140]
    paced = request(gaps_s=[0.1] * 100, shown_s=shown, paced=True)
    found = scored(trials("auto", requests=[paced]), paces={"chat": 10.0})
    assert value("late_share", found) == pytest.approx(0.01)
    assert value("max_late_ms", found) == pytest.approx(40.0)


def test_gaps_over_the_target_are_those_of_the_records() -> None:
    found = scored(trials("auto", over_target=[0.9] * 98 + [1.6, 2.5]))
    assert value("share_above_1.5T", found) == pytest.approx(0.02)
    assert value("share_above_2T", found) == pytest.approx(0.01)
    assert value("p99_over_target", found) == pytest.approx(1.609)


def test_rates_are_ratios_of_each_seed_of_what_each_target_reads_alone() -> None:
    ratios = {"auto": 1.0, "shared/unlimited": 0.5}
    found = scored(trials("auto", background=600.0), trials("shared/unlimited", background=500.0), ratios=ratios)
    assert value("background_over_unlimited", found) == pytest.approx(0.6)


def test_documents_are_background_requests_that_were_completed() -> None:
    def with_documents(arm: str, count: int) -> list[TrialRecord]:
        documents = [request(f"ingest/0/{n}", [], task_class="background") for n in range(count)]
        return trials(arm, requests=[request(gaps_s=[0.02] * 1000), *documents])

    found = scored(with_documents("auto", 9), with_documents("shared/fixed:8", 10), best="shared/fixed:8")
    assert value("documents_over_best_fixed", found) == pytest.approx(0.9)
    assert state("documents_over_best_fixed >= 0.9", found) == "held"
    assert state("documents_over_best_fixed >= 0.91", found) == "missed"


def test_a_seed_without_its_pair_has_no_data() -> None:
    found = scored(trials("auto"), trials("shared/unlimited")[:2])
    assert value("background_over_unlimited", found) is None
    assert state("background_over_unlimited >= 0.1", found) == "no data"


def test_where_no_fixed_setting_kept_the_target_what_is_held_against_the_best_is_held() -> None:
    found = scored(trials("auto"), unmatched=True)
    assert state("documents_over_best_fixed >= 0.9", found) == "held"
    assert state("itl_p99 within 5% of best-fixed", found) == "held"
    assert state("p99_over_solo <= 1", found) == "no data"


def gaps(arm: str, *each_s: float) -> list[TrialRecord]:
    return [trial(arm, seed, gap_s=gap_s) for seed, gap_s in zip(SEEDS, each_s, strict=True)]


def test_within_looks_at_the_end_of_the_interval_and_not_at_the_mean() -> None:
    control = gaps("other", 0.020, 0.020, 0.020)
    steady = scored(gaps("auto", 0.0204, 0.0204, 0.0204), control)
    uneven = scored(gaps("auto", 0.0200, 0.0204, 0.0208), control)
    assert state("itl_p99 within 5% of other", steady) == "held"
    assert state("itl_p99 within 5% of other", uneven) == "missed"
    assert state("itl_p99 within 8% of other", uneven) == "held"


def test_within_needs_pairs() -> None:
    one = scored(gaps("auto", 0.02, 0.02, 0.02)[:1], gaps("other", 0.02, 0.02, 0.02))
    assert state("itl_p99 within 5% of other", one) == "no data"
    assert state("itl_p99 within 5% of nobody", one) == "no data"


def test_peers_must_all_be_there_and_the_worst_counts() -> None:
    found = scored(gaps("auto", 0.02, 0.02, 0.02), gaps("other", 0.02, 0.02, 0.02), peers=("other",))
    assert state("itl_p99 within 5% of peers", found) == "held"
    gone = scored(gaps("auto", 0.02, 0.02, 0.02), gaps("other", 0.02, 0.02, 0.02), peers=("other", "gone"))
    assert state("itl_p99 within 5% of peers", gone) == "no data"
    assert state("itl_p99 within 5% of peers", scored(gaps("auto", 0.02, 0.02, 0.02))) == "no data"


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=50), st.floats(0.1, 4.0))
def test_a_bar_is_held_or_missed_as_its_value_says(multiples: list[float], bound: float) -> None:
    found = scored([trial("auto", 1, over_target=multiples)])
    judged = judge(parse_bar(f"p99_over_target <= {bound!r}"), found, [])
    assert judged.value is not None
    assert judged.state == ("held" if judged.value <= bound else "missed")


def reader(gap_s: float, documents: int) -> list[Any]:
    done = [request(f"ingest/0/{n}", [], task_class="background") for n in range(documents)]
    return [request(gaps_s=[gap_s] * 1000), *done]


def served(p99_s: float, documents: int, label: str) -> Scored:
    mine, theirs = trials("auto", requests=reader(0.02, 18)), trials(label, requests=reader(p99_s, documents))
    return scored(mine, theirs, peers=(label,), ratios={"auto": 1.0, label: 0.5})


def test_documents_are_held_against_servers_that_are_as_smooth() -> None:
    smooth = served(0.0208, 10, "llama-server -b 16")
    assert value("documents_over_servers", smooth) == pytest.approx(1.8)
    assert value("normalised_over_servers", smooth) == pytest.approx(0.9)
    assert state("documents_over_servers >= 1.4", served(0.03, 100, "llama-server -b 16")) == "held"
    assert state("documents_over_servers >= 1.4", served(0.02, 14, "llama-server -b 16")) == "missed"
    assert state("documents_over_servers >= 1.4", scored(trials("auto"))) == "no data"


def test_documents_are_held_against_pairs_that_are_not_smoother() -> None:
    label = "llama-server-pair -t 1"
    assert state("documents_over_pairs >= 1.8", served(0.019, 100, label)) == "held"
    assert state("documents_over_pairs >= 1.8", served(0.03, 100, label)) == "missed"
    assert state("documents_over_pairs >= 1.8", served(0.03, 0, label)) == "held"
    assert state("documents_over_servers >= 1.4", served(0.02, 1, label)) == "no data"


def test_the_worst_stream_counts_and_nobody_starves() -> None:
    def streams(arm: str, second_s: float) -> list[TrialRecord]:
        return trials(arm, requests=[request("a/0/0", ttft_s=0.1), request("b/0/0", ttft_s=second_s)])

    slow = scored(streams("auto", 0.3), streams("solo", 0.2))
    assert value("worst_stream_ttft_over_solo", slow) == pytest.approx(1.5)
    assert value("starved", slow) == 0
    assert value("starved", scored(streams("auto", 2.1), streams("solo", 0.2))) == len(SEEDS)


def disturbed(arm: str, before_s: float, after_s: float) -> list[TrialRecord]:
    """The program comes with the first of 200 slower gaps."""
    gaps_s = [before_s] * 200 + [after_s] * 200
    one = request(gaps_s=gaps_s, ttft_s=0.1, age_s=0.1 + sum(gaps_s))
    return trials(arm, requests=[one], condition={"busy_s": 200 * after_s - after_s / 2})


def test_gaps_beside_another_program_are_held_against_the_target_or_decodes_alone_there() -> None:
    found = scored(disturbed("auto", 0.02, 0.06), disturbed("solo", 0.01, 0.04), quiet_target_s=0.03)
    assert value("disturbed_p99_over_bound", found) == pytest.approx(1.5)
    found = scored(disturbed("auto", 0.02, 0.06), disturbed("solo", 0.01, 0.04), quiet_target_s=0.06)
    assert value("disturbed_p99_over_bound", found) == pytest.approx(1.0)
    assert value("disturbed_p99_over_bound", scored(trials("auto"), trials("solo"), quiet_target_s=0.06)) is None


def test_background_beside_another_program_counts_from_its_coming() -> None:
    [record, *_] = disturbed("auto", 0.02, 0.05)
    segment = {"task_class": "background", "kind": "prefill", "consumed": 100}
    steps = [{"submitted": float(at), "completed": at + 1.0, "segments": [segment]} for at in range(20)]
    assert background_per_s(record, steps) == pytest.approx(100.0)
    found = scored(trials("auto"), best="b", disturbed={"auto": {1: 80.0, 2: 90.0}, "b": {1: 100.0, 2: 100.0}})
    assert value("disturbed_background_over_best", found) == pytest.approx(0.85)


def test_throttling_is_a_rate_above_that_of_the_foreground_alone() -> None:
    def quota(arm: str, times: int) -> list[TrialRecord]:
        return trials(arm, condition={"throttled": times, "throttled_in_s": 10.0})

    assert value("throttled_per_s_over_solo", scored(quota("auto", 30), quota("solo", 10))) == pytest.approx(2.0)
    assert value("throttled_per_s_over_solo", scored(trials("auto"), quota("solo", 10))) is None


def test_a_looser_target_is_held_against_the_tighter_one_of_the_same_seed() -> None:
    tighter = {record.seed: record for record in trials("auto", background=1000.0)}
    assert value("background_over_tighter", scored(trials("auto", background=900.0), tighter=tighter)) == 0.9
    assert value("background_over_tighter", scored(trials("auto", background=900.0))) is None
