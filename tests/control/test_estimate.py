"""What steps are predicted to take: quick to follow a change, slow to believe a stall, no cap that spirals."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dlfp_edge.control.estimate import FIRST_MARGIN, MOST_CHANGE, RATIOS, Cost
from dlfp_edge.control.port import View
from dlfp_edge.control.slack import Slack

SIZES = st.integers(1, 512)
FIRST_S = 0.002


@dataclass
class Device:
    """Steps of a machine whose small steps cost more a token, now `slower` times as long as at first."""

    decode_s: float = 0.014
    token_s: float = 0.002
    small_s: float = 0.006
    slower: float = 1.0
    noise: float = 0.0
    random: Random = field(default_factory=lambda: Random(1))

    def decodes_s(self) -> float:
        return self.slower * self.decode_s

    def step_s(self, prefills: int) -> float:
        noise = self.random.lognormvariate(0.0, self.noise)
        return noise * self.slower * (self.decode_s + self.small_s + self.token_s * prefills)


DEVICES = st.builds(Device, st.floats(0.001, 0.1), st.floats(1e-5, 0.01), st.floats(0.0, 0.02))


def taught(device: Device, sizes: list[int], cost: Cost | None = None, rounds: int = 10) -> Cost:
    """An estimate that has seen the device for so many steps of each size, and its decodes alone."""
    cost = cost or Cost(device.decode_s, device.token_s, batched=True)
    for _ in range(rounds):
        cost.observe(1, 0, device.decodes_s())
        for size in sizes:
            cost.observe(1, size, device.step_s(size), device.decodes_s())
    return cost


@given(device=DEVICES, slower=st.sampled_from([2.0, 0.5]), size=SIZES)
def test_a_lasting_change_of_speed_is_known_in_ten_steps(device: Device, slower: float, size: int) -> None:
    assume(device.step_s(size) > 1.12 * device.decodes_s())  # a tenth of a step, at least, is its tokens'
    cost = taught(device, [size], rounds=40)
    device.slower = slower
    taught(device, [size], cost, rounds=10)
    assert cost.predict(1, size) == pytest.approx(device.step_s(size), rel=0.15)
    assert cost.predict(1, 0) == pytest.approx(device.decodes_s(), rel=0.15)


@given(device=DEVICES, seen=st.lists(SIZES, min_size=1, max_size=4), stalled=SIZES, asked=SIZES)
@example(Device(), [256], 8, 8)
def test_a_stall_is_not_learned_as_the_speed(device: Device, seen: list[int], stalled: int, asked: int) -> None:
    device.small_s = 0.0
    assume(device.step_s(min(*seen, stalled)) > 1.12 * device.decodes_s())
    cost = taught(device, seen, rounds=40)
    before_s = cost.predict(1, asked)
    cost.observe(1, stalled, 10 * device.step_s(stalled), device.decodes_s())
    assert before_s - 1e-9 <= cost.predict(1, asked) <= MOST_CHANGE * before_s + 1e-9
    assert cost.margin <= MOST_CHANGE
    if stalled.bit_length() in {size.bit_length() for size in seen}:
        assert cost.predict(1, asked) <= 1.2 * before_s + 1e-9
    taught(device, [stalled], cost)
    assert cost.predict(1, stalled) == pytest.approx(device.step_s(stalled), rel=0.15)


@given(decodes=st.integers(1, 8), other=st.integers(1, 8))
def test_a_stall_of_decodes_is_not_learned_either(decodes: int, other: int) -> None:
    cost = Cost(0.014, FIRST_S, batched=True)
    for _ in range(10):
        cost.observe(other, 0, 0.014)
    cost.observe(decodes, 0, 0.140)
    assert cost.decode_s(decodes) <= MOST_CHANGE * 0.014 + 1e-9


STEPS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 512), st.floats(1e-4, 2.0), st.booleans()), min_size=1, max_size=40
)
TIMES = st.floats(0.0, 1.0)


def after(steps: list[tuple[int, int, float, bool]]) -> Cost:
    cost = Cost(0.014, FIRST_S, batched=True)
    for decodes, prefills, took_s, watched in steps:
        cost.observe(decodes, prefills, took_s, 0.014 if watched else None)
    return cost


@given(steps=STEPS, decode_s=TIMES, within_s=TIMES, less_s=TIMES, most=st.integers(0, 600))
def test_more_fits_a_longer_time_and_beside_shorter_decodes(
    steps: list[tuple[int, int, float, bool]], decode_s: float, within_s: float, less_s: float, most: int
) -> None:
    cost = after(steps)
    assert cost.margin >= 1.0
    fits = cost.fits(decode_s, within_s, most)
    assert fits is not None
    assert 0 <= fits <= most
    assert fits == 0 or cost.margin * (decode_s + fits * cost.rate(fits)) <= within_s
    longer, shorter = cost.fits(decode_s, within_s + less_s, most), cost.fits(decode_s - less_s, within_s, most)
    assert longer is not None
    assert longer >= fits
    assert shorter is not None
    assert shorter >= fits


@given(device=DEVICES, seen=st.lists(SIZES, max_size=6), slowdown=st.floats(0.5, 40.0), most=st.integers(1, 600))
def test_what_fits_is_the_most_that_a_slow_step_has_time_for(
    device: Device, seen: list[int], slowdown: float, most: int
) -> None:
    cost = taught(device, seen)
    within_s = slowdown * device.decode_s
    fit = [p for p in range(1, most + 1) if cost.margin * (device.decode_s + p * cost.rate(p)) <= within_s]
    assert cost.fits(device.decode_s, within_s, most) == max(fit, default=0)


def test_nothing_is_said_before_anything_was_measured() -> None:
    cost = Cost(None, None, batched=True)
    assert cost.fits(0.0, 1.0, 100) is None
    assert cost.predict(3, 100) == 0.0


def test_the_margin_is_that_of_the_slow_steps_and_begins_anew_where_the_speed_has_changed() -> None:
    device = Device()
    cost = Cost(device.decode_s, FIRST_S, batched=True)
    assert cost.margin == FIRST_MARGIN
    taught(device, [64], cost, rounds=RATIOS + 40)
    assert cost.margin == pytest.approx(1.0, abs=0.01), "steps that take what they should"
    device.slower = 2.0
    taught(device, [64], cost, rounds=8)
    assert cost.margin >= 1.2, "what was known of the other speed says nothing of this one"
    taught(device, [64], cost, rounds=2 * RATIOS)
    assert cost.margin == pytest.approx(1.0, abs=0.01)
    device.noise = 0.1
    taught(device, [64], cost, rounds=RATIOS)
    slow = 0
    for _ in range(1000):
        bound_s, took_s = cost.margin * cost.predict(1, 64), device.step_s(64)
        slow += took_s > bound_s
        cost.observe(1, 64, took_s, device.decodes_s())
    assert 5 <= slow <= 40, "about one in 66 is slower"


@given(factor=st.floats(1.0, 8.0), noise=st.floats(0.0, 0.1), slowdown=st.floats(2.5, 5.0), seed=st.integers(0, 2**16))
def test_lasting_contention_does_not_shrink_the_cap_for_ever(
    factor: float, noise: float, slowdown: float, seed: int
) -> None:
    """Where all is slower, the target that goes along with decodes leaves as many tokens as before."""
    device = Device(small_s=0.0, noise=noise, random=Random(seed))
    cost, law = Cost(device.decode_s, FIRST_S, batched=True), Slack()

    def caps(steps: int) -> list[int]:
        seen = []
        for _ in range(steps):
            decode_s = device.decodes_s()
            fits = cost.fits(decode_s, slowdown * decode_s, 4096)
            cap = law.budget(View(1, 4096, 1, slowdown * decode_s, 4096, 16, fits), 0.0)
            assert cap is not None
            cost.observe(1, cap, device.step_s(cap), decode_s)
            seen.append(cap)
        return seen

    alone = sorted(caps(100)[50:])[25]
    device.slower = factor
    contended = caps(300)
    assert sorted(contended[-100:])[50] >= 0.7 * alone
    assert min(contended[30:]) > 0.3 * alone
