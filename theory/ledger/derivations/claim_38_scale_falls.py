r"""Claim 38: the larger q_n, the more a candidate's target takes from the other tokens.

γ*(q) is the largest γ with q f(γ/q) + (1−q) f((1−γ)/(1−q)) ≤ δ, and c = (1−γ)/(1−q) the factor of
the other tokens. With c held, γ = 1 − c(1−q) and t = γ/q = (1−c)/q + c, the cost is q f(t) +
(1−q) f(c), and its derivative in q is f(t) − f(c) − f′(t)(t − c) ≤ 0: f lies above its tangent at
t. So with c held the cost falls in q while it rises as c falls from 1; at the budget a larger q has
a smaller c. Then γ = 1 − c(1−q) rises in q. The closed form has c = 1 − √(2δq/(1−q)), which falls.

It bounds what an unlisted token can do: none has a larger γ or a smaller c than at the cap.
"""

from __future__ import annotations

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import GENERATORS, is_convex, t, vanishes
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-9
BUDGETS = np.geomspace(1e-6, 10.0, 60)
POINTS = np.concatenate([np.geomspace(1e-12, 0.1, 200), np.linspace(0.1, 0.999, 200)])


def derive() -> list[Step]:
    """Derive the slope of the cost with c held, and the closed form's."""
    q, c, d = sympy.symbols("q c delta", positive=True)
    ratio = (1 - c) / q + c
    falls = []
    for f in GENERATORS.values():
        cost = q * f.subs(t, ratio) + (1 - q) * f.subs(t, c)
        slope = sympy.diff(f, t).subs(t, ratio)
        tangent = f.subs(t, ratio) - f.subs(t, c) - slope * (ratio - c)
        falls.append(vanishes(sympy.diff(cost, q) - tangent))
    rest = sympy.Symbol("r", positive=True)  # 1 − q
    closed = 1 - sympy.sqrt(2 * d * q / rest)
    gamma = q + sympy.sqrt(2 * d * q * rest)
    return [
        Step(
            "With c held the cost has the derivative f(t) − f(c) − f′(t)(t − c) in q, which is ≤ 0 "
            "for convex f: at the budget c falls in q, and γ = 1 − c(1 − q) rises.",
            all(falls) and all(is_convex(f) for f in GENERATORS.values()),
        ),
        Step(
            "The closed form's factor is (1 − γ)/(1 − q) = 1 − √(2δq/(1 − q)), which falls in q.",
            vanishes((1 - gamma).subs(q, 1 - rest) / rest - closed.subs(q, 1 - rest)),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare γ and c at neighbouring q, on eleven decades, for every divergence."""
    worst, where, points = 0.0, {}, 0
    solvers = {kind: kind for kind in theory.DIVERGENCES} | {"closed form": None}
    for name, kind in solvers.items():
        for budget in BUDGETS:
            if kind is None:
                found = theory.second_order_gamma(POINTS, float(budget))
            else:
                found = theory.optimal_gamma(POINTS, float(budget), kind)
            scale = found.complement / (1.0 - POINTS)
            off = max(float(np.max(np.diff(scale))), float(np.max(-np.diff(found.value))))
            points += POINTS.size
            if not off <= worst:
                worst, where = off, {"of": name, "budget": float(budget)}
    return Check(
        "neighbouring q on a grid, every divergence",
        points,
        worst,
        bool(worst <= TOLERANCE),
        where,
    )


CLAIM = Claim(
    number=38,
    name="scale falls",
    statement=(
        "The exact optimum γ*(q, δ) of every f-divergence rises in q, and the factor (1 − γ*)/(1 − "
        "q) of the other tokens falls; so do those of the closed form."
    ),
    source="derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="02",
    instead=(
        "So a token that is not listed has at most the γ, and at least the factor, of the largest "
        "probability that it can have."
    ),
)
