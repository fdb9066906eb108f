"""The choice of one candidate beside programmes over all couplings, and its gap on wide rows."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from theory import effective_draft, frontier_acceptance
from theory.candidates import effective_draft_of, select
from theory.ledger.derivations.candidate_sets import best_acceptance, strict_optimum
from theory.ledger.derivations.claim_26_effective_draft import SCHEMES, deviation
from theory.ledger.derivations.solvers import KINDS


def programme(p, q, count, wanted=None):
    """Over all choices of one of K independent draws: the largest Σ min(law, q), by scipy's HiGHS;
    with ``wanted`` the smallest Σ |law − wanted|.

    x(draw, y) ≥ 0 for the tokens y of a draw, Σ_y x(draw, y) = P(draw).
    """
    draws = list(itertools.combinations_with_replacement(range(len(p)), count))
    mass = dict.fromkeys(draws, 0.0)
    for ordered in itertools.product(range(len(p)), repeat=count):
        mass[tuple(sorted(ordered))] += float(np.prod(p[list(ordered)]))
    pairs = [(n, y) for n, draw in enumerate(draws) for y in set(draw)]
    size = len(p)
    equal = np.zeros((len(draws), len(pairs) + size))
    law = np.zeros((size, len(pairs)))
    for column, (n, y) in enumerate(pairs):
        equal[n, column] = law[y, column] = 1.0
    one = np.eye(size)
    aim = q if wanted is None else wanted
    # m_y ≤ law(y) and m_y ≤ aim(y): Σ m is the overlap, and Σ |law − aim| = 2 (1 − Σ m).
    below = np.block([[-law, one], [np.zeros_like(law), one]])
    found = linprog(
        np.append(np.zeros(len(pairs)), -np.ones(size)),
        A_ub=below,
        b_ub=np.append(np.zeros(size), aim),
        A_eq=equal,
        b_eq=[mass[draw] for draw in draws],
        method="highs",
    )
    assert found.status == 0
    return -found.fun


def few(number):
    """Rows of two to six tokens, with zeros on either side and ties."""
    rng = np.random.default_rng(7000 + number)
    size = int(rng.integers(2, 7))
    p, q = rng.dirichlet(np.full(size, 0.7), size=2)
    if number % 3 == 1 and size > 2:
        q[rng.integers(size)] = 0.0
    if number % 4 == 1 and size > 2:
        p[rng.integers(size)] = 0.0
    if number % 5 == 1:
        p, q = np.round(4 * p) + np.eye(size)[0], np.round(4 * q) + np.eye(size)[-1]
    return p / p.sum(), q / q.sum(), int(rng.integers(1, 4)), rng


@pytest.mark.parametrize("number", range(30))
def test_no_coupling_chooses_better(number):
    p, q, count, _ = few(number)
    law, u = select(p, q, count).law, effective_draft(p, q, count)
    got = np.minimum(law, q).sum()
    assert programme(p, q, count) == pytest.approx(np.minimum(u, q).sum(), abs=1e-9)
    assert programme(p, q, count, wanted=u) == pytest.approx(1, abs=1e-9)  # u can be reached
    assert programme(p, q, count, wanted=law) == pytest.approx(1, abs=1e-9)  # and so can its law
    assert np.minimum(u, q).sum() - 1e-6 <= got <= np.minimum(u, q).sum() + 1e-9


def test_the_programme_tells_a_law_that_no_coupling_has():
    p, q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
    assert programme(p, q, 2) == pytest.approx(0.71, abs=1e-9)
    assert programme(p, q, 2, wanted=q) == pytest.approx(0.71, abs=1e-9)
    first = effective_draft(p, q, 2) + np.array([0.01, -0.01, 0.0])
    assert programme(p, q, 2, wanted=first) < 1 - 0.009


def wide(tokens, spread, seed=0):
    """Two Zipf-like verifier rows, and drafts whose log p/q has this spread."""
    q = np.tile(1 / np.arange(1, tokens + 1.0) ** 1.1, (2, 1))
    q = q / q.sum(-1, keepdims=True)
    p = q * np.exp(spread * np.random.default_rng(seed).normal(size=q.shape))
    return p / p.sum(-1, keepdims=True), q


@pytest.mark.parametrize("tokens", [20_000, pytest.param(49_152, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("spread", [0.02, 0.2, 0.5, 1.0])
def test_the_gap_of_wide_rows_is_the_stated_one(tokens, spread):
    p, q = wide(tokens, spread)
    for count, most in ((2, 7e-4), (4, 2e-3)):
        best = np.minimum(effective_draft(p, q, count), q).sum(-1)
        gap = best - np.minimum(select(p, q, count).law, q).sum(-1)
        assert np.all(gap >= -1e-12)
        assert np.all(gap < most)


# --- the frontier by conic programmes --------------------------------------------------------


def off_the_frontier(number):
    """By how much programmes over all choices differ from those with u, for every divergence."""
    p, q, count, rng = few(number)
    scheme = (*SCHEMES, "different drafts")[number % 5]
    level = float(10 ** rng.uniform(-2.5, -0.7))
    if scheme != "different drafts":
        return max(deviation(p, q, count, scheme, kind, level) for kind in KINDS)
    drafts = np.stack([p, *rng.dirichlet(np.full(len(p), 0.7), count - 1)])
    sets = {}
    for drawn in itertools.product(range(len(p)), repeat=count):
        key = frozenset(drawn)
        sets[key] = sets.get(key, 0.0) + float(np.prod(drafts[range(count), drawn]))
    u = effective_draft_of(drafts, q)
    off = [abs(strict_optimum(sets, q) - np.minimum(u, q).sum())]
    for kind in KINDS:
        wanted = best_acceptance(sets, q, kind, level)
        if wanted is not None:
            off.append(abs(wanted - float(frontier_acceptance(u, q, level, kind))))
    return max(off)


@pytest.mark.parametrize("number", range(25))
def test_the_frontier_of_every_scheme_by_programmes(number):
    assert off_the_frontier(number) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(25, 225))
def test_the_frontier_of_every_scheme_by_programmes_by_night(number):
    assert off_the_frontier(number) < 1e-6
