"""The best round and the best long run, each against a conic programme in its occupancies."""

import importlib

import numpy as np
import pytest

from sim.chain import MarkovPair, best_round, best_run, best_run_at, kernels, long_run, random_pair
from theory import RULES, make_rule
from theory.frontier import schedule
from theory.ledger.derivations.solvers import has_conic_solver
from theory.pair import Pair

GOLDEN = MarkovPair.first_order(
    np.tile([0.05, 0.80, 0.15], (3, 1)), np.tile([0.30, 0.35, 0.35], (3, 1))
)
conic = pytest.mark.skipif(not has_conic_solver(), reason="cvxpy is not installed")


def programme(pair, drafts, level, start=None):
    """The most tokens at `level` nats by token: masses e(i, x, y), of which c ≤ p are accepted.

    With a start, of one round; without, in the long run, where rounds start as they end.
    """
    lib = importlib.import_module("cvxpy")
    size = pair.states
    z = [lib.Variable(size, nonneg=True) for _ in range(drafts + 1)]
    e, c = ([lib.Variable((size, size), nonneg=True) for _ in range(drafts)] for _ in range(2))
    spread = [
        lib.multiply(lib.reshape(x, (size, 1), order="C") @ np.ones((1, size)), pair.verifier)
        for x in z
    ]
    limits, cost, ended = [], 0.0, lib.sum(spread[-1], axis=0)
    for i in range(drafts):
        drafted = lib.multiply(
            lib.reshape(z[i], (size, 1), order="C") @ np.ones((1, size)), pair.draft
        )
        limits += [lib.sum(e[i], axis=1) == z[i], c[i] <= e[i], c[i] <= drafted]
        limits += [z[i + 1] == lib.sum(c[i], axis=0)]
        cost += lib.sum(lib.rel_entr(e[i], spread[i]))
        ended += lib.sum(e[i] - c[i], axis=0)
    tokens = sum(lib.sum(x) for x in z)
    limits += [z[0] == start] if start is not None else [z[0] == ended, lib.sum(z[0]) == 1.0]
    problem = lib.Problem(lib.Maximize(tokens), [*limits, cost <= level * tokens])
    problem.solve(solver=lib.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return problem.value


@conic
@pytest.mark.parametrize("seed", range(3))
def test_the_long_run_is_that_of_the_programme(seed):
    pair = random_pair(3, seed)
    found = best_run_at(pair, 0.04, 3)
    assert found.divergence == pytest.approx(0.04, abs=1e-9)
    assert found.tokens == pytest.approx(programme(pair, 3, 0.04), abs=1e-6)


@conic
@pytest.mark.parametrize("seed", range(3))
def test_a_round_is_that_of_the_programme(seed):
    pair = random_pair(3, seed)
    start = np.array([1.0, 0.0, 0.0])
    found = best_round(pair, 2.0, 3, start)
    assert programme(pair, 3, found.divergence, start) == pytest.approx(found.tokens, abs=1e-6)


def test_without_context_it_is_the_schedule():
    row = Pair.prepare(GOLDEN.draft[:1], GOLDEN.verifier[:1])
    known = schedule(row, 2.4642527, 3)
    for found in (best_run(GOLDEN, 2.4642527, 3), best_round(GOLDEN, 2.4642527, 3, np.eye(3)[0])):
        assert (
            found.tokens == pytest.approx(known.tokens, abs=1e-9) == pytest.approx(2.6199, abs=5e-5)
        )
        assert found.cost == pytest.approx(known.cost, abs=1e-9)


@pytest.mark.parametrize("rule", ["lenience", "frontier", "cactus", "interpolation"])
def test_no_rule_is_above_the_long_run(rule):
    pair = random_pair(5, 4)
    for value in (0.2, 0.5):
        built = make_rule(rule, **{RULES[rule].parameter: value})
        run = long_run(pair, kernels(pair, [built])[0], 3)
        assert run.tokens <= best_run_at(pair, run.divergence, 3).tokens + 1e-9


def test_a_constant_law_is_its_own_long_run():
    """The optimum of a high price is strict sampling; of a pair that agrees it is all tokens."""
    pair = random_pair(4, 1)
    own = best_run(pair, 1e4, 3)
    wanted = long_run(pair, kernels(pair, [make_rule("sps")])[0], 3)
    assert own.tokens == pytest.approx(wanted.tokens, abs=1e-3)
    same = random_pair(4, 1, agreement=1.0)
    assert best_run(same, 1.0, 3).tokens == pytest.approx(4.0, abs=1e-9)


def test_what_cannot_be_is_refused():
    for price in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="price must be"):
            best_run(GOLDEN, price, 2)
    with pytest.raises(ValueError, match="level must be"):
        best_run_at(GOLDEN, 0.0, 2)
