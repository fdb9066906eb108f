"""Rounds and their metrics take counts, rows and tokens of every kind, or refuse them by name."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from sim.pairs.families import generators
from sim.rounds.blocks import verify_greedy
from sim.rounds.metrics import (
    acceptance_metrics,
    accepted_from_emitted,
    clustered_mean,
    expected_accepted,
    speed_up,
    tokens_per_round,
)
from sim.rounds.sampling import sample_block, sample_rounds, sample_step, verify_block
from theory import make_rule, one_step

SPS = make_rule("sps")
P = np.array([0.05, 0.80, 0.15])
Q = np.array([0.30, 0.35, 0.35])
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


def rng(seed=0):
    return next(generators(seed, 1))


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("largest", [127, 255, "largest"])
def test_small_integers_count_as_large_ones(kind, largest):
    most = np.iinfo(kind).max if largest == "largest" else min(largest, np.iinfo(kind).max)
    m, number = kind(most), int(most)
    assert tokens_per_round(0.9, m) == pytest.approx((1 - 0.9 ** min(number + 1, 10**6)) / 0.1)
    assert expected_accepted(1.0, m) == pytest.approx(float(number))
    assert tokens_per_round(1.0, m) == pytest.approx(float(number + 1))
    c = np.float32(0.5)
    assert speed_up(0.9, m, c) == pytest.approx(tokens_per_round(0.9, m) / (number * 0.5 + 1))
    many = np.array([most, 1], dtype=kind)
    np.testing.assert_allclose(speed_up(0.9, many, 2)[0], speed_up(0.9, number, 2))


@pytest.mark.parametrize("kind", INTEGERS)
def test_counts_of_small_integers_add_up(kind):
    accepted, drafted = np.full(300, 100, dtype=kind), np.full(300, 127, dtype=kind)
    found = acceptance_metrics(accepted, drafted)
    assert (found.accepted, found.drafted) == (30_000, 38_100)
    assert found.unconditional.shape == (127,)
    assert found.tokens_per_round == 101
    np.testing.assert_array_equal(accepted_from_emitted(drafted), np.full(300, 126))
    sums, sizes = accepted, np.full(300, 100, dtype=kind)
    assert clustered_mean(sums, sizes) == (1.0, 0.0)


def test_counts_beyond_the_largest_integer_are_refused():
    with pytest.raises(ValueError, match="accepted_per_round"):
        acceptance_metrics(np.array([2**64 - 1], dtype=np.uint64), 3)
    with pytest.raises(ValueError, match="m must be an integer"):
        tokens_per_round(0.5, 10**30)


@pytest.mark.parametrize("kind", INTEGERS)
def test_rounds_of_small_integers(kind):
    block = sample_rounds(SPS, P, Q, kind(4), kind(127), rng())
    assert block.tokens.shape == (4, 128)
    assert sample_step(SPS, P, Q, kind(5), rng()).tokens.shape == (5,)


@pytest.mark.parametrize("kind", INTEGERS)
def test_tokens_of_small_integers_are_tokens(kind):
    block = verify_block(np.array([1, 2], kind), [True, False], np.array([300, 301]), kind(3))
    np.testing.assert_array_equal(block.tokens, [1, 301, -1])
    greedy = verify_greedy(np.array([1, 2], kind), np.array([1, 4, 5], kind))
    np.testing.assert_array_equal(greedy.tokens, [1, 4, -1])
    wide = np.full((3, 300), 1 / 300)
    drafts = np.array([0, 100], kind)
    block = sample_block(SPS, np.eye(300)[drafts], wide, drafts, rng())
    assert block.tokens.max() < 300
    assert block.tokens[block.accepted] >= 0


@pytest.mark.parametrize("side", ["draft", "verifier", "recovery"])
def test_a_sum_in_single_precision_keeps_the_tail(side):
    vocab, head = 151_936, 0.97
    row = np.full(vocab, (1 - head) / (vocab - 1), dtype=np.float32)
    row[0] = head
    count, first = 400_000, np.zeros_like(row)
    first[1] = 1
    if side == "draft":
        tokens = sample_step(SPS, row, row, count, rng()).candidates
    elif side == "recovery":
        tokens = sample_step(SPS, first, row, count, rng()).tokens
    else:
        tokens = sample_rounds(SPS, row, row, count, 0, rng()).tokens[:, 0]
    tail = np.count_nonzero(tokens)
    assert binomtest(int(tail), count, float(row[1:].sum(dtype=np.float64))).pvalue > 1e-6


NAN = np.array([0.5, math.nan, 0.5])
BAD_ROWS = [NAN, np.zeros(3), np.array([1.5, -0.5, 0.0]), Q * 1.1, np.array([math.inf, 0, 0])]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=str)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_row_of_a_block_is_checked(bad, place):
    p, q = np.array([P, P]), np.array([Q, Q, Q])
    wrong = q.copy()
    wrong[place] = bad
    with pytest.raises(ValueError, match=f"q row {place}"):
        sample_block(SPS, p, wrong, [1, 1], rng())
    if place < 2:
        wrong = p.copy()
        wrong[place] = bad
        with pytest.raises(ValueError, match=f"p row {place}"):
            sample_block(SPS, wrong, q, [1, 1], rng())
        with pytest.raises(ValueError, match=f"p_raw row {place}"):
            sample_block(SPS, p, q, [1, 1], rng(), p_raw=wrong, q_raw=p)


@pytest.mark.parametrize("bad", BAD_ROWS, ids=str)
def test_every_row_of_steps_and_rounds_is_checked(bad):
    for p, q, name in ((bad, Q, "p"), (P, bad, "q")):
        with pytest.raises(ValueError, match=f"^{name} row 0"):
            sample_step(SPS, p, q, 5, rng())
        with pytest.raises(ValueError, match=f"^{name} row 0"):
            sample_rounds(SPS, p, q, 5, 0, rng())


def test_a_step_is_of_one_row_and_rounds_of_one_axis_of_rows():
    with pytest.raises(ValueError, match=r"p must be one row \[V\], got shape \(2, 3\)"):
        sample_step(SPS, np.array([P, Q]), np.array([Q, Q]), 5, rng())
    with pytest.raises(ValueError, match=r"p must have shape \[R, V\] or \[V\], got \(1, 2, 3\)"):
        sample_rounds(SPS, np.array([[P, Q]]), np.array([[Q, Q]]), 5, 2, rng())
    with pytest.raises(ValueError, match=r"p must have rows, got shape \(0, 3\)"):
        sample_rounds(SPS, np.zeros((0, 3)), np.zeros((0, 3)), 5, 2, rng())


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ([1, 3], r"draft_tokens must hold token ids below 3, got 3 at \[1\]"),
        ([2**40, 1], "draft_tokens must hold token ids below 3"),
        ([1, -1], "draft_tokens must hold token ids of at least 0"),
        ([1, 1.5], "draft_tokens must be integers"),
        ([1, math.nan], "draft_tokens must be integers"),
        ([True, False], "draft_tokens must be integers"),
        (["1", "2"], "draft_tokens"),
        (1, "drafts need"),
    ],
)
def test_what_is_no_token_is_refused(drafts, message):
    with pytest.raises(ValueError, match=message) as told:
        sample_block(SPS, np.array([P, P]), np.array([Q, Q, Q]), drafts, rng())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: verify_block([1], [0.5], [2], 3), "accepted must be True or False"),
        (lambda: verify_block([1], [math.nan], [2], 3), "accepted must be True or False"),
        (lambda: verify_block([1.0], [True], [2], 3), "draft_tokens must be integers"),
        (lambda: verify_block([1], [True], [2.5], 3), "recovery_tokens must be integers"),
        (lambda: verify_block([1], [True], [2], 3.5), "bonus_token must be integers"),
        (lambda: verify_block([1], [True], [2], 3, 2), "draft_lengths must lie in 0 … 1, got 2"),
        (lambda: verify_block([1], [True], [2], 3, -1), "draft_lengths must lie in 0 … 1, got -1"),
        (lambda: verify_block([1], [True], [2], 3, 0.5), "draft_lengths must be integers"),
        (lambda: verify_greedy([1], [1.0, 2.0]), "verifier_tokens must be integers"),
        (lambda: verify_greedy(1, [1, 2]), "draft_tokens must have an axis"),
    ],
)
def test_what_a_round_cannot_read_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def masked(values):
    return np.ma.array(values, mask=np.zeros(np.shape(values), bool))


@pytest.mark.parametrize("unfit", [masked, lambda v: np.asarray(v) + 0j], ids=["masked", "complex"])
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: sample_step(SPS, bad(P), Q, 5, rng()),
        lambda bad: sample_step(SPS, P, Q, 5, rng(), p_raw=bad(P), q_raw=Q),
        lambda bad: sample_rounds(SPS, P, bad([Q, Q]), 5, 1, rng()),
        lambda bad: sample_block(SPS, bad([P]), [Q, Q], [1], rng()),
        lambda bad: sample_block(SPS, [P], [Q, Q], bad([1]), rng()),
        lambda bad: verify_block(bad([1]), [True], [1], 1),
        lambda bad: verify_block([1], bad([True]), [1], 1),
        lambda bad: verify_block([1], [True], bad([1]), 1),
        lambda bad: verify_block([1], [True], [1], bad(1)),
        lambda bad: verify_greedy([1], bad([1, 2])),
        lambda bad: acceptance_metrics(bad([1]), 2),
        lambda bad: acceptance_metrics([1], bad(2)),
        lambda bad: accepted_from_emitted(bad([1])),
        lambda bad: expected_accepted(bad([0.5]), 2),
        lambda bad: expected_accepted(0.5, bad([2])),
        lambda bad: tokens_per_round([bad(0.5)], 2),
        lambda bad: speed_up(0.5, 2, bad(0.5)),
        lambda bad: clustered_mean(bad([1.0, 2.0]), np.array([1, 2])),
        lambda bad: clustered_mean(np.array([1.0, 2.0]), bad([1, 2])),
    ],
)
def test_masked_and_complex_values_are_refused(call, unfit):
    with pytest.raises(ValueError, match=r"masked|complex") as told:
        call(unfit)
    assert "\n" not in str(told.value)


def test_the_expected_length_takes_what_a_law_returns():
    row = np.random.default_rng(0).normal(size=(5, 151_936)).astype(np.float32)
    row = np.exp(row) / np.exp(row).sum(-1, keepdims=True)
    row *= np.float32(1 + 4e-6)
    for rows in (row, (row / row.sum(-1, keepdims=True, dtype=np.float64)) * (1 + 7e-8)):
        acceptance = one_step(SPS, rows, rows).acceptance
        found = expected_accepted(acceptance, 4)
        assert np.all((found > 3.99) & (found <= 4))
