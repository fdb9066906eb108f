"""γ* where the budget is a few units in the last place away from certainty, or from nothing."""

import numpy as np
import pytest

from theory import DIVERGENCES, optimal_gamma

FREQUENT, RARE = np.linspace(0.001, 0.999, 999), np.geomspace(1e-300, 1e-3, 200)
Q = np.concatenate([FREQUENT, RARE, 1 - np.geomspace(1e-15, 1e-3, 60)])
ULP = 2.0**-52


UNITS = [1, 1.5, 2, 3, 5, 8, 12, 15, 16, 17, 20, 32, 64, 200]


@pytest.mark.parametrize("gap", [*(n * ULP for n in UNITS), 1e-12, 1e-9, 1e-6, 1e-3])
def test_the_complement_agrees_with_the_bracketing_root_finder_close_to_certainty(gap):
    budget = -np.log(Q) * (1 - gap)
    fast = optimal_gamma(Q, budget)
    assert np.all(np.isfinite(fast.value) & np.isfinite(fast.complement))
    # The budget is known to a few units in the last place only; so is what it leaves.
    wide = 1 + 8 * ULP
    low = optimal_gamma(Q, budget * (1 + 16 * ULP), method="scipy").complement
    high = optimal_gamma(Q, budget * (1 - 16 * ULP), method="scipy").complement
    assert np.all((fast.complement >= low / wide) & (fast.complement <= high * wide))


@pytest.mark.parametrize("budget", [5e-324, 1e-310, 1e-200, 1e-100, 1e-40])
def test_a_vanishing_budget_leaves_every_frequent_token_where_it_was(budget):
    q = np.linspace(0.01, 0.99, 99)
    fast = optimal_gamma(q, budget)
    assert np.all(np.abs(fast.value - q) <= 2 * ULP * q)
    assert np.all(np.abs(fast.complement - (1 - q)) <= 2 * ULP)


@pytest.mark.parametrize("kind", [*DIVERGENCES, "power:-0.5", "power:3"])
def test_newton_never_goes_to_and_fro_until_its_steps_are_spent(kind):
    # KL(q‖h) at δ = 1 and q = 2.3e-6 was such a cycle: γ was 2e-5 in the place of 0.63.
    rng = np.random.default_rng(17)
    q = np.append(10.0 ** rng.uniform(-12, 0, size=4000), [2.2682576295331864e-06])
    for budget in (0.3, 0.8, 1.0, 1.1):
        found = optimal_gamma(q, budget, kind)
        wanted = optimal_gamma(q, budget, kind, method="scipy")
        np.testing.assert_allclose(found.value, wanted.value, rtol=1e-10)
        np.testing.assert_allclose(found.complement, wanted.complement, rtol=1e-9, atol=1e-300)
