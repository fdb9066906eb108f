"""Certificates: no draft found by other means is worse, and the given one is as bad."""

from itertools import product

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import theory
from theory.arrays import to_numpy
from theory.certificates.budgets import Certificate, certified_divergence, certifying_budget
from theory.certificates.capped import head_count, largest_divergence
from theory.ledger.derivations.common import extreme_pairs

KINDS = [*theory.DIVERGENCES, "power:0.5", "power:3"]
RULES = {
    "cactus": {"delta": 0.05},
    "cactus_exact": {"delta": 0.05},
    "lenience": {"l": 0.7},
    "mentored": {"level": 0.05},
    "cactus_target_only": {"delta": 0.05},
    "target_only": {"threshold_acc": 0.6},
    "interpolation": {"alpha": 0.3},
    "sps": {},
    "ratio_threshold": {"threshold": 0.7},
    "constant_threshold": {"threshold": 0.7},
    "truncated_typical": {"epsilon": 0.2},
    "truncated_top_k": {"k": 3},
    "truncated_top_p": {"top_p": 0.8},
}
BUDGETED = [
    *("cactus", "cactus_exact", "lenience", "mentored", "cactus_target_only", "interpolation"),
    "ratio_threshold",
]


def products(kinds, names):
    """Every kind with every name; total variation under mentored decoding takes minutes."""
    return [
        pytest.param(
            kind,
            name,
            marks=[pytest.mark.nightly] if (kind, name) == ("total_variation", "mentored") else [],
        )
        for kind in kinds
        for name in names
    ]


PARAMETER = {
    "lenience": "l",
    "mentored": "level",
    "interpolation": "alpha",
    "ratio_threshold": "threshold",
}


def rule_of(name):
    return theory.make_rule(name, **RULES[name])


def spent_by(draft, q, rule, kind):
    return theory.divergence(kind, theory.one_step(rule, draft, q).output, q)


def cap_of(rule, q):
    factor = {"lenience": "l", "ratio_threshold": "threshold"}.get(rule.name)
    return np.minimum(q / getattr(rule, factor), 1.0) if factor else rule.gamma(q).value


def vertices(q, cap):
    """Every distribution with each token at 0 or at its cap, but one in between."""
    for bits in product((0.0, 1.0), repeat=len(q)):
        whole = np.asarray(bits) * cap
        left = 1.0 - whole.sum()
        if abs(left) < 1e-12:
            yield whole
        for k in np.flatnonzero((np.asarray(bits) == 0) & (left > 0) & (left <= cap + 1e-12)):
            yield whole + left * np.eye(len(q))[k]


@pytest.mark.parametrize("name", ["cactus", "cactus_exact", "lenience", "ratio_threshold"])
@pytest.mark.parametrize("kind", KINDS)
def test_small_rows_are_exact(name, kind):
    rng, rule = np.random.default_rng(3), rule_of(name)
    for size in (1, 2, 3, 6):
        for q in rng.dirichlet(np.full(size, 0.6), size=4):
            best = max(theory.divergence(kind, h, q) for h in vertices(q, cap_of(rule, q)))
            found = certified_divergence(q, rule, kind)
            assert found.lower == pytest.approx(best, rel=1e-9, abs=1e-12)
            assert found.upper == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_given_draft_causes_the_lower_bound(name, kind):
    rng, rule = np.random.default_rng(4), rule_of(name)
    for size in (2, 9, 40):
        q = rng.dirichlet(np.full(size, 0.8), size=6)
        found = certified_divergence(q, rule, kind)
        assert np.all(found.lower <= found.upper)
        np.testing.assert_allclose(found.draft.sum(axis=-1), 1.0, rtol=0, atol=1e-9)
        if kind != "reverse_kl":  # there the worst case drops a token: any rounding is finite
            caused = spent_by(found.draft, q, rule, kind)
            np.testing.assert_allclose(caused, found.lower, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_draft_exceeds_the_upper_bound(name, kind):
    rng, rule = np.random.default_rng(5), rule_of(name)
    for size in (2, 5, 30):
        p, q = extreme_pairs(rng, 150, size)
        found = certified_divergence(q, rule, kind)
        for share in (0.0, 0.5, 0.99):
            drafts = (1 - share) * p + share * found.draft
            caused = spent_by(drafts, q, rule, kind)
            assert np.all(caused <= found.upper * (1 + 1e-7) + 1e-9)


@given(
    weights=arrays(np.float64, (2, 7), elements=st.floats(1e-6, 1.0)),
    name=st.sampled_from(["cactus", "cactus_exact", "lenience", "mentored"]),
    kind=st.sampled_from(KINDS),
    looseness=st.floats(1e-6, 3.0),
)
def test_no_drawn_draft_exceeds_it_either(weights, name, kind, looseness):
    p, q = weights / weights.sum(axis=-1, keepdims=True)
    value = np.exp(-looseness) if name == "lenience" else looseness
    rule = theory.make_rule(name, **{PARAMETER.get(name, "delta"): value})
    upper = certified_divergence(q, rule, kind).upper
    assert spent_by(p, q, rule, kind) <= upper * (1 + 1e-7) + 1e-9


@pytest.mark.parametrize(
    ("kind", "name"),
    products(KINDS, ["cactus", "cactus_exact", "cactus_target_only", "mentored"]),
)
def test_it_grows_with_the_budget(kind, name):
    q = np.random.default_rng(6).dirichlet(np.full(30, 0.5), size=3)
    parameter = PARAMETER.get(name, "delta")
    rules = [theory.make_rule(name, **{parameter: v}) for v in np.geomspace(1e-6, 5, 25)]
    upper = np.stack([certified_divergence(q, rule, kind).upper for rule in rules])
    assert np.all(upper[1:] >= upper[:-1] * (1 - 1e-9))


@pytest.mark.parametrize(
    ("kind", "name"),
    products(["kl", "pearson_chi2", "total_variation", "squared_hellinger"], BUDGETED),
)
def test_the_budget_keeps_the_wanted_divergence_and_uses_it_up(kind, name):
    q = np.random.default_rng(7).dirichlet(np.full(15, 0.7), size=3)
    wanted = np.array([0.01, 0.05, 0.1])
    budgets = certifying_budget(q, wanted, name, kind)
    for row, goal, budget in zip(q, wanted, budgets):
        rule = theory.make_rule(name, **{PARAMETER.get(name, "delta"): float(budget)})
        assert certified_divergence(row, rule, kind).upper == pytest.approx(goal, rel=1e-9)


def test_a_budget_is_infinite_where_no_draft_can_exceed_the_wanted_divergence():
    q = np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(certifying_budget(q, np.log(4.0) + 1e-9), np.inf)
    assert certifying_budget(q[0], np.log(4.0) - 1e-3) < np.inf
    assert certifying_budget(q[0], 5.0, "lenience") == 0.25
    assert certifying_budget(q[0], 0.0) == pytest.approx(0.0, abs=1e-30)


def test_the_reach_of_a_uniform_row():
    q = np.full(49_152, 1 / 49_152)
    found = certified_divergence(q, theory.make_rule("cactus", delta=0.01))
    assert found.upper == pytest.approx(np.log1p(np.sqrt(0.02 * 49_151)), rel=1e-9)
    assert 3.47 < found.lower <= found.upper


@pytest.mark.parametrize("size", [20, 300, 5000])
def test_the_gap_is_the_defect_of_one_token_of_the_tail(size):
    rng, rule = np.random.default_rng(8), rule_of("cactus")
    q = rng.dirichlet(np.full(size, 0.3), size=10)
    found = certified_divergence(q, rule)
    cap = np.sort(rule.gamma(q).value, axis=-1)[:, ::-1]
    assert np.all(found.upper - found.lower <= cap[:, head_count(size)] / np.e + 1e-12)


def test_target_only_is_certified_at_its_budget():
    q = np.random.default_rng(9).dirichlet(np.ones(12), size=5)
    for delta in (1e-3, 0.3):
        rule = theory.make_rule("cactus_target_only", delta=delta, exact=True)
        np.testing.assert_allclose(certified_divergence(q, rule).upper, delta, rtol=1e-12)
        closed = theory.make_rule("cactus_target_only", delta=delta)
        assert np.all(certified_divergence(q, closed).upper <= np.log1p(2 * delta) + 1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_threshold_of_at_most_a_half_has_the_reach_of_lenience(kind):
    q = np.random.default_rng(15).dirichlet(np.ones(9), size=5)
    constant = theory.make_rule("constant_threshold", threshold=0.4)
    found = certified_divergence(q, constant, kind)
    expected = certified_divergence(q, theory.make_rule("lenience", l=0.4), kind)
    np.testing.assert_allclose(found.upper, expected.upper, rtol=1e-12)
    np.testing.assert_allclose(found.lower, expected.lower, rtol=1e-9)


def test_a_constant_threshold_of_one_reaches_everything_on_the_support():
    """Its worst draft is a hair away from the verifier: all but the rarest token is rejected."""
    q = np.array([0.49, 0.48, 0.03])
    rule = theory.make_rule("constant_threshold", threshold=1)
    upper = certified_divergence(q, rule).upper
    assert upper == pytest.approx(-np.log(0.03))
    draft = q + 1e-12 * np.array([1, 1, -2])
    assert spent_by(draft, q, rule, "kl") == pytest.approx(upper)


def test_a_truncated_law_is_certified_at_what_it_cuts():
    q = np.array([[0.5, 0.3, 0.15, 0.05], [0.97, 0.01, 0.01, 0.01]])
    found = certified_divergence(q, theory.make_rule("truncated_top_p", top_p=0.9))
    np.testing.assert_allclose(found.upper, -np.log([0.95, 0.97]), rtol=1e-12)
    np.testing.assert_array_equal(found.lower, found.upper)


def test_lenience_is_certified_at_the_logarithm():
    q = np.random.default_rng(10).dirichlet(np.ones(400), size=5)
    found = certified_divergence(q, theory.make_rule("lenience", l=0.5))
    np.testing.assert_allclose(found.upper, np.log(2.0), rtol=1e-9)
    np.testing.assert_allclose(found.lower, np.log(2.0), rtol=1e-2)


def test_mentored_is_worst_at_the_rarest_token_and_exact_for_its_own_divergence():
    q, level = np.random.default_rng(11).dirichlet(np.ones(9), size=4), 0.07
    rule = theory.make_rule("mentored", level=level)
    np.testing.assert_allclose(certified_divergence(q, rule, "reverse_kl").upper, level, rtol=1e-9)
    found = certified_divergence(q, rule)
    rarest = q.min(axis=-1)
    raised = theory.optimal_gamma(rarest, level, "reverse_kl").value
    expected = theory.DIVERGENCES["kl"].two_point(raised, rarest)
    np.testing.assert_allclose(found.upper, expected, rtol=1e-12)
    np.testing.assert_array_equal((found.draft > q).argmax(axis=-1), q.argmin(axis=-1))


@pytest.mark.parametrize("size", [2, 5, 9])
def test_mentored_in_total_variation_is_the_best_of_all_sets(size):
    q, level = np.random.default_rng(12).dirichlet(np.ones(size)), 0.1
    masses = np.array([q[np.array(b) > 0].sum() for b in product((0, 1), repeat=size)])[1:-1]
    gains = theory.optimal_gamma(masses, level, "reverse_kl").value - masses
    found = certified_divergence(q, theory.make_rule("mentored", level=level), "total_variation")
    assert found.lower == pytest.approx(gains.max(), rel=1e-9)
    assert found.upper == pytest.approx(gains.max(), rel=1e-9)


def test_a_token_that_can_vanish_makes_the_reverse_divergence_infinite():
    q = np.array([0.6, 0.4])
    small, large = (theory.make_rule("cactus", delta=d) for d in (1e-3, 5.0))
    assert certified_divergence(q, small, "reverse_kl").upper < 1.0
    found = certified_divergence(q, large, "reverse_kl")
    assert found.lower == found.upper == np.inf
    assert spent_by(found.draft, q, large, "reverse_kl") == np.inf


def test_as_many_heads_as_the_row_affords():
    assert [head_count(n) for n in (1, 2, 12, 13)] == [1, 2, 12, 10]
    assert head_count(150_000) == 2


def test_the_bounds_without_a_tail_agree_with_those_with_one(monkeypatch):
    rng = np.random.default_rng(13)
    q = rng.dirichlet(np.ones(10), size=6)
    cap = theory.optimal_gamma(q, 0.1).value
    kind = theory.DIVERGENCES["kl"]
    exact = largest_divergence(kind, q, cap)
    np.testing.assert_array_equal(exact.lower, exact.upper)
    for heads in (1, 3, 6):
        monkeypatch.setattr("theory.certificates.capped.head_count", lambda width, m=heads: m)
        loose = largest_divergence(kind, q, cap)
        assert np.all(loose.lower <= exact.lower + 1e-12)
        assert np.all(exact.lower <= loose.upper + 1e-12)


@pytest.mark.parametrize(("kind", "name"), products(["kl", "total_variation", "reverse_kl"], RULES))
def test_every_library_gives_the_same(kind, name):
    torch = pytest.importorskip("torch")
    q = np.random.default_rng(14).dirichlet(np.full(18, 0.4), size=(2, 2))
    q[0, 0] = np.eye(18)[3]
    q.setflags(write=False)
    rule = rule_of(name)
    plain = certified_divergence(q, rule, kind)
    others = (torch.tensor(q), array_api_strict.asarray(q))
    for other in (certified_divergence(rows, rule, kind) for rows in others):
        assert isinstance(other, Certificate)
        for mine, theirs in zip(plain[:2], other[:2]):
            np.testing.assert_allclose(to_numpy(theirs), mine, rtol=1e-9, atol=1e-12)
    lazy = certified_divergence(torch.tensor(q, device="meta"), rule, kind)
    assert (lazy.upper.shape, lazy.draft.shape) == ((2, 2), (2, 2, 18))
    single = certified_divergence(q.astype(np.float32), rule, kind)
    assert single.upper.dtype == single.draft.dtype == np.float32
    assert certified_divergence(np.ones((0, 18)), rule, kind).upper.shape == (0,)


def test_budgets_of_a_batch_in_another_library():
    torch = pytest.importorskip("torch")
    q = np.random.default_rng(15).dirichlet(np.ones(8), size=3)
    mine = certifying_budget(q, [0.1, 0.2, 0.3])
    theirs = certifying_budget(torch.tensor(q), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    np.testing.assert_allclose(theirs.numpy(), mine, rtol=1e-9)


def test_user_errors_are_named():
    q = np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="no certificate is known for rule 'typical'"):
        certified_divergence(q, theory.make_rule("typical"))
    with pytest.raises(ValueError, match="no budget for rule 'sps'"):
        certifying_budget(q, 0.1, "sps")
    with pytest.raises(ValueError, match="wanted must lie in"):
        certifying_budget(q, -0.1)
    with pytest.raises(ValueError, match="q row 0 sums to"):
        certified_divergence(np.array([0.5, 0.6]), rule_of("cactus"))
    with pytest.raises(ValueError, match="unknown divergence"):
        certified_divergence(q, rule_of("cactus"), "nonsense")
    with pytest.raises(ValueError, match="orders must exceed 0"):
        certified_divergence(q, rule_of("mentored"), "power:-1")
