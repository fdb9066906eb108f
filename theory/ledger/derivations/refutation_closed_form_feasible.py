r"""Refuted: "the closed form respects the budget".

Searched are all (q, δ) in multiples of 1/N, small N first. The smallest counterexample, q = δ = ½,
is also the worst one in nats: KL − δ ≤ log(1+2δ) − δ ≤ log 2 − ½ with equality there alone (claim
11).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.verdicts import Check, Claim, Step

LARGEST_DENOMINATOR = 60


def derive() -> list[Step]:
    """Evaluate the smallest counterexample exactly."""
    half = sympy.Rational(1, 2)
    gamma = half + sympy.sqrt(2 * half * half * half)
    overshoot = sympy.log(2) - half
    return [
        Step("q = δ = ½: γ = ½ + √(2·½·½·½) = 1, without the cap.", gamma == 1),
        Step(
            "KL(h‖q) = log 2 = 0.693 > ½; the overshoot log 2 − ½ is the largest there is.",
            bool(overshoot.is_positive),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Find the counterexample with the least denominator, and the worst one up to a larger N."""
    first, worst, points = None, {"excess": 0.0}, 0
    for denominator in range(2, LARGEST_DENOMINATOR + 1):
        case, count = _worst_of(denominator)
        points += count
        if first is None and case["excess"] > 1e-12:
            first = case
        if case["excess"] > worst["excess"] + 1e-12:
            worst = case
    figures = {"largest KL − δ": worst["excess"], "its q": worst.get("q", 0.0)}
    if first is None:
        return Check("search by denominator", points, 0.0, True, {}, figures)
    figures["KL/δ of the counterexample"] = 1.0 + first["excess"] / first["delta"]
    return Check(
        "search of all rational q and δ by denominator, on the candidate's whole target",
        points,
        first["excess"],
        False,
        first,
        figures,
    )


def _worst_of(denominator: int) -> tuple[dict[str, Any], int]:
    """Return the largest KL(h‖q) − δ with q and δ in multiples of 1/N, q < 1, δ ≤ 2."""
    tokens = np.arange(1, denominator) / denominator
    budgets = np.arange(1, 2 * denominator + 1) / denominator
    q, delta = (v.ravel() for v in np.meshgrid(tokens, budgets))
    raised = theory.second_order_gamma(q, delta)
    target = np.stack([raised.value, raised.complement], axis=-1)
    spent = theory.divergence("kl", target, np.stack([q, 1.0 - q], axis=-1))
    row = int(np.argmax(spent - delta))
    case = {
        "q": float(q[row]),
        "delta": float(delta[row]),
        "gamma": float(raised.value[row]),
        "excess": float(spent[row] - delta[row]),
        "denominator": denominator,
    }
    return case, q.size


CLAIM = Claim(
    number="R2",
    name="closed form is feasible",
    statement="Cactus's closed form respects the budget: KL(h⁽ⁿ⁾‖q) ≤ δ.",
    source="often said of 2604.04987 Corollary 5",
    expected="refuted",
    derive=derive,
    check=check,
    notebook="03",
    instead=(
        "q = δ = ½ gives γ = 1 and KL = log 2 = 1.386 δ, the largest overshoot in nats. True are "
        "KL ≤ log(1 + 2δ) everywhere (claim 11) and KL ≤ δ exactly in the region of claim 12: "
        "q ≤ 0.2847 for every δ, q ≥ ½ for no δ below −log q."
    ),
)
