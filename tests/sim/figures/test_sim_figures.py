"""The figures of the notebooks: labelled, titled with what is drawn, and free of global state."""

import re
import sys
from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim import figures
from sim.pairs.families import Gaussian
from sim.tables.grid import settings
from sim.tables.tradeoff import Tradeoff
from theory import Pair, divergence, make_rule, one_step
from theory.frontier import RoundMeans

P, Q = [0.05, 0.80, 0.15], [0.30, 0.35, 0.35]
RULES = ["sps", "typical", "cactus", "lenience", "frontier", "top_k"]


@pytest.fixture(scope="module")
def results():
    batch = Gaussian().sample(6, 32, np.random.default_rng(0))
    tradeoff = Tradeoff(settings(RULES), "gaussian", "some parameters", 32)
    tradeoff.add(Pair.prepare(batch.p, batch.q))
    return tradeoff.rows(), tradeoff.frontier()


def decoding_runs():
    """Runs of two rules on two drafts at two draft lengths, as a study records them."""
    rows = []
    for draft, m, (rule, parameters, kept) in product(
        ("near", "far"), (5, 10), (("sps", {}, 1.0), ("cactus", {"delta": 0.5}, 2.0))
    ):
        seconds = {"prefill": 0.1, "draft": 1.0, "verify": 2.0, "distributions": 0.1, "rule": 0.1}
        figures_of_run = {
            "draft": draft, "settings": "T=1", "rule": rule, "parameters": parameters,
            "draft_tokens": m, "accepted_length": kept + m / 10, "accepted_length_se": 0.1,
            "acceptance": 0.6, "strict_acceptance": 0.6, "kl_per_token": kept - 1,
            "kl_per_token_se": 0.01, "tokens": 100, "speed_up": kept, "seconds": seconds,
            "alone_seconds_per_token": 0.05,
        }  # fmt: skip
        rows.append(figures_of_run)
    return pd.DataFrame(rows)


def equal_rows():
    """Rules at equal divergence on two drafts; one cannot come near, one leaks."""
    shares = {"sps": np.nan, "mentored": 0.95, "ears": 0.8, "target_only": -0.6, "typical": 0.9}
    rows = [
        {
            "draft": draft, "settings": "T=1", "rule": rule, "share": share,
            "status": "missed" if rule == "typical" else "met",
            "kl_output_verifier": np.inf if rule == "ears" else 0.1,
            "js": 0.05 if rule == "typical" else 0.02,
        }
        for draft, (rule, share) in product(("near", "far"), shares.items())
    ]  # fmt: skip
    return pd.DataFrame(rows)


def round_rows():
    """What two ways gain on two drafts, without loss and with some."""
    return pd.DataFrame(
        {"draft": draft, "settings": "T=1", "target": target, "way": way,
         "gain": gain + target, "error": 0.01}
        for draft, target, (way, gain) in product(
            ("near", "far"), (0.0, 0.05), {"blocks": 0.02, "2 candidates": 0.3}.items()
        )
    )  # fmt: skip


def round_means():
    """Two ways to spend on a round of three drafts."""
    return {
        "one level": RoundMeans((0.7, 0.7, 0.7), (0.05, 0.05, 0.05)),
        "a schedule": RoundMeans((0.8, 0.7, 0.6), (0.09, 0.05, 0.01)),
    }


def bounds_by_length():
    """Bounds of a strict and of a lossy rule at two lengths, one of them infinite."""
    columns = ["rule", "measure", "listed", "lower", "upper", "exact"]
    rows = [["strict", "acceptance", 5, 0.3, 0.8, 0.6], ["strict", "acceptance", 50, 0.5, 0.7, 0.6]]
    rows += [["strict", "kl", 5, 0.0, 0.0, 0.0], ["strict", "kl", 50, 0.0, 0.0, 0.0]]
    rows += [["lossy", "acceptance", 5, 0.4, 0.9, 0.8], ["lossy", "acceptance", 50, 0.7, 0.9, 0.8]]
    rows += [["lossy", "kl", 5, 0.01, np.inf, 0.2], ["lossy", "kl", 50, 0.1, 0.4, 0.2]]
    return pd.DataFrame(rows, columns=columns)


def drawn(results):
    """Every figure function, called as a notebook calls it."""
    table, frontier = results
    batch = Gaussian().sample(4, 24, np.random.default_rng(1))
    some = settings(["mentored", "cactus"], {"mentored": [0.05], "cactus": [0.1]})
    return {
        "accepted_lengths": lambda: figures.accepted_lengths(decoding_runs()),
        "decoding_costs": lambda: figures.decoding_costs(decoding_runs(), 10),
        "decoding_times": lambda: figures.decoding_times(decoding_runs()),
        "accepted_length": lambda: figures.accepted_length([0.5, 0.8], 8, 0.1),
        "amplification": lambda: figures.amplification([4, 64]),
        "candidate_and_emitted": lambda: figures.candidate_and_emitted(P, Q, 0.1),
        "candidates_frontier": lambda: figures.candidates_frontier(P, Q),
        "capped_simplex": lambda: figures.capped_simplex(Q, 0.1),
        "certainty": lambda: figures.certainty([0.1, 0.5]),
        "certified_curves": lambda: figures.certified_curves([4, 10]),
        "certified_rows": lambda: figures.certified_rows([0.3, 0.1, 0.2], [0.2, 0.0, 0.1], 0.1),
        "clip_picture": lambda: figures.clip_picture(batch.p[0], batch.q[0], "cactus", 0.01),
        "closed_form": lambda: figures.closed_form(0.1),
        "collapse_path": lambda: figures.collapse_path(Q, 1),
        "corpus_frontier": lambda: figures.corpus_frontier(batch.p, batch.q, [0.01, 0.1]),
        "coupling_table": lambda: figures.coupling_table(P, Q),
        "equal_lengths": lambda: figures.equal_lengths(decoding_runs()),
        "entropy_by_acceptance": lambda: figures.entropy_by_acceptance(table, RULES[1:3]),
        "every_divergence": lambda: figures.every_divergence(P, Q, some),
        "gain_shares": lambda: figures.gain_shares(equal_rows()),
        "gamma_curves": lambda: figures.gamma_curves(0.1),
        "gaps": lambda: figures.gaps(table, frontier),
        "list_bounds": lambda: figures.list_bounds(bounds_by_length()),
        "output_path": lambda: figures.output_path(P, Q, 0.6),
        "overlap": lambda: figures.overlap(P, Q),
        "overspending_envelope": lambda: figures.overspending_envelope([0.3, 0.8]),
        "overspending_map": figures.overspending_map,
        "reads": lambda: figures.reads([1, 5], 1000),
        "round_gains": lambda: figures.round_gains(round_rows()),
        "round_lengths": lambda: figures.round_lengths(P, Q, 3),
        "spent_by_place": lambda: figures.spent_by_place(round_means()),
        "text_spending": lambda: figures.text_spending([0.1, 0.15, 0.2], [0.1, 0.16, 0.22]),
        "simplex_ball": lambda: figures.simplex_ball(Q, 1, 0.1),
        "tradeoff": lambda: figures.tradeoff(table, frontier),
        "two_couplings": lambda: figures.two_couplings(P, Q),
        "typical_map": lambda: figures.typical_map([1, 3], [0.5, 1], vocab=16, rows=2),
        "yin_plane": lambda: figures.yin_plane(P, Q, some),
    }


NUMBERS = {"Drawing", "reads_per_token", "true_cost"}  # of the package's names, no figures
NAMES = sorted(set(figures.__all__) - NUMBERS)


def finding(figure):
    """The title of a figure in one line."""
    return figure.get_suptitle().replace("\n", " ")


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_is_labelled_and_its_title_fits(name, results):
    figure = drawn(results)[name]()
    assert isinstance(figure, Figure)
    assert len(finding(figure)) > 40
    assert not re.search(r"\bnan\b|\binf\b", finding(figure))
    panels = [ax for ax in figure.axes if ax.get_subplotspec() is not None]
    assert panels
    for ax in panels:
        assert ax.get_xlabel()
        shared = ax.get_shared_y_axes().get_siblings(ax)
        assert any(other.get_ylabel() for other in [ax, *shared])
    figure.draw_without_rendering()
    title = figure._suptitle.get_window_extent()
    assert title.x1 <= figure.bbox.width
    assert title.y1 <= figure.bbox.height


def test_a_figure_shows_itself_as_a_picture():
    assert figures.overlap(P, Q)._repr_png_()[:4] == b"\x89PNG"


def test_nothing_registers_with_pyplot_or_outlives_its_call(results):
    drawn(results)["overlap"]()
    manager = sys.modules.get("matplotlib._pylab_helpers")
    assert manager is None or not manager.Gcf.figs


def test_titles_tell_what_is_drawn():
    assert "share 0.55" in finding(figures.overlap(P, Q))
    assert "holds 0.55" in finding(figures.coupling_table(P, Q))
    assert "from 0.35 to 0.5696" in finding(figures.simplex_ball(Q, 1, 0.1))
    thirteen = figures.candidate_and_emitted([0.53, 0.45, 0.02], [0.49, 0.42, 0.09], 0.00325)
    assert "0.04256 nats" in finding(thirteen)
    assert "13.1 times" in finding(thirteen)
    assert "0.386/V" in finding(figures.amplification([4, 4096]))
    assert "0.2847" in finding(figures.overspending_map())
    assert "1.2564" in finding(figures.overspending_envelope([0.5]))
    assert "everywhere" in finding(figures.closed_form(1.5))
    shares = figures.gain_shares(equal_rows())
    assert "JS of 0.02 nats, mentored take 95 to 95 %" in finding(shares)
    assert "target_only can accept less than sps" in finding(shares)

    assert (
        "2.696 by a schedule; most by a schedule, whose places spend 0.09, 0.05, 0.01"
        in finding(figures.spent_by_place(round_means()))
    )
    assert "0.2 nats from the verifier's, 91 %" in finding(
        figures.text_spending([0.1, 0.15, 0.2], [0.1, 0.16, 0.22])
    )
    lengths = figures.equal_lengths(decoding_runs())
    assert "1.7 times with 5, 1.5 times with 10 drafts a round" in finding(lengths)


def test_rules_that_leak_are_marked_and_those_that_stay_far_stand_below():
    (panel,) = figures.gain_shares(equal_rows()).axes
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == ["typical", "target_only", "ears (KL = ∞)", "mentored"]
    assert "← −60, −60 %" in {text.get_text() for text in panel.texts}


def test_yin_plane_sorts_rules_by_the_line():
    chosen = settings(["interpolation", "cactus_target_only"], [0.2])
    assert "1 of 2 rules stay on that line here, 1 leave it" in finding(
        figures.yin_plane(P, Q, chosen)
    )


def test_mentored_lies_on_every_frontier_and_interpolation_does_not():
    batch = Gaussian(1.0, 0.5).sample(1, 8, np.random.default_rng(3))
    chosen = settings(
        ["mentored", "interpolation"], {"mentored": [0.1, 0.4], "interpolation": [0.3]}
    )
    told = finding(figures.every_divergence(batch.p[0], batch.q[0], chosen))
    assert "mentored lies on all six frontiers" in told
    assert "interpolation 0." in told


def test_couplings_are_compared_both_ways():
    told = finding(figures.two_couplings(P, Q))
    first, second = map(float, re.findall(r"accepts (0\.\d+), the second (0\.\d+)", told)[0])
    assert first > second
    told = finding(figures.two_couplings([0.9, 0.0, 0.1], [0.2, 0.799, 0.001], longest=3))
    first, second = map(float, re.findall(r"accepts (0\.\d+), the second (0\.\d+)", told)[0])
    assert second > first + 0.05


def test_true_cost_is_the_divergence_of_the_closed_form_target():
    row = np.array(Q)
    law = one_step(make_rule("cactus", delta=0.1), [0.0, 1.0, 0.0], row)
    assert figures.true_cost(0.35, 0.1) == pytest.approx(divergence("kl", law.output, row))
    assert figures.true_cost(0.0, 0.1) == 0
    np.testing.assert_allclose(figures.true_cost(0.5, [10.0, 20.0]), np.log(2))


def test_reads_per_token_counts_a_round():
    # One draft: 2 reads; 2V more if rejected, V if the bonus is drawn; 1 or 2 tokens come out.
    assert figures.reads_per_token(0.0, 1, 100) == 202
    assert figures.reads_per_token(1.0, 1, 100) == pytest.approx((2 + 100) / 2)
    assert figures.reads_per_token(0.5, 2, 10) == pytest.approx(
        (2 * 1.5 + 0.75 * 20 + 0.25 * 10) / 1.75
    )


BAD = {
    "p must be one row": lambda t: figures.overlap([P, P], [Q, Q]),
    "p row 0 sums to": lambda t: figures.overlap([0.5, 0.4], [0.5, 0.5]),
    "one shape": lambda t: figures.coupling_table(P, [0.5, 0.5]),
    "one name for each": lambda t: figures.overlap(P, Q, ["A"]),
    "three tokens": lambda t: figures.simplex_ball([0.5, 0.5], 0, 0.1),
    "budget must lie in": lambda t: figures.closed_form(0.0),
    "longest must lie in": lambda t: figures.output_path(P, Q, np.inf),
    "acceptances must lie in": lambda t: figures.accepted_length([0.5, 1.0], 8, 0.1),
    "cost_ratio must lie in": lambda t: figures.accepted_length([0.5], 8, -1),
    "must be even": lambda t: figures.amplification([4, 5]),
    "probabilities must lie in": lambda t: figures.certainty([0.0]),
    "a list of them": lambda t: figures.certainty([]),
    "more than it guarantees": lambda t: figures.certified_rows([0.1], [0.2], 0.1),
    "differ in shape": lambda t: figures.certified_rows([0.1], [0.1, 0.1], 0.1),
    "nothing to compare": lambda t: figures.clip_picture(P, Q, "cactus", 0.0),
    "token with 0 < q < 1": lambda t: figures.collapse_path([1.0, 0.0], 1),
    "levels must lie in": lambda t: figures.corpus_frontier([P], [Q], [0.0]),
    "no rows of ears": lambda t: figures.entropy_by_acceptance(t[0], ["ears"]),
    "one source and pair": lambda t: figures.tradeoff(t[0].head(0), t[1]),
    "level must lie in": lambda t: figures.gaps(*t, level=0.0),
    "no rule stays within": lambda t: figures.gaps(t[0][t[0]["rule"] == "top_k"], t[1], 1e-6),
    "drafts must lie in": lambda t: figures.reads([0], 10),
    "vocab must be": lambda t: figures.reads([1], 1),
    "no runs to draw": lambda t: figures.decoding_costs(decoding_runs(), 7),
    "no runs of sps and": lambda t: figures.equal_lengths(decoding_runs().query("rule == 'sps'")),
    "no share to draw": lambda t: figures.gain_shares(equal_rows().query("rule == 'sps'")),
    "no gain to draw": lambda t: figures.round_gains(round_rows().head(0)),
    "count must be an integer": lambda t: figures.candidates_frontier(P, Q, [0]),
    "too many prefixes": lambda t: figures.round_lengths(P, Q, 30),
    "every run needs a speed_up": lambda t: figures.decoding_times(
        decoding_runs().assign(speed_up=np.nan)
    ),
    "correlations must lie in": lambda t: figures.typical_map([1], [1.5]),
}


@pytest.mark.parametrize("message", list(BAD))
def test_what_cannot_be_drawn_is_refused(message, results):
    with pytest.raises(ValueError, match=re.escape(message)):
        BAD[message](results)


def test_a_token_name_with_dollar_signs_is_shown_as_it_stands():
    figure = figures.overlap([0.5, 0.5], [0.4, 0.6], ["$a$", "$"])
    labels = figure.axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["$a$", "$"]
    assert not any(label.get_parse_math() for label in labels)
    figure._repr_png_()


def test_a_table_of_several_pairs_is_refused(results):
    table, frontier = results
    two = pd.concat([table, table.assign(source="other")])
    with pytest.raises(ValueError, match="one source and pair, not of 2"):
        figures.tradeoff(two, frontier)


def measured(values):
    """The table and frontier of some rules at some values, on the same rows every time."""
    batch = Gaussian().sample(6, 32, np.random.default_rng(0))
    tradeoff = Tradeoff(settings(["sps", *values], values), "gaussian", "", 32)
    tradeoff.add(Pair.prepare(batch.p, batch.q))
    return tradeoff.rows(), tradeoff.frontier()


def test_the_closest_rule_is_chosen_among_those_at_the_level():
    """The frontier rule, measured at 0.01 nats only, falls short of 0.1 nats by its grid alone."""
    figure = figures.gaps(*measured({"lenience": [0.3, 0.7], "frontier": [0.01]}))
    assert "closest is lenience (at most" in finding(figure)
    assert "known only nearer to the verifier: frontier" in finding(figure)
    (panel,) = figure.axes
    labels = {text.get_text().strip() for text in panel.texts}
    assert any(text.endswith("at 0.01 nats") for text in labels)
    assert any(re.fullmatch(r"0\.\d{4} to 0\.\d{4}", text) for text in labels)
    named = [label.get_text() for label in panel.get_yticklabels()]
    assert named[-1] == "lenience"
    figure = figures.gaps(*measured({"frontier": [0.01]}))
    assert "closest" not in finding(figure)


@pytest.mark.parametrize("values", [[0.03, 0.2], [0.001, 0.3], [0.09, 0.5], [0.1]])
def test_no_grid_makes_another_rule_the_closest_where_the_frontier_rule_is_known(values):
    """A chord of a concave curve lies below it, the more the wider its ends are apart."""
    told = finding(figures.gaps(*measured({"lenience": [0.45, 0.5, 0.55], "frontier": values})))
    closest = re.search(r"closest (?:is|are) (.*?) \(", told)[1].split(" or ")
    assert closest[0] == "frontier"


def test_entropies_are_told_of_rules_that_were_measured_there():
    table, _ = measured({"lenience": [0.9, 0.95], "cactus": [0.0, 0.01, 2.0]})
    told = finding(figures.entropy_by_acceptance(table, ["lenience", "cactus"]))
    assert re.search(r"lenience \(only measured from 0\.\d\d to 0\.\d\d\), cactus \d\.\d\d$", told)
