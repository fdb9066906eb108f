"""Pictures and summaries: where points go, what is told, and that odd tables can be drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim.drawing.logaxis import LogAxis
from sim.figures.tradeoff import plot_amplification, plot_tradeoff, rule_markers
from sim.pairs.families import generators, make_family
from sim.tables.grid import kind_of, settings
from sim.tables.tradeoff import Tradeoff
from theory import RULES
from theory.pair import Pair


@pytest.fixture(scope="module")
def results():
    tables, frontiers = [], []
    for name in ("gaussian", "disjoint"):
        tradeoff = Tradeoff(settings(), name, "some parameters", 32)
        batch = make_family(name).sample(4, 32, next(generators(0, 1)))
        tradeoff.add(Pair.prepare(batch.p, batch.q))
        tables.append(tradeoff.rows())
        frontiers.append(tradeoff.frontier())
    return pd.concat(tables, ignore_index=True), pd.concat(frontiers, ignore_index=True)


def assert_drawn(path):
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.stat().st_size > 20_000


def test_pictures_of_one_and_of_two_panels(results, tmp_path):
    table, frontier = results
    for source in (["gaussian"], ["gaussian", "disjoint"]):
        rows = table[table["source"].isin(source)]
        plot_tradeoff(rows, frontier, tmp_path / "tradeoff.png", "title")
        plot_amplification(rows, tmp_path / "amplification.png", "title")
        assert_drawn(tmp_path / "tradeoff.png")
        assert_drawn(tmp_path / "amplification.png")


def test_a_table_of_strict_sampling_alone_can_be_drawn(results, tmp_path):
    table, frontier = results
    strict = table[table["rule"] == "sps"]
    plot_tradeoff(strict, frontier, tmp_path / "strict.png", "title")
    assert_drawn(tmp_path / "strict.png")
    with pytest.raises(ValueError, match="none of the rules cactus"):
        plot_amplification(strict, tmp_path / "none.png", "title")


def test_every_rule_has_a_marker_of_its_own_within_its_kind():
    markers = rule_markers(list(RULES))
    assert set(markers) == set(RULES)
    pairs = [(kind_of(rule), markers[rule]) for rule in RULES]
    assert len(set(pairs)) == len(pairs)


def test_axis_places_what_a_logarithm_cannot_hold():
    axis = LogAxis.of([0.0, 1e-3, 1.0, np.inf])
    x, inside = axis.place([0.0, 1e-3, 1.0, np.inf])
    np.testing.assert_array_equal(inside, [False, True, True, False])
    assert x[0] < axis.low < x[1] < x[2] < axis.high < x[3] < np.inf
    assert (axis.smaller, axis.larger) == ("0", "∞")


def test_axis_is_cut_where_it_is_told_to():
    axis = LogAxis.of([1e-9, 1e-3, 1.0, 50.0], decades=4, limit=2.0)
    assert (axis.smaller, axis.larger) == ("less", "more")
    assert 1e-4 < axis.low < 1e-3
    assert 1 < axis.high < 2
    plain = LogAxis.of([0.1, 1.0])
    assert (plain.smaller, plain.larger) == ("", "")
    assert LogAxis.of([]).low > 0
    assert LogAxis.of([0.0, 0.0]).smaller == "0"


def test_axis_labels_its_ends():
    ax = Figure().subplots()
    LogAxis.of([0.0, 1e-3, 1.0, np.inf]).apply(ax)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert {"0", "∞"} <= set(labels)
    assert len(labels) == len(set(labels)) >= 4
    ticks = ax.get_xticks()
    assert all(ax.get_xlim()[0] < tick < ax.get_xlim()[1] for tick in ticks)


@pytest.mark.parametrize("title", ["one line", "four\nlines\nof\ntext"])
def test_a_title_does_not_reach_the_panels(results, tmp_path, monkeypatch, title):
    figures = []
    draw = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: figures.append(self) or draw(self, *a, **k)
    )
    plot_tradeoff(*results, tmp_path / "tradeoff.png", title)
    figure = figures[0]
    figure.draw_without_rendering()
    lowest = figure._suptitle.get_window_extent().y0
    for ax in figure.axes:
        assert ax.get_tightbbox().y1 < lowest
        (label,) = (text for text in ax.texts if text.get_text() == "some parameters")
        assert label.get_fontsize() >= 10
        box = label.get_window_extent()
        assert ax.get_window_extent().y1 < box.y0 < box.y1 <= ax._left_title.get_window_extent().y0
