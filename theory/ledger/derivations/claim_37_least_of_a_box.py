r"""Claim 37: within bounds token by token one law is nearest to q for every divergence.

Let low ≤ h ≤ high token by token and Σ h = 1. Where two tokens are free, moving mass from the
higher h/q to the lower one changes Σ q f(h/q) at the rate f′(low) − f′(high) ≤ 0. So the least has
one ratio τ for all free tokens, those at their lower bounds have more and those at their upper
bounds less: h = clip(τq, low, high). τ follows from Σ h = 1, and f does not enter. By weak duality
Σ q f(h/q) − f′(τ)(Σ h − 1) at any τ is a lower bound, whatever the rounding of τ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy.optimize import minimize

import theory
from theory.ledger.derivations.common import GENERATORS, is_convex, t, vanishes
from theory.ledger.verdicts import Check, Claim, Step
from theory.partial import Envelope, PartialRows
from theory.partial.envelope import Between

TOLERANCE = 2e-6
KINDS = ("kl", "reverse_kl", "pearson_chi2", "squared_hellinger", "jensen_shannon")
BOXES, TOKENS = 40, 6


def derive() -> list[Step]:
    """Derive the exchange of mass, and the dual bound."""
    x, y, u, v, s, q, h, tau = sympy.symbols("x y u v s q h tau", positive=True)
    drops, slopes = [], []
    for f in GENERATORS.values():
        slope = sympy.diff(f, t)
        moved = x * f.subs(t, u + v - s / x) + y * f.subs(t, u + s / y)
        change = sympy.diff(moved, s).subs(s, 0)
        drops.append(vanishes(change - slope.subs(t, u) + slope.subs(t, u + v)))
        lagrangian = q * f.subs(t, h / q) - slope.subs(t, tau) * h
        slopes.append(
            vanishes(sympy.diff(lagrangian, h) - slope.subs(t, h / q) + slope.subs(t, tau))
        )
    return [
        Step(
            "Moving mass from the higher h/q to the lower changes the cost at the rate f′(low) − "
            "f′(high) ≤ 0: free tokens share one ratio τ.",
            all(drops) and all(is_convex(f) for f in GENERATORS.values()),
        ),
        Step(
            "A summand of the Lagrangian with ν = f′(τ) has the slope f′(h/q) − f′(τ): it falls up "
            "to τq and rises from there, so that clip(τq, low, high) is its least, for every f.",
            all(slopes),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Minimise over random boxes by sequential quadratic programming."""
    worst, where = 0.0, {}
    for kind in KINDS:
        for box in range(BOXES):
            q, inside = rng.dirichlet(np.ones(TOKENS), size=2)
            width = rng.uniform(0.0, 0.4, size=(2, TOKENS))
            low, high = inside * (1.0 - width[0]), inside * (1.0 + width[1])
            found = _least(kind, q, low, high)
            off = abs(_searched(kind, q, low, high, inside) - found)
            if not off <= worst:
                worst, where = off, {"kind": kind, "box": box}
    return Check(
        "SLSQP on random boxes",
        BOXES * len(KINDS),
        worst,
        bool(worst <= TOLERANCE),
        where,
    )


def _least(kind: str, q: Any, low: Any, high: Any) -> float:
    """Return the lower bound of an envelope that is this box, all tokens known."""
    tokens = np.arange(TOKENS)[None, :], q[None, :]
    rows = PartialRows.of(tokens, tokens, TOKENS)
    ones = np.ones((1, 1))
    box = Envelope(
        rows, Between(0.0, 1.0), low[None, None, :], high[None, None, :], (0.0 * ones, ones)
    )
    return float(box.divergence(theory.DIVERGENCES[kind]).lower[0])


def _searched(kind: str, q: Any, low: Any, high: Any, start: Any) -> float:
    divergence = theory.DIVERGENCES[kind]
    found: Any = minimize(  # type: ignore[call-overload]
        lambda h: float(np.sum(divergence.term(np.maximum(h, 0.0), q))),
        start,
        bounds=list(zip(low, high)),
        constraints={"type": "eq", "fun": lambda h: np.sum(h) - 1.0},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return float(found.fun)


CLAIM = Claim(
    number=37,
    name="least of a box",
    statement=(
        "Of all laws h with low ≤ h ≤ high token by token, clip(τq, low, high) with Σ h = 1 is "
        "nearest to q, in every f-divergence at once."
    ),
    source="derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="07",
    instead=(
        "Any τ gives a bound from below, Σ q f(h/q) − f′(τ)(Σ h − 1): the value that "
        "theory.partial_law returns never exceeds the least."
    ),
)
