"""Sampled rounds follow the exact laws; samplers with a known defect are caught.

Chi-square tests fail on correct code with probability 1e-6 each, and always use the same seed.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from sim.pairs.families import generators, make_family
from sim.rounds.sampling import (
    acceptance_metrics,
    expected_accepted,
    sample_block,
    sample_rounds,
    sample_step,
)
from theory import make_rule, one_step

FALSE_FAIL = 1e-6
P = np.array([0.05, 0.80, 0.15])
Q = np.array([0.30, 0.35, 0.35])
RULES = [
    ("sps", {}),
    ("lenience", {"l": 0.5}),
    ("interpolation", {"alpha": 0.5}),
    ("ears", {"tau": 0.3}),
    ("mentored", {"level": 0.05}),
    ("frontier", {"level": 0.05}),
    ("cascade_token_v3", {"alpha": 0.1}),
    ("cactus", {"delta": 0.02}),
    ("cactus_exact", {"delta": 0.02}),
    ("cactus_target_only", {"delta": 0.1}),
    ("target_only", {"threshold_acc": 0.4}),
    ("typical", {"epsilon": 0.2, "alpha": 5.0}),
    ("top_k", {"k": 2}),
    ("top_n_delta", {"n": 4, "delta": 0.3}),
    ("constant_threshold", {"threshold": 0.6}),
    ("ratio_threshold", {"threshold": 0.6}),
    ("truncated_typical", {"epsilon": 0.2, "alpha": 5.0}),
    ("truncated_top_k", {"k": 3}),
    ("truncated_top_p", {"top_p": 0.7}),
    ("synthetic", {"rate": 0.6}),
]


def rng(seed=0):
    return next(generators(seed, 1))


def p_value(tokens, law):
    """Chi-square of token counts against a law; a token of probability 0 fails at once."""
    counts = np.bincount(tokens, minlength=law.size)
    if np.any(counts[law == 0] > 0):
        return 0.0
    possible = law > 0
    return chisquare(counts[possible], law[possible] / law[possible].sum() * counts.sum()).pvalue


@pytest.mark.parametrize(("name", "parameters"), RULES)
def test_a_sampled_step_follows_the_law(name, parameters):
    rule = make_rule(name, **parameters)
    batch = make_family("gaussian", scale=1.5, correlation=0.5).sample(1, 12, rng(3))
    p, q = batch.p[0], batch.q[0]
    law = one_step(rule, p, q)
    step = sample_step(rule, p, q, 200_000, rng())
    assert p_value(step.tokens, law.output) > FALSE_FAIL
    acceptance = min(float(law.acceptance), 1.0)
    assert binomtest(int(step.accepted.sum()), 200_000, acceptance).pvalue > FALSE_FAIL
    np.testing.assert_array_equal(step.tokens[step.accepted], step.candidates[step.accepted])


@dataclass(frozen=True)
class SoftmaxResidual:
    """A known defect: the clipped difference goes through a softmax instead of its sum."""

    def accept_prob(self, p, q):
        return make_rule("sps").accept_prob(p, q)

    def recovery(self, p, q, n):
        weights = np.exp(np.maximum(q - p, 0))
        return weights / weights.sum(axis=-1, keepdims=True)


def test_a_residual_through_softmax_is_caught():
    p = np.array([0.6, 0.3, 0.05, 0.05])
    q = np.array([0.2, 0.3, 0.4, 0.1])
    faulty = [0.28947867975285096, 0.38947867975285094, 0.17697629072823934, 0.14406634976605875]
    tokens = sample_step(SoftmaxResidual(), p, q, 100_000, rng()).tokens
    assert p_value(tokens, q) < FALSE_FAIL
    assert p_value(tokens, np.array(faulty)) > FALSE_FAIL
    assert p_value(sample_step(make_rule("sps"), p, q, 100_000, rng()).tokens, q) > FALSE_FAIL


@dataclass(frozen=True)
class OneHotResidual:
    """A known defect: the ratio uses p, the residual a one-hot at the drafted token."""

    def accept_prob(self, p, q):
        return make_rule("sps").accept_prob(p, q)

    def recovery(self, p, q, n):
        return make_rule("sps").recovery(np.eye(p.shape[-1])[n], q, n)


def test_a_residual_of_another_proposal_is_caught():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    tokens = sample_step(OneHotResidual(), p, q, 100_000, rng()).tokens
    assert p_value(tokens, q) < FALSE_FAIL
    assert p_value(tokens, np.array([0.2, 0.4125, 0.3875])) > FALSE_FAIL


class Zeros:
    """A generator whose uniform numbers are all 0, the smallest value it may return."""

    def random(self, shape):
        return np.zeros(shape)


def test_uniform_zero_accepts_no_token_of_probability_zero():
    p, q = np.array([0.0, 0.5, 0.5, 0.0]), np.array([0.0, 0.0, 0.4, 0.6])
    step = sample_step(make_rule("sps"), p, q, 5, Zeros())
    np.testing.assert_array_equal(step.candidates, 1)  # token 0 has no draft mass
    assert not step.accepted.any()
    np.testing.assert_array_equal(step.tokens, 3)
    # The same draw accepts a token that the verifier can emit.
    assert sample_step(make_rule("sps"), q, q, 5, Zeros()).accepted.all()


def test_three_lossless_ways_have_three_acceptance_rates():
    p, q = np.array([0.7, 0.2, 0.05, 0.05]), np.array([0.6, 0.2, 0.1, 0.1])
    ways = [("sps", p, 0.9), ("sps", np.eye(4)[0], 0.6), ("target_only", p, 0.47)]
    for name, draft, rate in ways:
        step = sample_step(make_rule(name), draft, q, 100_000, rng())
        assert float(one_step(make_rule(name), draft, q).acceptance) == pytest.approx(rate)
        assert binomtest(int(step.accepted.sum()), 100_000, rate).pvalue > FALSE_FAIL
        assert p_value(step.tokens, q) > FALSE_FAIL


def test_rounds_have_the_expected_accepted_length():
    rule, m, rounds = make_rule("cactus", delta=0.1), 6, 60_000
    block = sample_rounds(rule, P, Q, rounds, m, rng())
    alpha = float(one_step(rule, P, Q).acceptance)
    metrics = acceptance_metrics(block.accepted, m)
    expected = expected_accepted(alpha, np.arange(m + 1))
    survival = np.diff(expected)
    for kept, rate in zip(metrics.unconditional, survival):
        assert binomtest(round(kept * rounds), rounds, rate).pvalue > FALSE_FAIL
    assert metrics.accepted_length == pytest.approx(expected[-1], abs=0.1)
    assert np.all((block.tokens >= 0).sum(axis=-1) == block.accepted + 1)


def test_rounds_draw_positions_from_all_rows_and_the_bonus_from_the_verifier():
    p = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    q = np.array([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    block = sample_rounds(make_rule("interpolation", alpha=1.0), p, q, 40_000, 2, rng())
    np.testing.assert_array_equal(block.accepted, 2)
    assert p_value(block.tokens[:, 0], np.array([0.5, 0.5, 0.0])) > FALSE_FAIL
    assert p_value(block.tokens[:, 2], np.array([0.25, 0.25, 0.5])) > FALSE_FAIL


def test_rows_before_the_filters_reach_the_cascades():
    p, q = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    rule = make_rule("cascade_chow", alpha=0.3)
    sure, unsure = np.array([0.1, 0.9]), np.array([0.5, 0.5])
    assert sample_step(rule, p, q, 10, rng(), p_raw=sure, q_raw=q).accepted.all()
    assert not sample_step(rule, p, q, 10, rng(), p_raw=unsure, q_raw=q).accepted.any()


def test_a_block_reads_row_i_for_draft_i():
    p = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    q = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    block = sample_block(make_rule("sps"), p, q, [1, 2], rng())
    np.testing.assert_array_equal(block.tokens, [1, 0, -1])
    full = sample_block(make_rule("interpolation", alpha=1.0), p, q, [1, 2], rng())
    np.testing.assert_array_equal(full.tokens, [1, 2, 2])


@pytest.mark.parametrize(
    ("p", "q", "drafts", "message"),
    [
        (np.eye(3)[:2], np.eye(3)[:2], [0, 1], "2 drafts need 2 draft rows and 3 verifier rows"),
        (np.eye(3)[:2], np.eye(3), [0, -1], "draft_tokens must hold token ids"),
        (np.eye(3)[:2], np.eye(3), [0, 2], "p gives no mass to token 2 at 1"),
    ],
)
def test_bad_blocks_are_refused(p, q, drafts, message):
    with pytest.raises(ValueError, match=message):
        sample_block(make_rule("sps"), p, q, drafts, rng())


def test_bad_rows_and_counts_are_refused():
    with pytest.raises(ValueError, match=r"equal shapes, got p \(1, 3\), q \(1, 2\)"):
        sample_step(make_rule("sps"), P, Q[:2], 5, rng())
    with pytest.raises(ValueError, match=r"count must be .* got -1"):
        sample_step(make_rule("sps"), P, Q, -1, rng())
    with pytest.raises(ValueError, match=r"draft_tokens must be .* got -1"):
        sample_rounds(make_rule("sps"), P, Q, 5, -1, rng())
    assert sample_step(make_rule("sps"), P, Q, 0, rng()).tokens.shape == (0,)
    assert sample_rounds(make_rule("sps"), P, Q, 3, 0, rng()).tokens.shape == (3, 1)
