r"""Claim 26: K candidates behave as one candidate that is drawn from u.

F(T) = P(all candidates in T) is supermodular, so that the laws that can be emitted without a
rejection, h(T) ≥ F(T) for every T, are the base polytope of a polymatroid; one base u is nearest to
q in every f-divergence at once: moving mass from a token of higher h/q to one of lower h/q costs
f′(low) − f′(high) ≤ 0 for every f (Fujishige's lexicographic optimum). Then a law h can be emitted
with a rejection r iff h(T) ≥ F(T) − r for all T, and the frontier is clip(u, b·q, a·q) with the
acceptance Σ min(u, h), as that of a single draft u (claim 15).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.candidate_sets import (
    Sets,
    best_acceptance,
    candidate_sets,
    strict_optimum,
)
from theory.ledger.derivations.common import GENERATORS, is_convex
from theory.ledger.derivations.solvers import KINDS, has_conic_solver
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-6
INSTANCES = 32
SCHEMES = ("independent", "without_replacement", "likeliest", "greedy")


def derive() -> list[Step]:
    """Derive that F is supermodular for independent draws, and the exchange of mass."""
    a, b, c = sympy.symbols("a b c", nonnegative=True)
    gains = []
    for count in (2, 3, 4):
        gain = (a + b + c) ** count + a**count - (a + b) ** count - (a + c) ** count
        gains.append(all(term > 0 for term in sympy.Poly(sympy.expand(gain), a, b, c).coeffs()))
    return [
        Step(
            "With a = p(A∩B) and b, c the rest of A and B, (a+b+c)^K + a^K − (a+b)^K − (a+c)^K has "
            "positive coefficients alone: F(A∪B) + F(A∩B) ≥ F(A) + F(B). So it is for every joint "
            "law, since the sets inside A or B are among those inside A∪B.",
            all(gains),
        ),
        Step(
            "Every generator is convex: mass that moves from a token of higher h/q to one of lower "
            "h/q lowers D_f for all f at once, so that one base is the nearest for all.",
            all(is_convex(f) for f in GENERATORS.values()),
        ),
    ]


def instance(rng: np.random.Generator, number: int) -> tuple[Any, Any, int, str]:
    """Rows of two to five tokens, with zeros in p and in q and ties; how many candidates, and how
    they are drawn."""
    size = int(rng.integers(2, 6))
    p, q = rng.dirichlet(np.full(size, 0.7), size=2)
    if number % 3 == 1 and size > 2:
        q[rng.integers(size)] = 0.0
    if number % 4 == 1 and size > 2:
        p[rng.integers(size)] = 0.0
    if number % 5 == 1:
        p, q = np.round(4 * p) + np.eye(size)[0], np.round(4 * q) + np.eye(size)[-1]
    return p / p.sum(), q / q.sum(), int(rng.integers(1, 4)), SCHEMES[number % len(SCHEMES)]


def deviation(p: Any, q: Any, count: int, scheme: str, kind: str, level: float) -> float:
    """By how much programmes over all choices differ from those with the draft u."""
    sets: Sets = candidate_sets(p.tolist(), count, scheme)
    u = theory.effective_draft(p, q, count, scheme)
    off = abs(strict_optimum(sets, q) - float(np.minimum(u, q).sum()))
    wanted = best_acceptance(sets, q, kind, level) if has_conic_solver() else None
    if wanted is None:
        return off
    return max(off, abs(wanted - float(theory.frontier_acceptance(u, q, level, kind))))


def check(rng: np.random.Generator) -> Check:
    """Compare strict optimum and frontier with programmes over all choices of a candidate."""
    worst, where = 0.0, {}
    for number in range(INSTANCES):
        p, q, count, scheme = instance(rng, number)
        kind, level = KINDS[number % len(KINDS)], float(10 ** rng.uniform(-2.5, -0.7))
        off = deviation(p, q, count, scheme, kind, level)
        if not off <= worst:
            worst, where = off, {"scheme": scheme, "count": count, "kind": kind, "level": level}
    return Check("programmes over all choices", INSTANCES, worst, bool(worst <= TOLERANCE), where)


CLAIM = Claim(
    number=26,
    name="effective draft",
    statement=(
        "With several candidates of any joint law there is one draft u with the same best "
        "acceptance: Σ min(u, q) without loss, and clip(u, b·q, a·q) as the frontier of every "
        "f-divergence; for draws u/q is the antitonic regression of the increments of F over q."
    ),
    source="lossless half: 2511.15898, 2410.18234; lossy rules and every f derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="10",
)
