"""The table: its schema, its means and standard errors, and what streaming must not change."""

import numpy as np
import pandas as pd
import pytest

from sim.pairs.families import generators, make_family
from sim.rounds.metrics import expected_accepted
from sim.tables import tradeoff as tradeoff_module
from sim.tables.grid import DEFAULT_GRID, KINDS, Setting, kind_of, settings
from sim.tables.tradeoff import COLUMNS, MEANS, MEASURES, Tradeoff, measure_batch
from theory import RULES, CorpusFrontier, divergence, one_step
from theory.pair import Pair

FEW = settings(["sps", "lenience", "interpolation", "cactus", "typical"], {"cactus": [0.01, 0.5]})


def batch(name="gaussian", rows=12, vocab=40, seed=0, **parameters):
    return make_family(name, **parameters).sample(rows, vocab, next(generators(seed, 1)))


def prepare(pairs, rows=slice(None)):
    return Pair.prepare(pairs.p[rows], pairs.q[rows])


def accumulate(pairs, parts, clusters=None, chosen=FEW):
    tradeoff = Tradeoff(chosen, "here", "pair", pairs.p.shape[-1])
    for part in parts:
        labels = None if clusters is None else clusters[part]
        tradeoff.add(prepare(pairs, part), labels)
    return tradeoff


def test_schema():
    pairs = batch()
    table = accumulate(pairs, [slice(None)]).rows()
    assert tuple(table.columns) == COLUMNS
    assert len(table) == len(FEW)
    assert {"source", "pair", "vocab", "positions"} <= set(table.columns)
    for name in MEANS:
        assert f"{name}_se" in COLUMNS
    assert (table["positions"] == 12).all()
    assert (table["vocab"] == 40).all()
    numbers = table.select_dtypes("number")
    assert not numbers.isna().to_numpy().any()
    assert pd.api.types.is_float_dtype(table["value"])


def test_means_are_those_of_the_exact_laws():
    pairs = batch()
    table = accumulate(pairs, [slice(None)]).rows()
    for setting, row in zip(FEW, table.to_dict("records")):
        law = one_step(setting.build(), pairs.p, pairs.q)
        assert (row["rule"], row["value"]) == (setting.rule, setting.value)
        means = {
            "acceptance": law.acceptance,
            "kl_output_verifier": divergence("kl", law.output, pairs.q),
            "kl_verifier_output": divergence("reverse_kl", law.output, pairs.q),
            "tv": np.abs(law.output - pairs.q).sum(axis=-1) / 2,
            "chi2": ((law.output - pairs.q) ** 2 / pairs.q).sum(axis=-1),
            "hellinger2": ((law.output**0.5 - pairs.q**0.5) ** 2).sum(axis=-1) / 2,
            "js": divergence("js", law.output, pairs.q),
            "max_ratio": (law.output / pairs.q).max(axis=-1),
            "entropy_verifier": -(pairs.q * np.log(pairs.q)).sum(axis=-1),
        }
        for name, values in means.items():
            assert row[name] == pytest.approx(values.mean(), rel=1e-9, abs=1e-12)
            infinite = np.isinf(values).any()
            error = np.inf if infinite else values.std(ddof=1) / np.sqrt(values.size)
            assert row[f"{name}_se"] == pytest.approx(error, rel=1e-6, abs=1e-9)
        assert row["expected_accepted_5"] == expected_accepted(min(row["acceptance"], 1), 5)


def test_golden_row():
    pairs = batch(rows=2, vocab=3)
    pairs.p[:], pairs.q[:] = (0.05, 0.80, 0.15), (0.30, 0.35, 0.35)
    chosen = (Setting("cactus", "delta", 0.1), Setting("typical", "epsilon", 0.09))
    row, typical = accumulate(pairs, [slice(None)], chosen=chosen).rows().to_dict("records")
    assert row["acceptance"] == pytest.approx(0.763307, abs=1e-6)
    assert row["kl_output_verifier"] == pytest.approx(0.094382, abs=1e-6)
    assert row["max_ratio"] == pytest.approx(0.563307 / 0.35, abs=1e-5)
    assert row["acceptance_se"] == pytest.approx(0, abs=1e-15)
    assert typical["acceptance"] == pytest.approx(1)
    assert typical["frontier_acceptance"] == pytest.approx(1)


@pytest.mark.parametrize("clusters", [None, np.repeat([3, 1, 2], 4).tolist()])
def test_streaming_and_merging_change_nothing(clusters):
    pairs = batch()
    whole = accumulate(pairs, [slice(None)], clusters).rows()
    parts = [slice(0, 5), slice(5, 6), slice(6, 12)]
    pd.testing.assert_frame_equal(accumulate(pairs, parts, clusters).rows(), whole, rtol=1e-10)
    first = accumulate(pairs, parts[:1], clusters)
    first.merge(accumulate(pairs, parts[1:], clusters))
    pd.testing.assert_frame_equal(first.rows(), whole, rtol=1e-10)


def test_standard_errors_are_clustered():
    # Each prompt repeats one row: as many positions, but only three independent ones.
    pairs = batch(rows=3)
    tripled = type(pairs)(np.repeat(pairs.p, 4, axis=0), np.repeat(pairs.q, 4, axis=0))
    prompts = np.repeat(["a", "b", "c"], 4).tolist()
    single = accumulate(pairs, [slice(None)]).rows()
    clustered = accumulate(tripled, [slice(None)], prompts).rows()
    naive = accumulate(tripled, [slice(None)]).rows()
    for name in ("acceptance", "tv", "frontier_gap"):
        np.testing.assert_allclose(clustered[name], single[name], rtol=1e-10, atol=1e-12)
        error = f"{name}_se"
        np.testing.assert_allclose(clustered[error], single[error], rtol=1e-8, atol=1e-12)
    assert naive["acceptance_se"].iloc[0] < 0.6 * clustered["acceptance_se"].iloc[0]


def test_clusters_of_unequal_size_weigh_by_their_positions():
    pairs = batch()
    sizes = [1, 2, 3, 6]
    prompts = np.repeat(np.arange(4), sizes)
    row = accumulate(pairs, [slice(None)], prompts.tolist()).rows().iloc[0]
    alpha = np.minimum(pairs.p, pairs.q).sum(axis=-1)
    total = np.bincount(prompts, alpha - alpha.mean())
    expected = np.sqrt(4 / 3 * np.sum(total**2)) / 12
    assert row["acceptance_se"] == pytest.approx(expected, rel=1e-10)


def test_one_cluster_has_no_standard_error_and_nothing_else_is_missing():
    table = accumulate(batch(), [slice(None)], ["only"] * 12).rows()
    errors = [name for name in COLUMNS if name.endswith("_se")]
    assert table[errors].isna().all(axis=None)
    assert not table.drop(columns=errors).isna().any(axis=None)


def test_infinite_divergences_stay_infinite():
    pairs = batch("disjoint", overlap=0.5)
    chosen = settings(["interpolation", "sps"], {"interpolation": [0.5]})
    mixed, strict = accumulate(pairs, [slice(None)], chosen=chosen).rows().to_dict("records")
    for name in ("kl_output_verifier", "chi2", "max_ratio"):
        assert mixed[name] == np.inf
        assert mixed[f"{name}_se"] == np.inf
        assert np.isfinite(strict[name])
    assert mixed["frontier_acceptance"] == 1
    assert np.isfinite(mixed["tv"])


@pytest.mark.parametrize("family", ["dirichlet", "zipf", "filtered", "near_equal", "disjoint"])
def test_no_rule_is_above_the_frontier_and_nothing_is_nan(family):
    pairs = batch(family, rows=24, vocab=64, seed=4)
    prepared = Pair.prepare(pairs.p, pairs.q, p_raw=pairs.p_raw, q_raw=pairs.q_raw)
    tradeoff = Tradeoff(settings(), family, "", 64)
    tradeoff.add(prepared)
    table = tradeoff.rows()
    assert not table.isna().any(axis=None)
    assert set(table["rule"]) == set(RULES)
    # frontier_corpus lies on the frontier, which is interpolated to about 1e-6.
    on_it = table["rule"] == "frontier_corpus"
    assert table.loc[~on_it, "frontier_gap"].min() > -1e-7
    assert table.loc[on_it, "frontier_gap"].abs().max() < 5e-6
    curve = tradeoff.frontier()
    assert list(curve.columns) == ["source", "pair", "vocab", "level", "acceptance"]
    assert not curve.isna().any(axis=None)
    strict = table.loc[table["rule"] == "sps", "acceptance"].item()
    assert curve["acceptance"].iloc[0] == pytest.approx(strict, abs=1e-12)


def test_measured_arrays_are_per_position():
    pairs = batch(rows=5)
    measured = measure_batch(prepare(pairs), [setting.build() for setting in FEW])
    assert {values.shape for values in measured.values()} == {(len(FEW), 5)}
    alpha = np.minimum(pairs.p, pairs.q).sum(axis=-1)
    np.testing.assert_allclose(measured["acceptance"][0], alpha, rtol=1e-13)


def test_torch_rows_give_the_same_table():
    torch = pytest.importorskip("torch")
    pairs = batch()
    tradeoff = Tradeoff(FEW, "here", "pair", 40)
    tradeoff.add(Pair.prepare(torch.asarray(pairs.p), torch.asarray(pairs.q)))
    plain = accumulate(pairs, [slice(None)]).rows()
    pd.testing.assert_frame_equal(tradeoff.rows(), plain, rtol=1e-9, atol=1e-12)


def test_impossible_requests_are_refused():
    tradeoff = Tradeoff(FEW, "here", "pair", 40)
    with pytest.raises(ValueError, match="no positions were added"):
        tradeoff.rows()
    with pytest.raises(ValueError, match="label each of the 12 rows, got 2"):
        tradeoff.add(prepare(batch()), ["a", "b"])
    with pytest.raises(ValueError, match="cannot merge"):
        tradeoff.merge(Tradeoff(FEW, "elsewhere", "pair", 40))


def test_grid_covers_every_rule():
    assert set(DEFAULT_GRID) == set(RULES)
    for rule, values in DEFAULT_GRID.items():
        assert len(set(values)) >= (13 if RULES[rule].parameter else 1)
        assert kind_of(rule) in KINDS[:-1]
    assert len(settings()) == sum(map(len, DEFAULT_GRID.values()))
    assert kind_of("a rule of somebody else") == "other"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["cactos"],), "unknown rule 'cactos'; did you mean 'cactus'?"),
        ((["cactus"], {"lenience": [0.5]}), "'lenience', which is not swept"),
        ((["cactus"], {"cactuss": [0.5]}), "did you mean 'cactus'"),
        ((["cactus"], [-1.0]), "delta must lie in .* got -1"),
        ((["top_k"], [2.5]), "k must be a whole number"),
        ((["typical"], [-0.5]), "epsilon must lie in"),
        ((["cactus"], []), "'cactus' has no default values"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        settings(*arguments)


def test_values_can_be_given_to_all_rules_or_to_one():
    chosen = settings(["lenience", "cactus", "sps"], [0.5, 1.0])
    assert [(s.rule, s.parameter, s.value) for s in chosen] == [
        ("lenience", "l", 0.5),
        ("lenience", "l", 1.0),
        ("cactus", "delta", 0.5),
        ("cactus", "delta", 1.0),
        ("sps", "", 0.0),
    ]
    own = settings(["lenience", "cactus"], {"cactus": [0.25]})
    assert [s.value for s in own if s.rule == "cactus"] == [0.25]
    assert len([s for s in own if s.rule == "lenience"]) == 13
    assert Setting("typical", "epsilon", 0.09).build().alpha == pytest.approx(0.3)


def test_a_law_that_is_emitted_again_is_not_measured_again(monkeypatch):
    """A cascade emits p or q; what is shared with the setting before must not blur the others."""
    pairs, seen = batch(rows=5), []
    chosen = settings(["sps", "cascade_chow", "cactus"], {"cascade_chow": [0, 1], "cactus": [0.1]})
    rules = [setting.build() for setting in chosen]
    alone = [measure_batch(prepare(pairs), [rule]) for rule in rules]
    whole = tradeoff_module._measure_output
    monkeypatch.setattr(
        tradeoff_module, "_measure_output", lambda *law: seen.append(law) or whole(*law)
    )
    together = measure_batch(prepare(pairs), rules)
    assert len(seen) == 3  # sps and the cascade that trusts nothing emit q
    for name, values in together.items():
        np.testing.assert_array_equal(values, np.concatenate([one[name] for one in alone]))


def test_positions_measured_before_are_taken_as_if_they_were_added():
    pairs, labels = batch(rows=6), list("aabbcc")
    tradeoff, corpus = Tradeoff(FEW, "here", "pair", 40), CorpusFrontier("kl")
    corpus.add(prepare(pairs))
    measured = tradeoff.measure(prepare(pairs))
    assert set(measured) == set(MEASURES)
    tradeoff.take(measured, CorpusFrontier.from_arrays(corpus.arrays()), labels)
    expected = accumulate(pairs, [slice(None)], labels)
    pd.testing.assert_frame_equal(tradeoff.rows(), expected.rows(), check_exact=True)
    pd.testing.assert_frame_equal(tradeoff.frontier(), expected.frontier(), check_exact=True)
    with pytest.raises(ValueError, match="not those of 42 settings at 5 rows"):
        tradeoff.take(measured, corpus, labels[:5])
    with pytest.raises(ValueError, match="not those of 42 settings at 6 rows"):
        tradeoff.take(measured, CorpusFrontier("kl"), labels)


def test_rows_on_another_device_give_the_same_results():
    """As CUDA would, the second device of the strict array library refuses arrays of the host."""
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    chosen = settings(None, {rule: DEFAULT_GRID[rule][4:5] for rule in RULES if rule != "sps"})
    for family in ("gaussian", "disjoint"):
        pairs = batch(family, rows=3, vocab=16)
        there = [strict.asarray(rows, device=device) for rows in (pairs.p, pairs.q)]
        found, expected = (
            Tradeoff(chosen, "here", "pair", 16).measure(Pair.prepare(*rows))
            for rows in (there, (pairs.p, pairs.q))
        )
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
        corpora = CorpusFrontier("kl"), CorpusFrontier("kl")
        for corpus, rows in zip(corpora, (there, (pairs.p, pairs.q))):
            corpus.add(Pair.prepare(*rows))
        for one, other in zip(*(corpus.arrays() for corpus in corpora)):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
