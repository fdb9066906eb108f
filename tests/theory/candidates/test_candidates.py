"""Several candidates: the effective draft, the laws in use, and the choice of one of them."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from theory_strategies import EXAMPLES, label

import theory
from theory import (
    CorpusFrontier,
    Pair,
    effective_draft,
    frontier_acceptance,
    frontier_step,
    make_rule,
    one_step,
)
from theory.candidates import (
    SCHEMES,
    effective_draft_of,
    k_seq,
    lowest_ratio,
    one_by_one,
    select,
)
from theory.candidates.increments import independent, without_replacement
from theory.ledger.derivations.candidate_sets import best_acceptance, strict_optimum
from theory.ledger.derivations.claim_26_effective_draft import deviation, instance
from theory.ledger.derivations.solvers import KINDS

P, Q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
RNG = np.random.default_rng(4)


def rows(tokens, count=1, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(tokens, 0.5), count)
    p = q * np.exp(spread * rng.normal(size=q.shape))
    return p / p.sum(-1, keepdims=True), q


@pytest.mark.parametrize(
    ("count", "scheme", "optimum", "u", "frontier"),
    [
        (1, "independent", 0.55, (0.05, 0.8, 0.15), 0.647062),
        (2, "independent", 0.71, (0.0975, 0.64, 0.2625), 0.807062),
        (3, "independent", 0.838, (0.142625, 0.512, 0.345375), 0.920136),
        (2, "without_replacement", 0.958824, (0.258824, 0.370588, 0.370588), 1.0),
    ],
)
def test_the_golden_pair(count, scheme, optimum, u, frontier):
    found = effective_draft(P, Q, count, scheme)
    np.testing.assert_allclose(found, u, rtol=0, atol=5e-7)
    assert np.minimum(found, Q).sum() == pytest.approx(optimum, abs=5e-7)
    assert frontier_acceptance(found, Q, 0.02) == pytest.approx(frontier, abs=5e-7)


def test_the_golden_pair_of_what_is_in_use():
    for count, plain, k in ((1, 0.55, 0.55), (2, 0.64, 0.665647), (3, 0.712, 0.753883)):
        assert one_by_one(P, Q, count) == pytest.approx(plain, abs=1e-12)
        assert k_seq(P, Q, count) == pytest.approx(k, abs=5e-7)
    assert one_by_one(P, Q, 2, replace=False) == pytest.approx(0.8625, abs=1e-12)


@pytest.mark.parametrize("number", range(24))
def test_programmes_over_all_choices_agree(number):
    p, q, count, scheme = instance(np.random.default_rng(1000 + number), number)
    assert deviation(p, q, count, scheme, KINDS[number % 6], 0.03) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(200))
def test_programmes_over_all_choices_agree_by_night(number):
    p, q, count, scheme = instance(np.random.default_rng(2000 + number), number)
    for kind in KINDS:
        assert deviation(p, q, count, scheme, kind, 0.05) < 1e-6


def test_independent_increments_in_fractions():
    p = [Fraction(n, 40) for n in (7, 1, 20, 12)]
    for count in (1, 2, 5):
        sums = list(itertools.accumulate(p))
        exact = [b**count - a**count for a, b in itertools.pairwise([Fraction(0), *sums])]
        found = independent(np.array([float(x) for x in p]), count)
        np.testing.assert_allclose(found, [float(x) for x in exact], rtol=1e-14)


def drawn_without(p, count):
    """The increments by going through all ordered draws, in fractions."""
    found = [Fraction(0)] * len(p)
    for order in itertools.permutations(range(len(p)), count):
        mass, left = Fraction(1), Fraction(1)
        for n in order:
            mass, left = mass * p[n] / left, left - p[n]
        found[max(order)] += mass
    return [float(x) for x in found]


@pytest.mark.parametrize("weights", [(3, 1, 5, 2, 9), (10**6, 1, 2, 3, 1), (1, 10**9, 10**9, 7, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_increments_without_replacement_in_fractions(weights, count):
    p = [Fraction(w, sum(weights)) for w in weights]
    found = without_replacement(np.array([float(x) for x in p]), count)
    np.testing.assert_allclose(found, drawn_without(p, count), rtol=1e-9)


def test_more_candidates_than_tokens_are_all_of_them():
    found = without_replacement(np.array([0.5, 0.0, 0.3, 0.2, 0.0]), 3)
    np.testing.assert_array_equal(found, [0, 0, 0, 1, 0])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_candidates_never_lower_the_frontier(scheme):
    p, q = rows(40, 8)
    found = [frontier_acceptance(effective_draft(p, q, k, scheme), q, 0.02) for k in (1, 2, 3, 4)]
    if scheme == "greedy":  # one certain candidate is another draft than one that is drawn
        found = found[1:]
    for less, more in itertools.pairwise(found):
        assert np.all(more >= less - 1e-10)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_u_is_a_distribution_in_the_kind_and_dtype_of_the_rows(scheme):
    p, q = rows(60, 6)
    u = effective_draft(p, q, 3, scheme)
    np.testing.assert_allclose(u.sum(-1), 1, atol=1e-12)
    assert u.min() >= 0
    tensors = effective_draft(torch.tensor(p).float(), torch.tensor(q).float(), 3, scheme)
    assert tensors.dtype == torch.float32
    np.testing.assert_allclose(tensors.numpy(), u, atol=1e-5)
    shaped = effective_draft(p.reshape(2, 3, 60), q.reshape(2, 3, 60), 3, scheme)
    np.testing.assert_array_equal(shaped.reshape(6, 60), u)


def test_tokens_that_the_verifier_never_emits_come_first():
    p, q = np.array([0.3, 0.3, 0.4]), np.array([0.0, 0.5, 0.5])
    u = effective_draft(p, q, 2)
    assert u[0] == pytest.approx(0.09, abs=1e-15)  # all candidates lie there
    step = frontier_step(u, q, np.inf, "kl")
    assert step.acceptance == pytest.approx(1.0)
    assert one_step(make_rule("sps"), u, q).acceptance == pytest.approx(0.91, abs=1e-12)


def test_a_faint_token_keeps_its_digits():
    p, q = np.array([1e-12, 1 - 1e-12]), np.array([1e-3, 1 - 1e-3])
    u = effective_draft(p, q, 3)
    assert u[0] == pytest.approx(3e-12, rel=1e-9)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_every_rule_runs_on_the_effective_draft(setting):
    p, q = rows(30, 4, seed=3)
    u = effective_draft(p, q, 2)
    law = one_step(make_rule(setting[0], **setting[1]), u, q)
    np.testing.assert_allclose(law.output.sum(-1), 1, atol=1e-10)
    level = theory.divergence("kl", law.output, q)
    assert np.all(law.acceptance <= frontier_acceptance(u, q, level) + 1e-9)


def test_a_corpus_takes_u_in_the_place_of_p():
    p, q = rows(50, 20)
    corpora = []
    for count in (1, 2):
        corpora.append(CorpusFrontier())
        corpora[-1].add(Pair.prepare(effective_draft(p, q, count), q))
    assert corpora[1].acceptance(0.02) > corpora[0].acceptance(0.02)


# --- different drafts ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_different_drafts_by_programmes(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    drafts, q = rng.dirichlet(np.full(size, 0.6), 2), rng.dirichlet(np.full(size, 0.6))
    if seed % 3 == 0:
        drafts[1] = np.eye(size)[0]  # one candidate is certain
    if seed % 4 == 1 and size > 2:
        q = np.append(0.0, q[1:] / q[1:].sum())
    sets = {}
    for a, b in itertools.product(range(size), repeat=2):
        key = frozenset((a, b))
        sets[key] = sets.get(key, 0.0) + drafts[0, a] * drafts[1, b]
    u = effective_draft_of(drafts, q)
    np.testing.assert_allclose(u.sum(), 1, atol=1e-12)
    assert np.minimum(u, q).sum() == pytest.approx(strict_optimum(sets, q), abs=1e-8)
    for kind in KINDS:
        wanted = best_acceptance(sets, q, kind, 0.03)
        if wanted is not None:
            assert frontier_acceptance(u, q, 0.03, kind) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_equal_drafts_are_independent_draws(count):
    for seed in range(6):
        p, q = (side[0] for side in rows(7, seed=seed))
        found = effective_draft_of(np.tile(p, (count, 1)), q)
        np.testing.assert_allclose(found, effective_draft(p, q, count), atol=1e-12)


# --- the choice ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_law_of_the_chosen_one_by_all_draws(count):
    for seed in range(12):
        p, q = (side[0] for side in rows(5, seed=seed))
        chosen = select(p, q, count)
        law = np.zeros(5)
        for drawn in itertools.product(range(5), repeat=count):
            block, odds = chosen._block[0][list(drawn)], chosen._weight[0][list(drawn)]
            odds = np.where(block == block.max(), odds, 0.0)
            np.add.at(law, list(drawn), np.prod(p[list(drawn)]) * odds / odds.sum())
        np.testing.assert_allclose(chosen.law, law, atol=1e-12)


@pytest.mark.parametrize("count", [2, 4])
def test_chosen_tokens_follow_the_law(count):
    """Chi-square, false-fail rate 1e-6; beside the law of a single draw it must fail."""
    p, q = (side[0] for side in rows(8, seed=5))
    chosen, rng = select(p, q, count), np.random.default_rng(7)
    at_once, times = 100, 400
    total, seen = at_once * times, np.zeros(8)
    many = select(np.tile(p, (at_once, 1)), np.tile(q, (at_once, 1)), count)
    for _ in range(times):
        drawn = rng.choice(8, size=(at_once, count), p=p)
        picked = many.choose(drawn, rng.random(at_once))
        seen += np.bincount(drawn[np.arange(at_once), picked], minlength=8)

    def statistic(law):
        return np.sum((seen - total * law) ** 2 / (total * law))

    limit = chi2.isf(1e-6, 7)
    assert statistic(chosen.law) < limit
    assert statistic(p) > 10 * limit


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("tokens", [12, 3000])
def test_the_choice_is_nearly_as_good_as_can_be(tokens, count):
    p, q = rows(tokens, 3, seed=8)
    best = np.minimum(effective_draft(p, q, count), q).sum(-1)
    got = np.minimum(select(p, q, count).law, q).sum(-1)
    assert np.all(got <= best + 1e-9)
    assert np.all(best - got < 2e-3)
    assert np.all(got >= lowest_ratio(p, q, count) - 1e-6)


def test_few_ratios_have_weights_of_their_own_and_reach_the_optimum():
    pairs = [rows(tokens, 6, seed=seed) for seed, tokens in enumerate((2, 3, 5, 8, 20))]
    pairs.append((np.array([[0.336561, 0.663439]]), np.array([[0.694865, 0.305135]])))
    for p, q in pairs:
        for count in (2, 3, 4):
            best = np.minimum(effective_draft(p, q, count), q).sum(-1)
            np.testing.assert_allclose(
                np.minimum(select(p, q, count).law, q).sum(-1), best, rtol=0, atol=1e-7
            )


def test_a_flat_block_needs_weights():
    """Twelve tokens, four draws: the lowest ratio first is far from the optimum."""
    p, q = rows(12, 1, spread=1.0, seed=2)
    best = np.minimum(effective_draft(p, q, 4), q).sum()
    assert best - lowest_ratio(p, q, 4)[0] > 0.02
    assert best - np.minimum(select(p, q, 4).law, q).sum() < 1e-4


def test_the_same_choice_for_torch_and_for_batches():
    p, q = rows(20, 4)
    plain, tensors = select(p, q, 2), select(torch.tensor(p), torch.tensor(q), 2)
    np.testing.assert_array_equal(plain.law, tensors.law.numpy())
    drawn = RNG.integers(20, size=(4, 2))
    np.testing.assert_array_equal(
        plain.choose(drawn, np.full(4, 0.3)), tensors.choose(torch.tensor(drawn), np.full(4, 0.3))
    )


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: effective_draft(P, Q, 0), "count must be an integer of at least 1, got 0"),
        (lambda: effective_draft(P, Q, 1.5), "count must be an integer"),
        (lambda: effective_draft(P, Q, 2, "beam"), "no scheme 'beam'; there are independent"),
        (lambda: effective_draft(P, 2 * Q, 2), "q row 0 sums to 2"),
        (lambda: effective_draft_of([P], [Q]), r"drafts must be \[K, V\] beside q \[V\]"),
        (lambda: effective_draft_of(rows(20)[0], rows(20)[1][0]), "20 tokens have mass"),
        (lambda: select(P, Q, True), "count must be an integer"),
        (lambda: select(P, Q, 2).choose([0, 1, 2], 0.5), "candidates must be integers"),
        (lambda: select(P, Q, 2).choose([0, 3], 0.5), r"token ids in \[0, 2\]"),
        (lambda: select(P, Q, 2).choose([0, 1], 1.0), r"uniforms must be numbers in \[0, 1\)"),
        (lambda: select(P, Q, 2).choose([0, 1], float("nan")), "uniforms must be numbers"),
        (lambda: one_by_one(*rows(3000), 3, replace=False), "are too many"),
    ],
)
def test_bad_input_is_refused_by_name(call, told):
    with pytest.raises(ValueError, match=told):
        call()
