r"""Claim 25: the best lossless acceptance with several candidates is 1 − max_T [F(T) − h(T)].

A choice that keeps x(c, y) of token y from the candidate set c is a flow from sets of mass P(c) to
tokens of mass h(y). By max-flow and min-cut its largest value is min over sets T of tokens of
P(some candidate outside T) + h(T) = 1 − [F(T) − h(T)], F(T) = P(all candidates in T). For
independent draws F(T) = p(T)^K is the largest of its tangents K s^{K−1} p(T) − (K−1) s^K, and so is
the race of draws without replacement: for each tangent the best T takes every token with
h/p below a threshold, so that prefixes in descending p/h suffice.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import sympy

from theory.ledger.derivations.candidate_sets import (
    candidate_sets,
    least_overlap,
    strict_optimum,
)
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-8
INSTANCES = 60
SCHEMES = ("independent", "without_replacement", "likeliest", "greedy")
GOLDEN = ([Fraction(1, 20), Fraction(4, 5), Fraction(3, 20)],
          [Fraction(3, 10), Fraction(7, 20), Fraction(7, 20)])  # fmt: skip
KNOWN = {
    ("independent", 1): Fraction(11, 20),
    ("independent", 2): Fraction(71, 100),
    ("independent", 3): Fraction(419, 500),
    ("without_replacement", 2): Fraction(163, 170),
}


def derive() -> list[Step]:
    """Derive the tangents, and the golden pair in fractions."""
    x, s, k = sympy.symbols("x s K", positive=True)
    tangent = k * s ** (k - 1) * x - (k - 1) * s**k
    best = sympy.diff(tangent, s)
    p, q = GOLDEN
    exact = {asked: 1 - least_overlap(candidate_sets(p, asked[1], asked[0]), q) for asked in KNOWN}
    return [
        Step(
            "x^K is the largest of its tangents K s^(K−1) x − (K−1) s^K, reached at s = x: the "
            "derivative in s is K(K−1)s^(K−2)(x − s).",
            bool(sympy.simplify(best - k * (k - 1) * s ** (k - 2) * (x - s)) == 0)
            and bool(sympy.simplify(tangent.subs(s, x) - x**k) == 0),
        ),
        Step(
            "In fractions the pair p = (.05, .8, .15), q = (.3, .35, .35) has 11/20, 71/100 and "
            "419/500 for one, two and three independent candidates, and 163/170 for two without "
            "replacement.",
            exact == KNOWN,
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare the cut, over all sets and over prefixes, with the linear programme of the flow."""
    worst, where = 0.0, {}
    for instance in range(INSTANCES):
        scheme = SCHEMES[instance % len(SCHEMES)]
        p, h = rng.dirichlet(np.ones(int(rng.integers(2, 6))) * 0.7), None
        h = rng.dirichlet(np.ones(len(p)) * 0.7)
        count = int(rng.integers(1, 4))
        sets = candidate_sets(p.tolist(), count, scheme)
        flow = strict_optimum(sets, h)
        cuts = [1.0 - float(least_overlap(sets, h.tolist()))]
        if scheme in SCHEMES[:2]:
            cuts.append(1.0 - _over_prefixes(sets, p, h))
        off = max(abs(cut - flow) for cut in cuts)
        if not off <= worst:
            worst, where = off, {"instance": instance, "scheme": scheme, "count": count}
    return Check("flows by linear programme", INSTANCES, worst, bool(worst <= TOLERANCE), where)


def _over_prefixes(sets: Any, p: Any, h: Any) -> float:
    order = np.argsort(-p / h)
    best, inside = 0.0, set()
    for n in order.tolist():
        inside.add(n)
        held = sum(float(mass) for c, mass in sets.items() if c <= inside)
        best = max(best, held - float(sum(h[token] for token in inside)))
    return best


CLAIM = Claim(
    number=25,
    name="strict optimum with candidates",
    statement=(
        "With candidate sets of any joint law the largest acceptance of a choice with output h is "
        "1 − max_T [F(T) − h(T)]; for draws that are independent or without replacement a prefix "
        "of the tokens in descending p/h attains the maximum."
    ),
    source="2502.18779 (dual), 2511.15898; 2410.18234 (two draws); prefixes derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="10",
)
