"""Theorem 2: γ*(q, δ) and its complement against certified intervals, and the properties of both.

The intervals of `gamma_oracle.jsonl` are what a budget changed by 16·2⁻⁵² relative gives, computed
with many digits; γ and 1 − γ must lie in them up to 8·2⁻⁵² relative.
"""

import json
import math
from decimal import Decimal, localcontext
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import ALL_KINDS, KINDS

from theory import candidate_target, divergence, optimal_gamma, second_order_gamma

ORACLE = Path(__file__).resolve().parents[2] / "data" / "gamma_oracle.jsonl"
POINTS = [json.loads(line) for line in ORACLE.read_text().splitlines()]
ULP = 2.0**-52
SMALLEST = 5e-324
SMALLEST_NORMAL = Decimal(2.0**-1022)
METHODS = ("fast", "scipy")


def points_of(kind):
    chosen = [point for point in POINTS if point["divergence"] == kind]
    columns = (np.array([float(point[key]) for point in chosen]) for key in ("q", "budget"))
    return (chosen, *columns)


def inside(value, low, high):
    """Whether a float lies in [low, high] widened by 8 units in the last place."""
    with localcontext() as context:
        context.prec = 60
        exact, low, high = Decimal(float(value)), Decimal(low), Decimal(high)
        slack = Decimal(8 * ULP)
        # Below the normal range floats have an absolute spacing; nothing can be more accurate.
        spacing = Decimal(SMALLEST) if high < SMALLEST_NORMAL else Decimal(0)
        return low * (1 - slack) - spacing <= exact <= high * (1 + slack) + spacing


def test_the_oracle_is_complete():
    assert len(POINTS) == 1360
    assert {point["divergence"] for point in POINTS} == set(KINDS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_gamma_and_complement_lie_in_every_certified_interval(kind, method):
    points, q, budget = points_of(kind)
    found = optimal_gamma(q, budget, kind, method)
    wrong = [
        (point["q"], point["budget"], float(value), float(rest))
        for point, value, rest in zip(points, found.value, found.complement, strict=True)
        if not inside(value, point["gamma_low"], point["gamma_high"])
        or not inside(rest, point["one_minus_gamma_low"], point["one_minus_gamma_high"])
    ]
    assert not wrong, f"{len(wrong)} of {len(points)}: {wrong[:3]}"


def test_the_check_of_an_interval_can_fail():
    assert inside(0.5, "0.5", "0.5")
    assert not inside(0.5 * (1 + 10 * ULP), "0.5", "0.5")
    assert inside(0.0, "1e-400", "1e-400")
    assert inside(SMALLEST, "1e-400", "1e-400")
    assert not inside(1e-322, "1e-400", "1e-400")


@pytest.mark.parametrize("kind", KINDS)
def test_float32_input_is_accurate_to_1e_6(kind):
    points, q, budget = points_of(kind)
    representable = (q > 1e-37) & (budget < 1e37)
    q32, budget32 = q[representable].astype(np.float32), budget[representable].astype(np.float32)
    found = optimal_gamma(q32, budget32, kind)
    assert found.value.dtype == found.complement.dtype == np.float32
    certified = np.array([float(point["gamma"]) for point in points])[representable]
    np.testing.assert_allclose(found.value, certified, rtol=0, atol=1e-6)
    wide = optimal_gamma(q32.astype(np.float64), budget32.astype(np.float64), kind)
    for narrow, exact in zip(found, wide):
        np.testing.assert_allclose(narrow, exact, rtol=1e-6, atol=1e-37)


# --- properties, at random points --------------------------------------------------------------

Q_OPEN = st.one_of(
    st.floats(-700, -1e-3).map(math.exp),
    st.floats(-36, -0.7).map(lambda x: 1.0 - math.exp(x)),
    st.sampled_from((5e-324, 1e-310, 1e-300, 0.5, 1.0 - 2.0**-53, 0.1)),
)
Q = st.one_of(Q_OPEN, st.sampled_from((0.0, 1.0)))
BUDGET = st.one_of(
    st.floats(-46, 7).map(math.exp), st.sampled_from((0.0, 1e-20, 1e-9, 0.1, 1.0, math.inf))
)
TEXTBOOK = {
    "kl": lambda h, q: h * mpmath.log(h / q) if h else mpmath.mpf(0),
    "reverse_kl": lambda h, q: q * mpmath.log(q / h) if h else mpmath.inf,
    "pearson_chi2": lambda h, q: (h - q) ** 2 / q,
    "total_variation": lambda h, q: abs(h - q) / 2,
    "squared_hellinger": lambda h, q: (mpmath.sqrt(h) - mpmath.sqrt(q)) ** 2 / 2,
    "jensen_shannon": lambda h, q: (
        ((h * mpmath.log(2 * h / (h + q)) if h else 0) + q * mpmath.log(2 * q / (h + q))) / 2
    ),
}


def spent(kind, gamma, rest, q):
    """d_f with many digits, of γ and of 1 − γ as two numbers."""
    term = TEXTBOOK[kind]
    return term(gamma, q) + term(rest, 1 - q)


def bracket(kind, q, found):
    """d_f at 8 units in the last place below and above γ, in the smaller of γ and 1 − γ."""
    value, rest, q = mpmath.mpf(float(found.value)), mpmath.mpf(float(found.complement)), q
    step = 8 * mpmath.mpf(ULP)
    if value <= 0.5:
        ends = [max(value * (1 - step), q), value * (1 + step)]
        return [spent(kind, gamma, 1 - gamma, q) for gamma in ends]
    ends = [min(rest * (1 + step) + SMALLEST, 1 - q), max(rest * (1 - step) - SMALLEST, 0)]
    return [spent(kind, 1 - y, y, q) for y in ends]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@given(q=Q_OPEN, budget=BUDGET)
def test_gamma_is_the_largest_feasible_value(kind, method, q, budget):
    """The budget is kept, and not kept eight units in the last place further on."""
    found = optimal_gamma(q, budget, kind, method)
    # The terms of the two tokens cancel to second order, which takes digits beside those of 1 − q.
    with mpmath.workdps(80 - round(math.log10(q))):
        below, above = bracket(kind, mpmath.mpf(q), found)
        assert below <= mpmath.mpf(budget) * (1 + mpmath.mpf("1e-12"))
        largest = found.complement == 0 or above >= mpmath.mpf(budget) * (1 - mpmath.mpf("1e-12"))
        assert largest


RARE = [(1e-17, 1e-17), (1e-16, 1e-20), (1e-300, 1e-20), (1e-310, 1e-3), (5e-324, 7.0), (1e-30, 30)]


@pytest.mark.parametrize(
    ("kind", "method", "q", "budget"),
    [(kind, method, *point) for kind in KINDS for method in METHODS for point in RARE],
)
def test_rare_tokens_are_raised_by_the_right_amount(kind, method, q, budget):
    found = optimal_gamma(q, budget, kind, method)
    with mpmath.workdps(80 - round(math.log10(q))):
        below, above = bracket(kind, mpmath.mpf(q), found)
        assert below <= mpmath.mpf(budget) * (1 + mpmath.mpf("1e-12"))
        assert found.complement == 0 or above >= mpmath.mpf(budget) * (1 - mpmath.mpf("1e-12"))


def check_order(less, more, budget):
    """γ does not fall, up to rounding: 1 − γ ~ e^{−δ} moves by δ units where δ moves by one."""
    slack = 8 * ULP * max(1.0, min(budget, 1000.0))
    assert less.value <= more.value * (1 + slack)
    assert less.complement * (1 + slack) + SMALLEST >= more.complement


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(q=Q, budgets=st.tuples(BUDGET, BUDGET))
def test_gamma_does_not_fall_with_the_budget(kind, q, budgets):
    less, more = (optimal_gamma(q, budget, kind) for budget in sorted(budgets))
    check_order(less, more, max(budgets))


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(several=st.tuples(Q, Q), budget=BUDGET)
def test_gamma_does_not_fall_with_q(kind, several, budget):
    less, more = (optimal_gamma(q, budget, kind) for q in sorted(several))
    check_order(less, more, budget)


@pytest.mark.parametrize("kind", [*ALL_KINDS, "second order"])
@given(q=Q, budget=BUDGET)
def test_gamma_and_complement_belong_together(kind, q, budget):
    found = second_order_gamma(q, budget) if " " in kind else optimal_gamma(q, budget, kind)
    assert q <= found.value <= 1
    assert 0 <= found.complement <= 1 - q
    assert abs(found.value + found.complement - 1) <= 2 * ULP


@pytest.mark.parametrize("kind", [*ALL_KINDS, "second order"])
def test_the_boundary_values(kind):
    solve = second_order_gamma if " " in kind else lambda q, b: optimal_gamma(q, b, kind)
    q = np.array([0.0, 5e-324, 1e-300, 0.3, 1.0 - 2.0**-53, 1.0])
    for budget, value in ((0.0, q), (math.inf, np.where(q > 0, 1.0, 0.0))):
        found = solve(q, budget)
        np.testing.assert_array_equal(found.value, value)
        np.testing.assert_array_equal(found.complement, 1 - value)
    np.testing.assert_array_equal(solve(0.0, [0.0, 0.1, 1e300]).value, 0)
    np.testing.assert_array_equal(solve(1.0, [0.0, 0.1, 1e300]).value, 1)


@pytest.mark.parametrize("method", METHODS)
@given(q=Q_OPEN)
def test_kl_is_certain_from_minus_log_q_on(method, q):
    surprise = -math.log(q)
    assert optimal_gamma(q, surprise * (1 + 4 * ULP) + SMALLEST, method=method).value == 1
    if 1e-300 < q < 0.999:
        almost = optimal_gamma(q, surprise * (1 - 1e-9), method=method)
        assert 0 < almost.complement < 1e-6


CLOSED_FORMS = {
    "pearson_chi2": lambda q, d: np.minimum(q + np.sqrt(d * q * (1 - q)), 1),
    "total_variation": lambda q, d: np.minimum(q + d, 1),
    "power:2": lambda q, d: np.minimum(q + np.sqrt(2 * d * q * (1 - q)), 1),
}


@pytest.mark.parametrize("kind", CLOSED_FORMS)
def test_the_known_closed_forms(kind):
    rng = np.random.default_rng(1)
    q, budget = rng.random(500), rng.random(500) * 0.5
    found = optimal_gamma(q, budget, kind)
    np.testing.assert_allclose(found.value, CLOSED_FORMS[kind](q, budget), rtol=1e-13)


def test_power_one_half_is_four_times_squared_hellinger():
    rng = np.random.default_rng(2)
    q, budget = rng.random(300), rng.random(300) * 0.3
    half, hellinger = (
        optimal_gamma(q, 4 * budget, "power:0.5"),
        optimal_gamma(q, budget, "squared_hellinger"),
    )
    np.testing.assert_allclose(half.complement, hellinger.complement, rtol=1e-12)


# --- the second-order form (claim 11) ----------------------------------------------------------


def test_second_order_is_the_published_expression():
    rng = np.random.default_rng(3)
    q, budget = rng.random(500), rng.random(500)
    found = second_order_gamma(q, budget)
    expression = np.minimum(q + np.sqrt(2 * budget * q * (1 - q)), 1)
    np.testing.assert_allclose(found.value, expression, rtol=1e-15)
    exact = optimal_gamma(q, 2 * budget, "pearson_chi2")
    np.testing.assert_allclose(found.complement, exact.complement, rtol=1e-14)


@given(q=Q_OPEN, budget=st.floats(-40, 7).map(math.exp))
def test_second_order_never_costs_more_than_log_1_plus_2_delta(q, budget):
    found = second_order_gamma(q, budget)
    with mpmath.workdps(80 - round(math.log10(q))):
        exact = mpmath.mpf(q)
        gamma, rest = mpmath.mpf(float(found.value)), mpmath.mpf(float(found.complement))
        gamma, rest = (gamma, 1 - gamma) if gamma <= 0.5 else (1 - rest, rest)
        # γ is rounded: a unit in the last place of it costs that much times the slope.
        slope = mpmath.log(gamma / exact) - (mpmath.log(rest / (1 - exact)) if rest else 0)
        cost = spent("kl", gamma, rest, exact)
        assert cost <= mpmath.log1p(2 * mpmath.mpf(budget)) + 2 * ULP * slope * gamma


@given(q=Q_OPEN)
def test_the_bound_of_second_order_is_attained(q):
    delta = (1 - q) / (2 * q)
    if not 1e-12 < delta < 1e12:
        return
    found = second_order_gamma(q, delta * (1 + 4 * ULP))
    assert found.value == 1
    np.testing.assert_allclose(-math.log(q), math.log1p(2 * delta), rtol=1e-9)


def test_the_overshoot_is_real():
    """At q = 0.9, δ = 0.05 the closed form costs 69 % more than the budget."""
    gamma = second_order_gamma(0.9, 0.05).value
    cost = divergence("kl", np.array([gamma, 1 - gamma]), np.array([0.9, 0.1]))
    np.testing.assert_allclose(cost / 0.05, 1.689232770, rtol=1e-9)


# --- shapes, blocks and refusals ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kl", "reverse_kl", "pearson_chi2", "second order"])
@pytest.mark.parametrize("size", [2**15 - 1, 2**15 + 1, 2**16 - 1, 2**16 + 1, 10**5])
def test_long_input_is_solved_as_short_input(kind, size):
    solve = second_order_gamma if " " in kind else lambda q, b: optimal_gamma(q, b, kind)
    rng = np.random.default_rng(size)
    q, budget = np.exp(-30 * rng.random(size)), np.exp(-12 * rng.random(size))
    q[::97], budget[::89], budget[::83] = 0, 0, np.inf
    whole = solve(q, budget)
    # Around every multiple of 2^15, and a sample of the rest, one short call each.
    near = np.concatenate([np.arange(k - 3, k + 3) for k in range(2**15, size, 2**15)] or [[0]])
    chosen = np.unique(np.concatenate([near, [0, size - 1], rng.integers(0, size, 300)]))
    chosen = chosen[chosen < size]
    for part in np.array_split(chosen, 12):
        alone = solve(q[part], budget[part])
        np.testing.assert_allclose(whole.value[part], alone.value, rtol=8 * ULP)
        np.testing.assert_allclose(whole.complement[part], alone.complement, rtol=8 * ULP)


def test_shapes_broadcast():
    found = optimal_gamma(np.full((3, 1), 0.3), np.array([0.0, 0.1, 0.2, 5.0]))
    assert found.value.shape == found.complement.shape == (3, 4)
    assert optimal_gamma(0.3, 0.1).value.shape == ()
    assert optimal_gamma(np.zeros((0, 4)), 0.1).value.shape == (0, 4)
    single = optimal_gamma(0.3, [0.1, 0.2]).value
    np.testing.assert_array_equal(found.value[2, 1:3], single)


def test_rounding_above_one_is_taken_as_one():
    up = np.nextafter(np.float32(1), np.float32(2))
    for solve in (optimal_gamma, second_order_gamma):
        np.testing.assert_array_equal(solve(np.array([up]), 0.1).value, np.float32(1))
        assert solve(1.0 + 2 * ULP, 0.1).value == 1
        for beyond in (np.array([0.5, 1.001], dtype=np.float32), np.array([0.5, 1.0 + 1e-5])):
            with pytest.raises(ValueError, match=r"q must lie in .*, got 1\.0.* at index 1"):
                solve(beyond, 0.1)


@pytest.mark.parametrize("solve", [optimal_gamma, second_order_gamma])
@pytest.mark.parametrize(
    ("argument", "values", "message"),
    [
        ("budget", [0.1, 0.2, -0.5], r"budget .*-0\.5 at index 2"),
        ("budget", [0.1, math.nan], r"budget .*nan at index 1"),
        ("budget", [[0.1, 0.2], [-1.0, 0.3]], r"budget .*-1\.0 at index \(1, 0\)"),
        ("budget", -0.01, r"budget .*-0\.01$"),
        ("q", [0.1, -1e-9], r"q .*-1e-09 at index 1"),
        ("q", [0.1, math.nan], r"q .*nan at index 1"),
        ("q", math.inf, r"q .*inf$"),
    ],
)
def test_bad_values_are_refused_by_name(solve, argument, values, message):
    arguments = {"q": 0.5, "budget": 0.1, argument: values}
    with pytest.raises(ValueError, match=message):
        solve(**arguments)


def test_unknown_kinds_and_methods_are_refused():
    with pytest.raises(ValueError, match=r"unknown divergence 'kll'; known are kl, "):
        optimal_gamma(0.5, 0.1, "kll")
    with pytest.raises(ValueError, match=r"unknown method 'newton'; known are fast, scipy"):
        optimal_gamma(0.5, 0.1, method="newton")


def test_the_target_of_a_candidate_is_raised_and_the_others_scaled():
    q, n = np.array([0.5, 0.2, 0.3]), 1
    target = candidate_target(q, n, optimal_gamma(q[n], 0.1).value)
    np.testing.assert_allclose(divergence("kl", target, q), 0.1, rtol=1e-12)
    np.testing.assert_allclose(target[0] / target[2], 5 / 3, rtol=1e-14)
    np.testing.assert_array_equal(candidate_target(np.array([0.0, 1.0]), 1, 1.0), [0, 1])
