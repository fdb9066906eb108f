"""Every text of every picture lies on its canvas, and no title covers another text."""

from functools import cache
from itertools import combinations
from unittest.mock import patch

import pandas as pd
import pytest
import test_sim_figures
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from sim.figures.tradeoff import plot_amplification, plot_tradeoff
from sim.pairs.families import generators, make_family
from sim.tables.findings import amplification_finding, tradeoff_finding
from sim.tables.grid import settings
from sim.tables.summary import summarise
from sim.tables.tradeoff import Tradeoff
from theory.pair import Pair

RULES = ["sps", "lenience", "interpolation", "cactus", "cactus_target_only", "top_k"]
SETTINGS = ("T=1", "T=0.6 top-p 0.95 top-k 20", "T=0.8 min-p 0.05 greedy-draft")
results = test_sim_figures.results


def texts(figure):
    """(text, box) of all that is written: titles, labels, ticks, legends, remarks."""
    canvas, drawn, draw = FigureCanvasAgg(figure), [], Text.draw
    # What is drawn, not what there is: a tick beyond the end of its axis has a text that never is.
    with patch.object(
        Text, "draw", lambda self, *a, **k: drawn.append(self) or draw(self, *a, **k)
    ):
        canvas.draw()
    written = (text for text in dict.fromkeys(drawn) if text.get_text().strip())
    return [(text, text.get_window_extent(canvas.get_renderer())) for text in written]


def assert_readable(figure):
    """Every text inside the canvas; titles and the names of panels clear of all other texts."""
    written = texts(figure)
    canvas = figure.bbox
    outside = [
        (text.get_text(), box.bounds)
        for text, box in written
        if box.x0 < -1 or box.y0 < -1 or box.x1 > canvas.x1 + 1 or box.y1 > canvas.y1 + 1
    ]
    assert not outside
    titles = {figure._suptitle, *(title for ax in figure.axes for title in _titles(ax))}
    clashes = [
        (one.get_text(), other.get_text())
        for (one, box), (other, more) in combinations(written, 2)
        if (one in titles or other in titles) and box.shrunk(0.98, 0.9).overlaps(more)
    ]
    assert not clashes


def _titles(ax):
    return ax.title, ax._left_title, ax._right_title


def test_the_check_sees_what_is_cut_off_and_what_overlaps():
    figure = Figure(figsize=(3, 2))
    figure.suptitle("a title that is much too long for so small a picture, and so is cut off")
    with pytest.raises(AssertionError, match="cut off"):
        assert_readable(figure)
    figure = Figure(figsize=(3, 2))
    figure.suptitle("one", y=0.5)
    figure.text(0.5, 0.47, "other", ha="center", va="top")
    with pytest.raises(AssertionError, match="other"):
        assert_readable(figure)


@pytest.mark.parametrize("name", test_sim_figures.NAMES)
def test_every_figure_is_readable(name, results):
    assert_readable(test_sim_figures.drawn(results)[name]())


@cache
def panels(count, several_sources):
    """Tables of so many panels: sources of their own, or sampling settings of one."""
    tables = []
    names = ("gaussian", "zipf", "near_equal", "disjoint", "dirichlet", "filtered")
    for k in range(count):
        family = names[k] if several_sources else "gaussian"
        source = family if several_sources else "smollm2-skip3"
        pair = make_family(family).label if several_sources else SETTINGS[k % 3] + f" no {k}"
        tradeoff = Tradeoff(settings(RULES), source, pair, 32)
        batch = make_family(family).sample(3, 32, next(generators(k, 1)))
        tradeoff.add(Pair.prepare(batch.p, batch.q))
        tables.append((tradeoff.rows(), tradeoff.frontier()))
    return [pd.concat(frames, ignore_index=True) for frames in zip(*tables)]


@pytest.fixture
def saved(monkeypatch):
    """Figures that were written to files."""
    found, draw = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: found.append(self) or draw(self, *a, **k)
    )
    return found


@pytest.mark.parametrize("several_sources", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_pictures_of_a_job_are_readable(count, several_sources, saved, tmp_path):
    table, frontier = panels(count, several_sources)
    finding = tradeoff_finding(summarise(table, frontier))
    plot_tradeoff(table, frontier, tmp_path / "tradeoff.png", finding)
    plot_amplification(table, tmp_path / "amplification.png", amplification_finding(table))
    few = table[table["rule"].isin(["sps", "cactus"])]
    plot_amplification(few, tmp_path / "few.png", amplification_finding(few))
    assert len(saved) == 3
    for figure in saved:
        assert_readable(figure)


@pytest.mark.parametrize("count", [1, 4])
def test_rules_of_ones_own_and_long_names_are_readable(count, saved, tmp_path):
    """A seventh kind of rule, more rules of it than there are markers, and names of folders."""
    table, frontier = panels(count, several_sources=False)
    own = table[table["rule"] == "lenience"]
    mine = [own.assign(rule=f"a_rule_of_my_own_{k}", value=0.1 * k) for k in range(9)]
    others = [own.assign(rule=rule) for rule in ("fuzzy", "target_only")]
    source = "models/SmolLM2-135M-Instruct with drafts/twenty-layers-distilled-for-seven-minutes"
    table = pd.concat([table, *mine, *others], ignore_index=True).assign(source=source)
    frontier = frontier.assign(source=source)
    finding = tradeoff_finding(summarise(table, frontier))
    plot_tradeoff(table, frontier, tmp_path / "tradeoff.png", finding)
    plot_amplification(table, tmp_path / "amplification.png", amplification_finding(table))
    for figure in saved:
        assert_readable(figure)


@pytest.mark.parametrize("drafts", [1, 2, 3, 6])
@pytest.mark.parametrize("sampled", [1, 2])
def test_pictures_of_a_study_are_readable(drafts, sampled):
    """Figures whose panels are pairs and sampling settings, at other numbers of both."""
    from sim import figures

    def grown(table):
        base = table[table["draft"] == table["draft"].iloc[0]]
        return pd.concat(
            [
                base.assign(draft=f"smollm2-skip{k}", settings=SETTINGS[s])
                for s in range(sampled)
                for k in range(drafts)
            ],
            ignore_index=True,
        )

    runs, equal = grown(test_sim_figures.decoding_runs()), grown(test_sim_figures.equal_rows())
    assert_readable(figures.accepted_lengths(runs))
    assert_readable(figures.decoding_costs(runs, 10))
    assert_readable(figures.decoding_times(runs))
    assert_readable(figures.equal_lengths(runs))
    assert_readable(figures.gain_shares(equal))
