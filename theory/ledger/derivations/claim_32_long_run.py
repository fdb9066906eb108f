r"""Claim 32: the long run of rounds is a convex programme, and a clip with biases solves it.

Occupancies z_i(x), emitted mass E_i(x, y) = z_i h and accepted mass C_i(x, y) ≤ min(z_i p, E_i) of
a Markov pair obey linear balances: what is accepted is alive at the next place, all else starts a
round. Tokens Σ z at Σ E log(E/(z q)) ≤ ε Σ z is a convex programme in (z, E, C). With the biases B
of the average-reward programme an accepted token is worth 1 + B_{i+1}(y) and one that ends a round
B_0(y), so that h = clip(p, b_y q, a_y q), λ log(a_y/b_y) = 1 + B_{i+1}(y) − B_0(y).
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import sympy
from scipy.optimize import brentq

import theory
from theory.ledger.derivations.solvers import has_conic_solver
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-6
CHAINS, STATES, DRAFTS = 4, 3, 2
PRICES = (1.0, 3.0)
ROUNDS = 60


def derive() -> list[Step]:
    """Derive the condition of a token, and that the programme is convex."""
    h, q, kept, ended, lam, nu = sympy.symbols("h q alpha beta lambda nu", positive=True)
    slope = sympy.diff(lam * h * sympy.log(h / q), h)
    above, below = (
        sympy.solve(worth - slope - nu, h)[0] for worth in (kept, ended)
    )  # of a token that is accepted with all it has, and of one that ends rounds as well
    gap = sympy.expand_log(sympy.log(above / below), force=True)
    mass, alive = sympy.symbols("E z", positive=True)
    hessian = sympy.hessian(mass * sympy.log(mass / (alive * q)), (mass, alive))
    return [
        Step(
            "E log(E/(z q)) has a Hessian of determinant 0 and positive diagonal: the programme "
            "in occupancies is convex, its balances are linear.",
            bool(sympy.simplify(hessian.det()) == 0)
            and all(bool(hessian[i, i].is_positive) for i in range(2)),
        ),
        Step(
            "Where h < p it is q e^{(α − ν)/λ − 1}, where h > p q e^{(β − ν)/λ − 1}: a clip with "
            "λ log(a_y/b_y) = α_y − β_y.",
            bool(sympy.simplify(gap - (kept - ended) / lam) == 0),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare policy iteration with the conic programme in occupancies."""
    worst, where = 0.0, {}
    for chain in range(CHAINS):
        p, q = rng.dirichlet(np.ones(STATES), size=(2, STATES))
        for price in PRICES:
            found = _iterated(p, q, price)
            wanted = _programme(p, q, price) if has_conic_solver() else found
            off = abs(found - wanted)
            if not off <= worst:
                worst, where = off, {"chain": chain, "price": price}
    return Check(
        "conic programme in occupancies of a chain",
        CHAINS * len(PRICES),
        worst,
        bool(worst <= TOLERANCE),
        where,
    )


def _iterated(p: Any, q: Any, price: float) -> float:
    """Return the most tokens − price · KL of a round in the long run, by policy iteration."""
    biases, gain = np.zeros(STATES), -math.inf
    for _ in range(ROUNDS):
        laws = _best(p, q, price, biases)
        start, reward = q, np.ones(STATES)
        for h in laws:
            go = np.minimum(p, h)
            spent = theory.divergence("kl", h, q)
            start, reward = h - go + go @ start, 1.0 - price * spent + go @ reward
        system = np.eye(STATES) - start
        system[:, 0] = 1.0  # the bias of the first state is 0; its column holds the gain
        found = np.linalg.solve(system, reward)
        if found[0] - gain <= 1e-13:
            return float(found[0])
        biases, gain = np.append(0.0, found[1:]), float(found[0])
    return math.nan


def _best(p: Any, q: Any, price: float, biases: Any) -> list[Any]:
    """Return the best laws at biases of the starts, of the last place first."""
    value, laws = q @ biases, []
    for _ in range(DRAFTS):
        kept = 1.0 + value
        h = np.stack([_clip(p[x], q[x], kept, biases, price) for x in range(STATES)])
        go = np.minimum(p, h)
        value = go @ kept + (h - go) @ biases - price * theory.divergence("kl", h, q)
        laws.append(h)
    return laws


def _clip(p: Any, q: Any, kept: Any, ended: Any, price: float) -> Any:
    def law(shift: float) -> Any:
        low, high = (q * np.exp((worth - shift) / price) for worth in (ended, kept))
        return np.minimum(np.maximum(p, low), high)

    ends = float(min(kept.min(), ended.min())), float(max(kept.max(), ended.max()))
    root: Any = brentq(lambda shift: float(law(shift).sum()) - 1.0, *ends, xtol=1e-14)
    return law(root) / law(root).sum()


def _programme(p: Any, q: Any, price: float) -> float:
    """Solve for all occupancies, emitted and accepted masses at once."""
    lib: Any = importlib.import_module("cvxpy")
    shape, row = (STATES, STATES), np.ones((1, STATES))
    first = lib.Variable((STATES, 1), nonneg=True)
    alive, ended, value, limits = first, 0.0, 0.0, [lib.sum(first) == 1.0]
    for _ in range(DRAFTS):
        emitted, kept = lib.Variable(shape, nonneg=True), lib.Variable(shape, nonneg=True)
        spread = alive @ row
        limits += [lib.sum(emitted, axis=1, keepdims=True) == alive]
        limits += [kept <= emitted, kept <= lib.multiply(spread, p)]
        value += lib.sum(alive) - price * lib.sum(lib.rel_entr(emitted, lib.multiply(spread, q)))
        ended += lib.sum(emitted - kept, axis=0)
        alive = lib.sum(kept, axis=0, keepdims=True).T
    ended += lib.sum(lib.multiply(alive @ row, q), axis=0)
    limits.append(ended == first[:, 0])
    problem = lib.Problem(lib.Maximize(value + lib.sum(alive)), limits)
    problem.solve(solver=lib.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    found: Any = problem.value
    return float(found)


CLAIM = Claim(
    number=32,
    name="long run",
    statement=(
        "Tokens per round at a KL per token is a convex programme in the occupancies of a Markov "
        "pair, solved token by token by h = clip(p, b_y q, a_y q) with λ log(a_y/b_y) = 1 + "
        "B_{i+1}(y) − B_0(y), B the biases of the average-reward programme."
    ),
    source="derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="11",
)
