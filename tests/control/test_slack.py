"""The default for shared steps: what fits and no more, in whole tiles, and one piece that is worth its stall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.control.edge import TILE_LOSS, UNKNOWN_CAP
from dlfp_edge.control.port import Observation, View
from dlfp_edge.control.slack import Slack

VIEWS = st.builds(
    View,
    decoders=st.integers(0, 16),
    prefills=st.integers(1, 8192),
    prompts=st.integers(0, 8),
    target_s=st.just(0.05),
    most=st.integers(1, 4096),
    tile=st.sampled_from([1, 8, 16, 64]),
    fits=st.none() | st.integers(0, 8192),
    unsplit=st.just(0) | st.integers(1, 4096),
)


def budget(law: Slack, view: View) -> int:
    cap = law.budget(view, 0.0)
    assert cap is not None
    return cap


@given(view=VIEWS)
def test_the_cap_is_what_fits_or_the_least_there_is(view: View) -> None:
    cap = budget(Slack(), view)
    assert 1 <= cap <= view.most
    if view.fits is not None:
        assert cap <= max(view.fits, view.unsplit, 1)


@given(view=VIEWS)
def test_little_of_what_fits_is_given_up_and_only_for_whole_tiles(view: View) -> None:
    law = Slack()
    total = budget(law, view) + view.decoders
    room = min(UNKNOWN_CAP if view.fits is None else max(view.fits, view.unsplit, 1), view.most) + view.decoders
    assert law.state == room - view.decoders
    assert total == room or total % view.tile == 0
    assert room - total <= min(view.tile - 1, TILE_LOSS * room)


def test_a_piece_that_is_not_split_runs_whole() -> None:
    """Rounded to a tile it would leave a rest, late too."""
    assert budget(Slack(), View(1, 300, 1, 0.05, 4096, 16, fits=0, unsplit=300)) == 300


def test_where_nothing_is_known_it_begins_small() -> None:
    assert budget(Slack(), View(0, 1000, 1, None, 4096, 16)) == UNKNOWN_CAP


@given(first=VIEWS, view=VIEWS, gaps=st.lists(st.floats(0.0, 10.0), max_size=20))
def test_what_it_was_told_before_changes_nothing(first: View, view: View, gaps: list[float]) -> None:
    law = Slack()
    law.budget(first, 0.0)
    for gap_s in gaps:
        assert not law.observe(Observation(gap_s, None, 0.05, 32, 32)).changed
    assert budget(law, view) == budget(Slack(), view)
