"""The summary of a table: every number beside its divergence, and none above the best one there."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.pairs.families import generators, make_family
from sim.tables import grid
from sim.tables.findings import amplification_finding, summary_table, told, tradeoff_finding
from sim.tables.summary import (
    AT_LEVEL,
    BETWEEN,
    FARTHER,
    FRONTIER,
    MEAN,
    MEASURED,
    MIXED,
    NEARER,
    SUMMARY_COLUMNS,
    summarise,
)
from sim.tables.tradeoff import Tradeoff
from theory import RULES
from theory.pair import Pair


def measured(name, chosen=None, rows=4, vocab=32, seed=0):
    tradeoff = Tradeoff(chosen or grid.settings(), name, "some parameters", vocab)
    batch = make_family(name).sample(rows, vocab, next(generators(seed, 1)))
    tradeoff.add(Pair.prepare(batch.p, batch.q))
    return tradeoff


def both(tradeoffs):
    tables = [(tradeoff.rows(), tradeoff.frontier()) for tradeoff in tradeoffs]
    return [pd.concat(frames, ignore_index=True) for frames in zip(*tables)]


@pytest.fixture(scope="module")
def results():
    return both([measured("gaussian"), measured("disjoint")])


def small_table():
    """Acceptances below 0.5 + √(D/1.25), which a frontier might be."""
    rows = [("sps", 0.0, 0.5), ("a", 0.05, 0.6), ("a", 0.25, 0.8), ("b", 0.3, 0.9),
            ("near", 0.02, 0.55), ("near", 0.088, 0.7), ("leaks", 0.0, 0.5), ("leaks", np.inf, 1.0),
            ("turns", 0.04, 0.6), ("turns", 0.2, 0.4), ("at", 0.1, 0.7)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["rule", "kl_output_verifier", "acceptance"])
    table["frontier_acceptance"] = np.minimum(0.5 + (table["kl_output_verifier"] / 1.25) ** 0.5, 1)
    table[["source", "pair"]], table["vocab"] = "s", 4
    curve = pd.DataFrame({"level": [0.0, 0.2], "acceptance": [0.5, 0.9]})
    curve[["source", "pair"]], curve["vocab"] = "s", 4
    return table, curve


def test_each_number_stands_beside_its_divergence():
    summary = summarise(*small_table(), level=0.1)
    assert tuple(summary.columns) == SUMMARY_COLUMNS
    assert set(summary["panel"]) == {"s"}
    entries = summary.set_index("rule")[["acceptance", "kl_output_verifier", "status"]]
    found = {rule: tuple(entry) for rule, entry in entries.iterrows()}
    best = 0.5 + (0.1 / 1.25) ** 0.5
    assert found == {
        FRONTIER: (pytest.approx(best, abs=1e-3), 0.1, MEASURED),
        "sps": (0.5, 0.0, NEARER),
        "a": (pytest.approx(0.65), 0.1, BETWEEN),
        "b": (pytest.approx(np.nan, nan_ok=True), 0.3, FARTHER),
        "near": (0.7, 0.088, NEARER),
        "leaks": (0.5, 0.0, NEARER),
        "turns": (0.6, 0.04, MEASURED),
        "at": (0.7, 0.1, MEASURED),
    }
    assert summary_table(summary, 0.1)["s"].to_dict() == {
        FRONTIER: "0.783", "sps": "0.500 at 0", "a": "≥ 0.650", "b": "–", "near": "0.700 at 0.088",
        "leaks": "0.500 at 0", "turns": "0.600 at 0.04", "at": "0.700",
    }  # fmt: skip


def test_a_lower_bound_is_rounded_down():
    entry = pd.Series(
        {"acceptance": 0.79996, "kl_output_verifier": 0.1, "status": BETWEEN, "rule": "a"}
    )
    assert told(entry, 0.1) == "≥ 0.799"
    assert told(pd.Series({**entry, "status": MEASURED}), 0.1) == "0.800"


def test_a_grid_that_ends_before_the_level_does_not_make_the_best_rule_lose():
    """Lenience interpolated to 0.1 nats, above the frontier rule that was last seen nearer."""
    chosen = grid.settings(["lenience", "frontier"], {"lenience": [0.2, 0.5], "frontier": [0.01]})
    table, frontier = both([measured("gaussian", chosen, rows=16)])
    summary = summarise(table, frontier).set_index("rule")
    lenience, best = summary.loc["lenience"], summary.loc["frontier"]
    assert lenience["acceptance"] > best["acceptance"]
    assert (lenience["status"], lenience["kl_output_verifier"]) == (BETWEEN, 0.1)
    assert (best["status"], best["kl_output_verifier"]) == (NEARER, pytest.approx(0.01))
    shown = summary_table(summarise(table, frontier))["gaussian"]
    assert shown["lenience"].startswith("≥ 0.")
    assert shown["frontier"].endswith(" at 0.01")


def test_two_values_far_apart_are_joined_by_a_lower_bound_only():
    """A chord lies below a concave curve: it may not be read as what the rule accepts."""
    wide = grid.settings(["frontier"], [0.001, 0.3])
    close = grid.settings(["frontier"], [0.1])
    (table, frontier), (exact, _) = (
        both([measured("gaussian", chosen, rows=16)]) for chosen in (wide, close)
    )
    entry = summarise(table, frontier).set_index("rule").loc["frontier"]
    assert entry["status"] == BETWEEN
    assert entry["acceptance"] < exact["acceptance"].item() - 0.01
    # The shortfall below the frontier does not depend on how far apart the two values are.
    assert entry["interpolated_acceptance"] == pytest.approx(exact["acceptance"].item(), abs=4e-3)
    assert told(entry).startswith("≥")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["gaussian", "disjoint", "zipf", "near_equal", "filtered", "dirichlet"]),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=12),
    st.floats(-4, 1).map(lambda power: 10.0**power),
    st.integers(0, 50),
)
def test_no_rule_is_above_the_best_one_at_the_divergence_beside_it(name, picks, level, seed):
    """Whatever the grid, the level and the rows; the frontier rule is at most the best one too."""
    every = grid.settings()
    chosen = tuple(dict.fromkeys(every[pick % len(every)] for pick in picks))
    tradeoff = measured(name, chosen, rows=3, vocab=16, seed=seed)
    summary = summarise(tradeoff.rows(), tradeoff.frontier(), level)
    shown = summary[~summary["status"].isin([FARTHER, MIXED])]
    corpus = tradeoff._corpus
    for _, entry in shown.iterrows():
        best = corpus.acceptance(entry["kl_output_verifier"])
        assert entry["acceptance"] <= entry["interpolated_acceptance"] + 1e-12
        assert entry["interpolated_acceptance"] <= entry["best_acceptance"] + 1e-6
        assert entry["acceptance"] <= best + 1e-6 or entry["rule"] == FRONTIER
        assert entry["best_acceptance"] == pytest.approx(best, abs=1e-3)
        assert entry["kl_output_verifier"] <= level * (1 + 1e-6)
    assert not summary.loc[summary["status"] != MIXED, "kl_output_verifier"].isna().any()
    hidden = summary[summary["status"] == FARTHER]
    assert (hidden["kl_output_verifier"] > level).all()
    assert hidden["acceptance"].isna().all()


def test_every_rule_of_a_sweep_is_in_every_panel(results):
    summary = summarise(*results)
    assert list(dict.fromkeys(summary["panel"])) == ["gaussian", "disjoint", MEAN]
    for _, entries in summary.groupby("panel"):
        assert set(entries["rule"]) == {FRONTIER, *RULES}
        assert not entries["rule"].duplicated().any()


def test_a_mean_is_of_one_divergence_or_there_is_none(results):
    summary = summarise(*results)
    panels, means = summary[summary["panel"] != MEAN], summary[summary["panel"] == MEAN]
    for _, mean in means.iterrows():
        entries = panels[panels["rule"] == mean["rule"]]
        if set(entries["status"]) <= set(AT_LEVEL):
            assert mean["acceptance"] == pytest.approx(entries["acceptance"].mean())
            assert mean["kl_output_verifier"] == 0.1
        elif mean["rule"] == "sps":
            assert (mean["status"], mean["kl_output_verifier"]) == (NEARER, pytest.approx(0.0))
        else:
            assert mean["status"] == MIXED
            assert mean[["acceptance", "kl_output_verifier"]].isna().all()
    # On disjoint rows interpolation leaves the support at once, so that it has no mean at 0.1 nats.
    assert means.set_index("rule").loc["interpolation", "status"] == MIXED
    assert "interpolation" not in tradeoff_finding(summary)


def test_where_everything_is_accepted_before_the_level_the_grid_hides_nothing():
    summary = summarise(*both([measured("near_equal")])).set_index("rule")
    assert summary.loc[FRONTIER, "acceptance"] == pytest.approx(1)
    lenience = summary.loc["lenience"]
    assert (lenience["acceptance"], lenience["status"]) == (pytest.approx(1), MEASURED)
    assert lenience["kl_output_verifier"] < 0.01
    assert summary.loc["sps", "status"] == NEARER


def test_sampling_settings_of_one_source_are_told_apart_and_not_averaged():
    table, curve = small_table()
    table = table[table["rule"].isin(["sps", "a"])].replace({"a": "lenience"})
    hot, cold = table.assign(pair="T=1"), table.assign(pair="T=0.6 top-k 20")
    curves = [curve.assign(pair="T=1"), curve.assign(pair="T=0.6 top-k 20")]
    summary = summarise(pd.concat([hot, cold]), pd.concat(curves), level=0.1)
    assert list(dict.fromkeys(summary["panel"])) == ["T=1", "T=0.6 top-k 20"]
    lines = tradeoff_finding(summary, 0.1).splitlines()
    assert lines[0].endswith("no rule can accept more than this share of the drafts")
    assert lines[0].startswith("At a mean KL of 0.1 nats from the verifier")
    best = summary.loc[summary["rule"] == FRONTIER, "acceptance"].iloc[0]
    told_of = f"{best:.3f}; lenience ≥ 0.650; nearer to it: sps 0.500 at 0 nats"
    assert lines[1:] == [f"T=1: {told_of}", f"T=0.6 top-k 20: {told_of}"]
    # Of several sources, a source that has several panels is named with what tells these apart.
    other = pd.concat([hot, cold, table.assign(source="t")])
    summary = summarise(other, pd.concat([*curves, curve.assign(source="t")]), level=0.1)
    names = ["s (T=1)", "s (T=0.6 top-k 20)", "t (s)", "mean"]
    assert list(dict.fromkeys(summary["panel"])) == names
    assert "of the drafts, on average over the panels:\nlenience" in tradeoff_finding(summary, 0.1)


def test_a_finding_without_a_rule_of_the_headline_ends_with_the_frontier():
    table, curve = small_table()
    summary = summarise(table[table["rule"] == "b"], curve)
    assert tradeoff_finding(summary).endswith(" of the drafts")


def test_amplification_finding_reports_the_largest_excess(results):
    table, _ = results
    spent = table[(table["rule"].isin(["cactus", "cactus_exact"])) & (table["value"] > 0)]
    most = (spent["kl_output_verifier"] / spent["value"]).max()
    assert f"{most:,.0f} × δ (cactus" in amplification_finding(table)
    assert "δ" in amplification_finding(table[table["rule"] == "sps"])
