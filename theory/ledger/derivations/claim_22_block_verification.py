r"""Claim 22: block verification takes both bounds of any verification.

Let A(v) be the probability that v or more of the drafts is accepted. Only drafts are accepted, so
A(vy) ≤ p(vy); and what follows the exactly accepted v, E(v, y), has to fill up the law,
A(v) h(y|v) = A(vy) + E(v, y) with E ≥ 0, so A(vy) ≤ A(v) h(y|v). Block verification has
A(vy) = min(p(vy), A(v) h(y|v)) at every prefix: no A is larger anywhere, and P(τ ≥ i) is the
largest possible for every i at once.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import sympy

from theory.ledger.derivations.block_rounds import (
    accepted_length,
    block_tests,
    distance,
    rounds,
    text_law,
    token_tests,
)
from theory.ledger.derivations.claim_21_what_a_verification_can_be import (
    PREFIXES,
    over_verifications,
    random_tree,
)
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-8
TREES = 12
TWO = [Fraction(2, 3), Fraction(1, 3)], [Fraction(1, 3), Fraction(2, 3)]


def derive() -> list[Step]:
    """Derive the step of A along a path, and the example of two tokens in fractions."""
    s, p, h = sympy.symbols("s p h", positive=True)
    step = sympy.Min(1, s * h / p) * p - sympy.Min(p, s * h)
    p2, q2 = TWO
    lengths = [
        accepted_length(rounds(lambda v: p2, lambda v: q2, 2, tests, lambda v: q2))
        for tests in (token_tests, block_tests)
    ]
    losses = [
        distance(text_law(rounds(lambda v: p2, lambda v: q2, 2, t, lambda v: q2), lambda v: q2, 3),
                 lambda v: q2)
        for t in (token_tests, block_tests)
    ]  # fmt: skip
    values = [(2, 3, 5), (1, 2, 7), (3, 1, 1)]
    return [
        Step(
            "With s = A(v)/p(v) and s′ = min(1, s·h/p) the next alive mass is s′·p(vy) = "
            "min(p(vy), A(v) h(y|v)).",
            all(step.subs({s: sympy.Rational(1, a), p: b, h: c}) == 0 for a, b, c in values),
        ),
        Step(
            "Two tokens, p = (2/3, 1/3), q = (1/3, 2/3), two drafts: 10/9 accepted token by token "
            "and 11/9 as a block, both exactly lossless over three tokens.",
            lengths == [Fraction(10, 9), Fraction(11, 9)] and losses == [0, 0],
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare the algorithm's P(τ ≥ i) with the programme over all P(τ, Y | draft)."""
    worst, where = 0.0, {}
    for tree in range(TREES):
        rows = random_tree(rng, zeros=tree % 3 == 2)
        draft, target = (lambda v, r=rows: r[v][0]), (lambda v, r=rows: r[v][1])
        ends = rounds(draft, target, 2, block_tests, target)
        offs = [float(distance(text_law(ends, target, 3), target))]
        for length in (1, 2):
            reached = sum(sum(row) for v, row in ends.items() if len(v) >= length)
            gain = {v: float(len(v) == length) for v in PREFIXES}
            offs.append(abs(reached - over_verifications(draft, target, gain)))
        if not max(offs) <= worst:
            worst, where = float(max(offs)), {"tree": tree}
    return Check("programmes over P(τ, Y | draft)", TREES * 2, worst, worst <= TOLERANCE, where)


CLAIM = Claim(
    number=22,
    name="block verification",
    statement=(
        "Every verification of a block with the law h has A(vy) ≤ p(vy) and A(vy) ≤ A(v) h(y|v); "
        "block verification takes the smaller of the two at every prefix, so that P(τ ≥ i) is the "
        "largest for every i at once."
    ),
    source="2403.10444 (mean length), 2602.16961 (all verifications); every length derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="09",
)
