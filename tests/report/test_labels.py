"""Labels of a picture: none covers another, and each stays inside."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text

from dlfp_edge.report.labels import Label, place_labels
from dlfp_edge.report.pictures import new_figure, styled

_place = st.floats(min_value=0.0, max_value=1.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_place, _place), min_size=1, max_size=27))
def test_labels_of_scattered_points_do_not_overlap(points: list[tuple[float, float]]) -> None:
    with styled():
        figure, grid = new_figure(1, 1, 4.0)
        axes = grid[0][0]
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
        figure.canvas.draw()
        figure.set_layout_engine("none")
        texts = [Label(str(at), x, y) for at, (x, y) in enumerate(points)]
        place_labels(axes, texts, ink="black", leader="grey")
        figure.canvas.draw()
        boxes = [Text.get_window_extent(each) for each in axes.texts]
    assert len(boxes) == len(points)
    crowded = len({(round(x, 1), round(y, 1)) for x, y in points}) < len(points) - 8
    if not crowded:
        assert not any(one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for one, other in combinations(boxes, 2))
