"""Pictures and summaries: where points go, what is told, and that odd tables can be drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim.drawing.logaxis import LogAxis
from sim.figures.tradeoff import plot_amplification, plot_tradeoff, rule_markers
from sim.pairs.families import generators, make_family
from sim.tables.grid import settings
from sim.tables.summary import FRONTIER, amplification_finding, summarise, tradeoff_finding
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
    pairs = [(RULES[rule].family, rule.startswith(("cascade", "fuzzy")), markers[rule])
             for rule in RULES]  # fmt: skip
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


def small_table():
    rows = [("sps", 0.0, 0.5), ("a", 0.05, 0.6), ("a", 0.25, 0.8), ("b", 0.3, 0.9)]
    table = pd.DataFrame(rows, columns=["rule", "kl_output_verifier", "acceptance"])
    table[["source", "pair"]], table["vocab"] = "s", 4
    curve = pd.DataFrame({"level": [0.0, 0.2], "acceptance": [0.5, 0.9]})
    curve[["source", "pair"]], curve["vocab"] = "s", 4
    return table, curve


def test_summary_interpolates_between_settings_and_not_beyond_them():
    summary = summarise(*small_table(), level=0.1)
    assert list(summary.columns) == ["s", "mean"]
    assert summary.loc["sps", "s"] == 0.5
    assert summary.loc["a", "s"] == pytest.approx(0.65)
    assert np.isnan(summary.loc["b", "s"])
    # The frontier is joined in √level, where it is nearly straight.
    assert summary.loc[FRONTIER, "s"] == pytest.approx(0.5 + 0.4 * 0.5**0.5)
    finding = tradeoff_finding(summary, 0.1)
    assert "0.783" in finding
    assert "sps 0.500" in finding


def test_sampling_settings_of_one_source_are_told_apart_and_not_averaged():
    table, curve = small_table()
    hot, cold = table.assign(pair="T=1"), table.assign(pair="T=0.6 top-k 20", acceptance=0.25)
    curves = [curve.assign(pair="T=1"), curve.assign(pair="T=0.6 top-k 20")]
    summary = summarise(pd.concat([hot, cold]), pd.concat(curves), level=0.1)
    assert list(summary.columns) == ["T=1", "T=0.6 top-k 20"]
    assert tradeoff_finding(summary, 0.1).splitlines() == [
        "Within 0.1 nats of the verifier no rule can accept more than this share of the drafts",
        "T=1: 0.783; sps 0.500",
        "T=0.6 top-k 20: 0.783; sps 0.250",
    ]
    # Of several sources, a source that has several panels is named with what tells these apart.
    other = pd.concat([hot, cold, table.assign(source="t")])
    summary = summarise(other, pd.concat([*curves, curve.assign(source="t")]), level=0.1)
    names = ["s (T=1)", "s (T=0.6 top-k 20)", "t (s)", "mean"]
    assert list(summary.columns) == names
    assert "of the drafts, on average over the panels:\nsps 0.417" in tradeoff_finding(summary)


def test_a_finding_without_a_rule_of_the_headline_ends_with_the_frontier():
    table, curve = small_table()
    summary = summarise(table[table["rule"] == "b"], curve)
    assert tradeoff_finding(summary).endswith("no rule can accept more than 0.783 of the drafts")


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


def test_summary_never_credits_a_rule_with_more_than_the_frontier(results):
    summary = summarise(*results)
    best = summary.loc[FRONTIER].to_numpy()
    assert (summary.fillna(0).to_numpy() <= best + 2e-4).all()
    assert {"gaussian", "disjoint", "mean"} == set(summary.columns)


def test_amplification_finding_reports_the_largest_excess(results):
    table, _ = results
    spent = table[(table["rule"].isin(["cactus", "cactus_exact"])) & (table["value"] > 0)]
    most = (spent["kl_output_verifier"] / spent["value"]).max()
    assert f"{most:,.0f} × δ (cactus" in amplification_finding(table)
    assert "δ" in amplification_finding(table[table["rule"] == "sps"])
