"""Accepted length, rates and their expectations, on values worked out by hand."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.rounds.sampling import (
    acceptance_metrics,
    accepted_from_emitted,
    expected_accepted,
    speed_up,
    tokens_per_round,
)


def test_bonus_token_is_counted_once_and_only_where_said():
    metrics = acceptance_metrics([3, 0, 2], 3)
    assert (metrics.rounds, metrics.accepted, metrics.drafted) == (3, 5, 9)
    assert metrics.acceptance_rate == pytest.approx(5 / 9, rel=1e-15)
    assert metrics.accepted_length == pytest.approx(5 / 3, rel=1e-15)
    assert metrics.tokens_per_round == pytest.approx(8 / 3, rel=1e-15)
    np.testing.assert_allclose(metrics.unconditional, [2 / 3, 2 / 3, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(metrics.conditional, [2 / 3, 1, 1 / 2], rtol=1e-15)


def test_rounds_of_unequal_draft_lengths_count_only_what_they_drafted():
    metrics = acceptance_metrics([1, 0, 2], [1, 2, 3])
    np.testing.assert_allclose(metrics.unconditional, [2 / 3, 1 / 2, 0])
    # Position 1 was reached by the last round alone: the first drafted one token, the second fell.
    np.testing.assert_allclose(metrics.conditional, [2 / 3, 1, 0])
    assert metrics.acceptance_rate == 0.5


def test_no_rounds_give_nan_and_not_an_error():
    metrics = acceptance_metrics([], [])
    assert (metrics.rounds, metrics.accepted, metrics.drafted) == (0, 0, 0)
    for rate in (metrics.acceptance_rate, metrics.accepted_length, metrics.tokens_per_round):
        assert np.isnan(rate)
    assert metrics.conditional.size == metrics.unconditional.size == 0


def test_rounds_without_drafts_have_a_length_but_no_rate():
    metrics = acceptance_metrics([0, 0], 0)
    assert (metrics.accepted_length, metrics.tokens_per_round) == (0, 1)
    assert np.isnan(metrics.acceptance_rate)


def test_positions_that_no_round_reached_have_no_conditional_rate():
    metrics = acceptance_metrics([0, 0], 2)
    np.testing.assert_array_equal(metrics.unconditional, [0, 0])
    np.testing.assert_array_equal(metrics.conditional, [0, np.nan])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acceptance_metrics([0, -1], 3), "at least one token; got -1 in round 1"),
        (lambda: acceptance_metrics([4], 3), "accepted ≤ drafted; got 4 in round 0"),
        (lambda: acceptance_metrics([0], [-2]), "drafted ≥ 0; got -2"),
        (lambda: acceptance_metrics([0.5], 3), "must be integers, got float64"),
        (lambda: accepted_from_emitted([2, len([])]), "at least one token; got 0 in round 1"),
        (lambda: expected_accepted(1.1, 3), r"alpha must lie in \[0, 1\], got 1.1"),
        (lambda: expected_accepted(float("nan"), 3), "alpha .* got nan"),
        (lambda: tokens_per_round(0.5, -1), "m must be an integer of at least 0, got -1"),
        (lambda: tokens_per_round(0.5, 2.5), "m must be an integer of at least 0, got 2.5"),
        (lambda: speed_up(0.5, 3, -0.1), "cost_ratio must lie .* got -0.1"),
    ],
)
def test_impossible_counts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_emitted_tokens_less_the_verifiers_one():
    np.testing.assert_array_equal(accepted_from_emitted([1, 4, 2]), [0, 3, 1])


def test_conditional_rate_gives_the_known_lengths():
    assert expected_accepted(0.8, 5) == pytest.approx(2.68928, rel=1e-15)
    assert tokens_per_round(0.8, 5) == pytest.approx(3.68928, rel=1e-15)
    assert expected_accepted(0.8, 5) / 5 == pytest.approx(0.537856, rel=1e-15)
    # Survival to each position: the expected length is its sum.
    survival = np.diff(expected_accepted(0.8, np.arange(6)))
    np.testing.assert_allclose(survival, [0.8, 0.64, 0.512, 0.4096, 0.32768], rtol=1e-14)


def test_limits_are_exact():
    m = np.array([0, 1, 7])
    np.testing.assert_array_equal(expected_accepted(1.0, m), m)
    np.testing.assert_array_equal(tokens_per_round(1.0, m), m + 1)
    np.testing.assert_array_equal(expected_accepted(0.0, m), [0, 0, 0])
    np.testing.assert_array_equal(tokens_per_round(0.0, m), [1, 1, 1])
    assert speed_up(1.0, 4, 0.25) == 2.5
    assert speed_up(0.0, 4, 0.25) == 0.5
    assert expected_accepted([[0.5], [1.0]], [1, 2, 3]).shape == (2, 3)


@given(alpha=st.floats(0, 1), m=st.integers(0, 60))
def test_sums_agree_with_exact_fractions(alpha, m):
    exact = Fraction(alpha)
    total = sum((exact**i for i in range(1, m + 1)), Fraction(0))
    assert float(expected_accepted(alpha, m)) == pytest.approx(float(total), rel=1e-14, abs=0)
    assert float(tokens_per_round(alpha, m)) == pytest.approx(float(total + 1), rel=1e-14)


@pytest.mark.parametrize("gap", [1e-16, 1e-12, 1e-8, 1e-4])
def test_stable_near_one(gap):
    alpha = 1 - gap
    total = sum(Fraction(alpha) ** i for i in range(1, 21))
    assert float(expected_accepted(alpha, 20)) == pytest.approx(float(total), rel=1e-15)
