"""The f-divergences against many-digit arithmetic, their conventions at zeros, and their limits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import ALL_KINDS, KINDS, pairs

from theory import DIVERGENCES, divergence
from theory.divergences.kinds import (
    SHORT_NAMES,
    Power,
    resolve_divergence,
    several_divergences,
)

KINDS_AND_POWERS = (*ALL_KINDS, "power:2", "power:0.5", "power:3", "power:-1")


def textbook(kind, h, q):
    """Σ q f(h/q) for positive rows, with the digits of the current context."""
    if kind == "kl":
        return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(h, q))
    if kind == "reverse_kl":
        return textbook("kl", q, h)
    if kind == "pearson_chi2":
        return mpmath.fsum((a - b) ** 2 / b for a, b in zip(h, q))
    if kind == "total_variation":
        return mpmath.fsum(abs(a - b) for a, b in zip(h, q)) / 2
    if kind == "squared_hellinger":
        return 1 - mpmath.fsum(mpmath.sqrt(a * b) for a, b in zip(h, q))
    if kind == "jensen_shannon":
        m = [(a + b) / 2 for a, b in zip(h, q)]
        return (textbook("kl", h, m) + textbook("kl", q, m)) / 2
    order = mpmath.mpf(kind.removeprefix("power:"))
    moment = mpmath.fsum(b * (a / b) ** order for a, b in zip(h, q))
    return (moment - 1) / (order * (order - 1))


def exact_row(weights, places=40):
    """A row of multiples of 2^−places that sums to 1 exactly."""
    total = sum(weights)
    units = [max(1, round(2**places * Fraction(w) / Fraction(total))) for w in weights]
    units[units.index(max(units))] += 2**places - sum(units)
    assert min(units) > 0
    return np.array([unit / 2**places for unit in units])


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
@pytest.mark.parametrize("seed", range(4))
def test_a_divergence_is_its_textbook_formula(kind, seed):
    rng = np.random.default_rng(seed)
    h, q = (exact_row(rng.dirichlet(np.full(9, c)).tolist()) for c in (0.5, 1.5))
    with mpmath.workdps(50):
        exact = textbook(kind, *([mpmath.mpf(x) for x in row] for row in (h.tolist(), q.tolist())))
        np.testing.assert_allclose(divergence(kind, h, q), float(exact), rtol=4e-15)


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
@pytest.mark.parametrize("step", [2.0**-12, 2.0**-30, 2.0**-40])
def test_near_equal_rows_lose_no_digits(kind, step):
    """h = q·(1 ± 2^−40), about 1e−12: the textbook formula in floats would return rounding."""
    q = exact_row(np.random.default_rng(3).dirichlet(np.ones(8)).tolist(), places=12)
    q = np.repeat(q, 2) / 2
    h = q * (1 + step * np.tile([1, -1], 8))
    assert math.fsum(h) == math.fsum(q) == 1
    with mpmath.workdps(50):
        exact = textbook(kind, *([mpmath.mpf(x) for x in row] for row in (h.tolist(), q.tolist())))
        np.testing.assert_allclose(divergence(kind, h, q), float(exact), rtol=2e-15)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_rough_summand_is_right_to_rounding_of_the_ratio(kind):
    q = np.geomspace(1e-12, 1, 400)
    t = np.concatenate([1 + np.geomspace(1e-15, 0.9, 50), 1 - np.geomspace(1e-15, 0.9, 50)])
    h, q = np.outer(t, q).ravel(), np.tile(q, len(t))
    kind = resolve_divergence(kind)
    rough, exact = kind.rough_term(h, q), kind.term(h, q)
    assert np.all(np.abs(rough - exact) <= 2.0**-50 * (h + q) * np.abs(np.log(h / q)) + 1e-300)


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs())
def test_the_rough_summand_knows_the_conventions_at_zeros(kind, pair):
    kind = resolve_divergence(kind)
    for h, q in (pair, pair[::-1]):
        np.testing.assert_allclose(kind.rough_term(h, q), kind.term(h, q), rtol=0, atol=1e-14)


AT_ZEROS = {
    # kind: (h drops a token of q, h leaves the support of q, disjoint supports)
    "kl": (math.log(2), math.inf, math.inf),
    "reverse_kl": (math.inf, math.log(2), math.inf),
    "pearson_chi2": (1.0, math.inf, math.inf),
    "total_variation": (0.5, 0.5, 1.0),
    "squared_hellinger": (1 - math.sqrt(0.5), 1 - math.sqrt(0.5), 1.0),
    "jensen_shannon": (*(1.5 * math.log(2) - 0.75 * math.log(3),) * 2, math.log(2)),
    "power:1.5": ((2**0.5 - 1) / 0.75, math.inf, math.inf),
    "power:-0.5": (math.inf, (2**0.5 - 1) / 0.75, math.inf),
}


@pytest.mark.parametrize("kind", AT_ZEROS)
def test_the_conventions_at_zeros(kind):
    one, half, other = np.array([1.0, 0, 0]), np.array([0.5, 0.5, 0]), np.array([0, 0, 1.0])
    found = [divergence(kind, h, q) for h, q in ((one, half), (half, one), (one, other))]
    np.testing.assert_allclose(found, AT_ZEROS[kind], rtol=1e-14)
    assert divergence(kind, one, one) == divergence(kind, half, half) == 0


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs(min_rows=0))
def test_a_divergence_is_never_negative_never_nan_and_zero_at_equality(kind, pair):
    h, q = pair
    for left, right in ((h, q), (q, h)):
        found = divergence(kind, left, right)
        assert found.shape == h.shape[:-1]
        assert np.all(found >= 0)
    np.testing.assert_array_equal(divergence(kind, q, q), 0)


@pytest.mark.parametrize("kind", ["total_variation", "squared_hellinger", "jensen_shannon"])
@given(pair=pairs())
def test_the_symmetric_kinds_are_symmetric_and_bounded(kind, pair):
    h, q = pair
    found = divergence(kind, h, q)
    np.testing.assert_allclose(found, divergence(kind, q, h), rtol=1e-13, atol=0)
    assert np.all(found <= (math.log(2) if kind == "jensen_shannon" else 1) + 1e-12)


@pytest.mark.parametrize(
    ("kind", "faint"),
    [(kind, faint) for kind in ALL_KINDS for faint in (5e-324, 1e-310, 1e-300)],
)
def test_faint_tokens_cost_what_the_formula_says(kind, faint):
    """Subnormal probabilities, whose quotients over- or underflow, in either argument."""
    for h, q in (([1.0, faint], [0.7, 0.3]), ([0.7, 0.3], [1.0, faint])):
        with mpmath.workdps(700):
            exact = textbook(kind, *([mpmath.mpf(x) for x in row] for row in (h, q)))
            found = float(divergence(kind, h, q))
            if exact < 1e308:
                np.testing.assert_allclose(found, float(exact), rtol=1e-12)
            else:
                assert found == math.inf


@given(pair=pairs())
def test_reverse_kl_is_kl_the_other_way_round(pair):
    h, q = pair
    np.testing.assert_allclose(divergence("reverse_kl", h, q), divergence("kl", q, h), rtol=1e-13)


def test_the_argument_order_of_kl():
    even, skew = np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])
    np.testing.assert_allclose(divergence("kl", even, skew), [0.5108256237659907], rtol=1e-15)
    np.testing.assert_allclose(divergence("kl", skew, even), [0.3680642071684971], rtol=1e-15)


def test_the_power_family_and_its_limits():
    rng = np.random.default_rng(4)
    h, q = rng.dirichlet(np.ones(6), 20), rng.dirichlet(np.ones(6), 20)
    found = {order: divergence(f"power:{order}", h, q) for order in (0, 0.5, 1, 2)}
    np.testing.assert_array_equal(found[1], divergence("kl", h, q))
    np.testing.assert_array_equal(found[0], divergence("reverse_kl", h, q))
    np.testing.assert_allclose(found[2], divergence("pearson_chi2", h, q) / 2, rtol=1e-13)
    np.testing.assert_allclose(found[0.5], 4 * divergence("squared_hellinger", h, q), rtol=1e-13)
    for order, limit in ((1, "kl"), (0, "reverse_kl")):
        near = divergence(f"power:{order + 1e-7}", h, q)
        np.testing.assert_allclose(near, divergence(limit, h, q), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
def test_the_slope_is_the_derivative_of_the_summand(kind):
    chosen = resolve_divergence(kind)
    t = np.array([1e-3, 0.01, 0.5, 0.9, 1.1, 3.0, 1e4])
    step = 1e-4 * t
    numeric = (chosen.value(t + step) - chosen.value(t - step)) / (2 * step)
    np.testing.assert_allclose(chosen.slope(t), numeric, rtol=1e-6, atol=1e-9)
    assert chosen.value(np.array([1.0])) == 0
    if kind != "total_variation":
        assert chosen.slope(np.array([1.0])) == 0


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
def test_the_limits_of_the_summand(kind):
    chosen = resolve_divergence(kind)
    zero, huge = np.array([1e-30]), np.array([1e30])
    if math.isfinite(chosen.at_zero):
        np.testing.assert_allclose(chosen.value(zero), chosen.at_zero, rtol=1e-6)
    else:
        assert chosen.value(zero) > 20
    if math.isfinite(chosen.recession):
        np.testing.assert_allclose(chosen.value(huge) / huge, chosen.recession, rtol=1e-6)
    else:
        assert chosen.value(huge) / huge > 20
    low, high = chosen.slope(np.array([0.0, math.inf]))
    assert low == -math.inf or math.isfinite(chosen.at_zero)
    np.testing.assert_allclose(high, chosen.recession)


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
def test_the_two_point_form_is_the_divergence_of_two_tokens(kind):
    chosen = resolve_divergence(kind)
    gamma, q = np.array([0.9, 0.3, 0.5]), np.array([0.2, 0.7, 0.5])
    both = [np.stack([x, 1 - x], axis=-1) for x in (gamma, q)]
    np.testing.assert_allclose(chosen.two_point(gamma, q), divergence(kind, *both), rtol=1e-13)
    plain = chosen.plain_two_point(gamma[:2], q[:2])
    np.testing.assert_allclose(plain, chosen.two_point(gamma, q)[:2], rtol=1e-12)


def test_the_table_of_divergences_is_the_documented_one():
    assert tuple(DIVERGENCES) == KINDS
    for name, kind in DIVERGENCES.items():
        assert kind.name == name
    for short, name in SHORT_NAMES.items():
        assert resolve_divergence(short) is DIVERGENCES[name]
    assert resolve_divergence(Power(1.5)) == Power(1.5) == resolve_divergence("power:1.5")


@pytest.mark.parametrize("kind", ["power:x", "power:", "KL", "", "power:nan", "power:inf"])
def test_unknown_divergences_are_refused(kind):
    with pytest.raises(ValueError, match=r"divergence|order must be"):
        divergence(kind, [0.5, 0.5], [0.5, 0.5])


@pytest.mark.parametrize("order", [0.0, 1.0, math.nan, math.inf])
def test_the_power_family_needs_a_proper_order(order):
    with pytest.raises(ValueError, match="order must be finite and neither 0 nor 1"):
        Power(order)


@given(shift=st.floats(-6, 0).map(math.exp))
def test_divergences_grow_with_the_distance(shift):
    """Along a line from q to h every f-divergence is convex and 0 at q, so it cannot fall."""
    q, h = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])
    for kind in ALL_KINDS:
        near, far = (divergence(kind, q + s * (h - q), q) for s in (0.5 * shift, shift))
        assert 0 < near < far


@given(pair=pairs(min_rows=0))
def test_several_divergences_are_each_what_it_is_alone(pair):
    found = several_divergences(KINDS_AND_POWERS, *pair)
    assert len(found) == len(KINDS_AND_POWERS)
    for kind, values in zip(KINDS_AND_POWERS, found):
        np.testing.assert_array_equal(values, divergence(kind, *pair))


def test_several_divergences_check_their_rows_once_for_all():
    with pytest.raises(ValueError, match=r"h row 0 sums to 0\.9"):
        several_divergences(["kl", "js"], [0.5, 0.4], [0.5, 0.5])
    with pytest.raises(ValueError, match="unknown divergence 'lk'"):
        several_divergences(["kl", "lk"], [0.5, 0.5], [0.5, 0.5])
    assert several_divergences([], [0.5, 0.5], [0.5, 0.5]) == []


@pytest.mark.parametrize("kind", KINDS_AND_POWERS)
def test_a_divergence_is_accurate_on_both_sides_of_every_change_of_formula(kind):
    """Formulas change at |t − 1| = 1/4 and, for Jensen–Shannon, at t = 3 and t = 1/3."""
    changes = np.array([1 / 3, 0.75, 1.0, 1.25, 3.0])
    t = np.concatenate([changes * (1 + step) for step in (-0.1, -1e-9, 1e-9, 0.1)])
    gamma = np.round(2**40 * t / 4) / 2**40  # so that 1 − γ is exact
    h = np.stack([gamma, 1 - gamma], axis=-1)
    q = np.broadcast_to([0.25, 0.75], h.shape)
    with mpmath.workdps(60):
        exact = [float(textbook(kind, *rows)) for rows in zip(map(digits, h), map(digits, q))]
    # Just beyond 1/4 the textbook formulas of the power family lose five bits.
    np.testing.assert_allclose(divergence(kind, h, q), exact, rtol=2e-14)


def digits(row):
    """A row as numbers of many digits."""
    return [mpmath.mpf(x) for x in row.tolist()]


@pytest.mark.parametrize("order", [0.5, 2.0, -1.0, 0.50000001, 1e-5, 1e22, 1 / 3])
def test_a_power_has_a_name_that_reads_back(order):
    kind = resolve_divergence(f"power:{order!r}")
    assert resolve_divergence(kind.name) == kind
    assert kind.order == order
