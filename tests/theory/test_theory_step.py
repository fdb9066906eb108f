"""What the public functions make of rows and arguments that are only nearly right."""

import numpy as np
import pytest

import theory


@pytest.mark.parametrize(
    "rule",
    [
        theory.make_rule("cactus", delta=0.1),
        theory.make_rule("cactus_exact", delta=0.1),
        theory.make_rule("mentored", level=0.1),
        theory.make_rule("frontier", level=0.1),
    ],
    ids=lambda rule: rule.name,
)
def test_a_negative_zero_is_a_zero(rule):
    p, q = np.array([0.05, 0.8, 0.15]), np.array([0.0, 0.5, 0.5])
    plain, signed = theory.one_step(rule, p, q), theory.one_step(rule, p, q * [-1.0, 1.0, 1.0])
    np.testing.assert_array_equal(signed.output, plain.output)
    assert signed.output[0] == 0
    assert abs(signed.output.sum() - 1) < 1e-12


def test_a_float32_softmax_over_a_large_vocabulary_is_a_distribution():
    weights = np.exp(4 * np.random.default_rng(0).normal(size=151_936))
    # As far off as a float32 softmax of such a row gets.
    q = (weights / weights.sum() * (1 + 2e-5)).astype(np.float32)
    assert float(q.sum(dtype=np.float64)) == pytest.approx(1 + 2e-5, abs=1e-6)
    law = theory.one_step(theory.make_rule("sps"), q, q)
    assert law.output.dtype == np.float32


@pytest.mark.parametrize("n", [-1, 3, 1.5, True])
def test_a_candidate_outside_the_row_is_named(n):
    with pytest.raises(ValueError, match=rf"n is {n}, not a token index"):
        theory.candidate_target([0.49, 0.42, 0.09], n, 0.5)


def test_what_is_no_rule_and_what_is_no_row_are_named():
    q = [0.5, 0.5]
    with pytest.raises(ValueError, match=r"rule must come from make_rule.*'cactus'"):
        theory.one_step("cactus", q, q)
    with pytest.raises(ValueError, match="p is None"):
        theory.one_step(theory.make_rule("sps"), None, q)
