"""Several candidates by enumeration: the law of their set, and the programmes over all choices.

Nothing of theory.candidates is used: a candidate set c comes with probability P(c), a choice
accepts x(c, y) of its token y, Σ_y x(c, y) ≤ P(c), and the law h has Σ_c x(c, y) ≤ h(y).
"""

from __future__ import annotations

import importlib
import itertools
from collections import defaultdict
from typing import Any

import numpy as np
from scipy.optimize import linprog

from theory.ledger.derivations.solvers import _is_severe, _spent, solved

Sets = dict[frozenset[int], Any]


def candidate_sets(p: Any, count: int, scheme: str) -> Sets:
    """The probability of each set of candidates, by going through all ordered draws.

    Numbers of any kind go in, fractions too.
    """
    tokens = [n for n in range(len(p)) if p[n] > 0]
    likeliest = sorted(tokens, key=lambda n: (-p[n], n))
    if scheme == "greedy":
        return {frozenset(likeliest[:count]): 1}
    found: Sets = defaultdict(int)
    if scheme == "independent":
        for drawn in itertools.product(tokens, repeat=count):
            found[frozenset(drawn)] += np.prod([p[n] for n in drawn])
    elif scheme == "without_replacement":
        for drawn in itertools.permutations(tokens, min(count, len(tokens))):
            mass, left = 1, sum(p[n] for n in tokens)
            for n in drawn:
                mass, left = mass * p[n] / left, left - p[n]
            found[frozenset(drawn)] += mass
    else:
        sure, rest = likeliest[: count - 1], likeliest[count - 1 :]
        total = sum(p[n] for n in rest)
        for n in rest:
            found[frozenset([*sure, n])] += p[n] / total
        if not rest:
            found[frozenset(sure)] = 1
    return dict(found)


def least_overlap(sets: Sets, h: Any) -> Any:
    """max_T [F(T) − h(T)] over all sets T of tokens, F(T) = P(all candidates lie in T)."""
    best = 0
    for size in range(len(h) + 1):
        for inside in map(frozenset, itertools.combinations(range(len(h)), size)):
            held = sum(mass for c, mass in sets.items() if c <= inside)
            best = max(best, held - sum(h[n] for n in inside))
    return best


def strict_optimum(sets: Sets, h: Any) -> float:
    """The largest acceptance of any choice with the law h, by a linear programme."""
    pairs = [(number, n) for number, c in enumerate(sets) for n in c]
    rows, bounds = [], []
    for number, mass in enumerate(sets.values()):
        rows.append([float(number == own) for own, _ in pairs])
        bounds.append(float(mass))
    for n, mass in enumerate(h):
        rows.append([float(n == token) for _, token in pairs])
        bounds.append(float(mass))
    found = linprog(-np.ones(len(pairs)), A_ub=np.array(rows), b_ub=bounds, method="highs")
    if found.fun is None:
        raise RuntimeError(f"linear programme failed: {found.message}")
    return -float(found.fun)


def best_acceptance(sets: Sets, q: Any, kind: str, level: float) -> float | None:
    """The largest acceptance of any choice whose law is within ``level`` of q, by conic solver."""
    lib: Any = importlib.import_module("cvxpy")
    q = np.asarray(q, dtype=float)
    pairs = [(number, n) for number, c in enumerate(sets) for n in c]
    kept, h = lib.Variable(len(pairs), nonneg=True), lib.Variable(len(q), nonneg=True)
    of_set = np.array([[number == own for own, _ in pairs] for number in range(len(sets))])
    of_token = np.array([[n == token for _, token in pairs] for n in range(len(q))])
    limits = [
        of_set.astype(float) @ kept <= np.array([float(mass) for mass in sets.values()]),
        of_token.astype(float) @ kept <= h,
        lib.sum(h) == 1.0,
        _spent(lib, kind, h, q) <= level,
    ]
    if _is_severe(kind) and bool(np.any(q == 0)):
        limits.append(h[np.flatnonzero(q == 0)] == 0.0)
    problem = lib.Problem(lib.Maximize(lib.sum(kept)), limits)
    return float(problem.value) if solved(problem) else None
