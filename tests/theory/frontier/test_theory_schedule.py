"""A multiplier for each place: the golden pair, searches that know no multiplier, and errors."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

import theory
from theory.frontier import schedule, schedule_at

P, Q = np.array([[0.05, 0.80, 0.15]]), np.array([[0.30, 0.35, 0.35]])
GOLDEN = theory.Pair.prepare(P, Q)


def rows(seed, count=4, size=5):
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.7), size=(2, count))


def round_of(p, q, levels):
    """Tokens and KL of a round with one mean level for each place, from the corpus frontier."""
    corpus = theory.CorpusFrontier("kl")
    corpus.add(theory.Pair.prepare(p, q))
    accepted = [corpus.acceptance(float(level)) for level in levels]
    reached = np.cumprod([1.0, *accepted])
    return reached.sum(), float(reached[:-1] @ levels)


def test_the_golden_pair():
    found = schedule_at(GOLDEN, 0.05, 3)
    np.testing.assert_allclose(found.spent, (0.0817, 0.0518, 0.0199), atol=5e-5)
    assert found.tokens == pytest.approx(2.6199, abs=5e-5)
    assert found.cost_per_token == pytest.approx(0.05, abs=1e-12)
    assert schedule(GOLDEN, 1e12, 3).tokens == pytest.approx(2.018875, abs=1e-6)  # strict


def test_a_constant_level_of_the_golden_pair_is_worth_less():
    low, high = 0.05, 0.1
    for _ in range(50):
        level = 0.5 * (low + high)
        a = float(theory.frontier_acceptance(P[0], Q[0], level))
        reached = np.array([1.0, a, a * a, a**3])
        spends = level * reached[:-1].sum() / reached.sum()
        low, high = (level, high) if spends < 0.05 else (low, level)
    assert reached.sum() == pytest.approx(2.5997, abs=5e-5)


@pytest.mark.parametrize("seed", range(3))
def test_no_division_of_the_budget_is_worth_more(seed):
    p, q = rows(seed)
    found = schedule_at(theory.Pair.prepare(p, q), 0.04, 3)
    np.testing.assert_allclose(
        round_of(p, q, np.array(found.spent)), (found.tokens, found.cost), atol=1e-5
    )
    limit = {
        "type": "ineq",
        "fun": lambda x: 0.04 - np.divide(*round_of(p, q, np.maximum(x, 0.0))[::-1]),
    }
    searched = minimize(
        lambda x: -round_of(p, q, np.maximum(x, 0.0))[0],
        np.full(3, 0.04),
        bounds=[(1e-9, 1.0)] * 3,
        constraints=[limit],
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    assert -searched.fun == pytest.approx(found.tokens, abs=2e-5)


@pytest.mark.parametrize("kind", theory.DIVERGENCES)
def test_the_value_is_that_of_the_round(kind):
    p, q = rows(7)
    found = schedule(theory.Pair.prepare(p, q), 1.7, 4, kind)
    assert found.value == pytest.approx(found.tokens - 1.0 - 1.7 * found.cost, abs=1e-12)
    assert found.multipliers[-1] == pytest.approx(1 / 1.7)
    assert list(found.multipliers) == sorted(found.multipliers, reverse=True)


def test_a_pair_that_agrees_costs_nothing():
    found = schedule(theory.Pair.prepare(Q, Q), 1.0, 3)
    assert (found.tokens, found.cost) == (4.0, 0.0)
    assert found.multipliers == (3.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0.0, 3), "price must be a positive number, got 0.0"),
        ((math.nan, 3), "price must be a positive number, got nan"),
        ((True, 3), "price must be a positive number, got True"),
        ((1.0, 0), "drafts must be a whole number of at least 1, got 0"),
        ((1.0, 2.0), "drafts must be a whole number of at least 1, got 2.0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        schedule(GOLDEN, *arguments)


def test_a_level_and_rows_are_checked():
    with pytest.raises(ValueError, match="level must be a positive number"):
        schedule_at(GOLDEN, -1.0, 3)
    with pytest.raises(ValueError, match="pair has no rows"):
        schedule(theory.Pair.prepare(P[:0], Q[:0]), 1.0, 3)
