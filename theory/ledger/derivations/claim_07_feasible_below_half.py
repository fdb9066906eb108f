r"""Claim 7 (Corollary 6): γ ≤ ½ implies KL(h⁽ⁿ⁾‖q) ≤ δ; in fact γ ≤ 1 − q does.

Let g(x) = d_KL(q+x, q), v = q(1−q), and let γ = q + x be the closed form, so that δ = x²/(2v). The
slack E(x) = x²/(2v) − g(x) vanishes at 0 with E′ and E″, hence with k = −g‴

    E(x) = ∫_0^x ½(x−s)² k(q+s) ds,        k(½+u) = −2u/(¼−u²)².

k is positive below ½, which is the corollary. It is also odd around ½, and the weight (x−s)² falls
with s: if γ = ½ + a with a ≤ ½ − q, each point ½ + u, 0 < u ≤ a, has its mirror image ½ − u inside
the range of integration with a larger weight, and the two together contribute
½[(a−u)² − (a+u)²]k(½+u) = 4au²/(¼−u²)² ≥ 0. What is not paired lies below ½. So γ ≤ 1 − q suffices.
For q ≥ ½ the sign is reversed throughout: the uncapped closed form always overspends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import GENERATORS, t, vanishes
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-10
POINTS = 400_000

q, x, s, a, u = sympy.symbols("q x s a u", positive=True)
f = GENERATORS["kl"]
spent = q * f.subs(t, (q + x) / q) + (1 - q) * f.subs(t, (1 - q - x) / (1 - q))
slack = x**2 / (2 * q * (1 - q)) - spent
third = sympy.diff(spent, x, 3)


def derive() -> list[Step]:
    """Derive the sign of the third derivative, the integral form, and the pairing around ½."""
    gamma = sympy.Symbol("gamma", positive=True)
    closed = (2 * gamma - 1) / (gamma**2 * (1 - gamma) ** 2)
    below = sympy.simplify(closed.subs(gamma, 1 / (2 + s)))
    above = sympy.simplify(closed.subs(gamma, (1 + s) / (2 + s)))
    return [
        Step(
            "The third derivative of d_KL(·, q) is (2γ − 1)/(γ²(1−γ)²), whatever q.",
            vanishes(third.subs(x, gamma - q) - closed),
        ),
        Step("It is negative below ½ and positive above.", _signs(below, above)),
        Step(
            "E(x) = x²/(2v) − d_KL(q+x, q) vanishes at 0 with E′ and E″, and δ = x²/(2v) is the "
            "closed form's budget; so E ≥ 0, that is KL ≤ δ, where γ ≤ ½, and E < 0 where q ≥ ½.",
            all(vanishes(sympy.diff(slack, x, k).subs(x, 0)) for k in range(3)),
        ),
        *_pairing(),
    ]


def _signs(below: Any, above: Any) -> bool:
    return bool(below.is_negative) and bool(above.is_positive)


def _pairing() -> list[Step]:
    kernel = -third.subs(x, s)
    k_of = sympy.Function("k")
    integral = sympy.Integral((x - s) ** 2 / 2 * k_of(s), (s, 0, x))
    leibniz = sympy.diff(integral, x, 3) - k_of(x)
    at_zero = [sympy.diff(integral, x, order).subs(x, 0).doit() for order in range(3)]
    k = -2 * u / (sympy.Rational(1, 4) - u**2) ** 2
    pair = ((a - u) ** 2 * k + (a + u) ** 2 * k.subs(u, -u)) / 2
    moved = kernel.subs(s, sympy.Rational(1, 2) + u - q)
    y = sympy.Symbol("y", positive=True)  # (1−q)/q, so that γ = 1 − q is the mirror image of q
    edge = (y - 1 / y) / 2 - sympy.log(y)
    return [
        Step(
            "E(x) = ∫₀ˣ ½(x−s)² k(q+s) ds with k = −g‴: both sides vanish at 0 with two "
            "derivatives, and their third derivatives are k(q+x).",
            vanishes(leibniz.doit())
            and at_zero == [0, 0, 0]
            and vanishes(sympy.diff(slack, x, 3) + third),
        ),
        Step(
            "k is odd around ½, and a point ½ + u with its mirror image contributes "
            "4au²/(¼ − u²)² ≥ 0: KL ≤ δ wherever γ ≤ 1 − q.",
            vanishes(moved - k)
            and vanishes(pair - 4 * a * u**2 / (sympy.Rational(1, 4) - u**2) ** 2),
        ),
        Step(
            "At γ = 1 − q with y = (1−q)/q the statement reads log y ≤ (y − 1/y)/2, whose two "
            "sides agree at y = 1 and whose difference has the derivative (y−1)²/(2y²) ≥ 0.",
            vanishes(edge.subs(y, 1)) and vanishes(sympy.diff(edge, y) - (y - 1) ** 2 / (2 * y**2)),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Search for an overspending γ ≤ max(½, 1 − q) close to the edges, and for a thrifty q ≥ ½."""
    tokens, budgets = _near_the_edges(rng)
    over, closest = _relative_excess(tokens, budgets)
    inside = closest <= np.maximum(0.5, 1.0 - tokens)
    off = np.where(inside & (tokens < 0.5), over, -np.inf)
    row = int(np.argmax(off))
    high, small = rng.uniform(0.5, 0.99, POINTS), 10.0 ** rng.uniform(-4, 0, POINTS)
    thrift, gamma = _relative_excess(high, small)
    least = float(np.min(np.where(gamma < 1.0, thrift, np.inf)))
    return Check(
        "directed search at γ ≈ ½, γ ≈ 1 − q and small budgets",
        2 * POINTS + int(inside.sum()),
        max(float(off[row]), 0.0),
        bool(off[row] <= TOLERANCE and least > 0.0 and _holds_on_rows(rng)),
        {"q": float(tokens[row]), "delta": float(budgets[row]), "gamma": float(closest[row])},
        {
            "largest relative excess of KL over δ (γ ≤ 1 − q)": float(off[row]),
            "smallest relative excess for q ≥ 1/2": least,
        },
    )


def _near_the_edges(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return (q, δ) whose closed form is close to ½, close to 1 − q, or anywhere below."""
    tokens = rng.uniform(1e-3, 0.5, (3, POINTS))
    wobble = 1.0 - 10.0 ** rng.uniform(-9, -1, (2, POINTS))
    edges = [0.5 * wobble[0], (1.0 - tokens[1]) * wobble[1], rng.uniform(tokens[2], 1 - tokens[2])]
    gamma = np.maximum(np.stack(edges), tokens + 1e-4)
    budgets = (gamma - tokens) ** 2 / (2.0 * tokens * (1.0 - tokens))
    return tokens.ravel(), budgets.ravel()


def _relative_excess(tokens: Any, budgets: Any) -> tuple[Any, Any]:
    """Return KL/δ − 1 of the closed form by the textbook formula, and γ."""
    raised = theory.second_order_gamma(tokens, budgets)
    rise = raised.value - tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = raised.complement * np.log(raised.complement / (1.0 - tokens))
    lost = np.where(raised.complement > 0, lost, 0.0)
    return (raised.value * np.log1p(rise / tokens) + lost) / budgets - 1.0, raised.value


def _holds_on_rows(rng: np.random.Generator) -> bool:
    """Check the candidate's whole target on rows of five tokens."""
    for row in rng.dirichlet(np.ones(5), size=200):
        budget = float(10.0 ** rng.uniform(-3, 0))
        gamma = theory.second_order_gamma(row, budget).value
        for n in np.flatnonzero(gamma <= np.maximum(0.5, 1.0 - row)):
            target = theory.candidate_target(row, int(n), gamma[n])
            if row[n] < 0.5 and not theory.divergence("kl", target, row) <= budget * (1 + 1e-9):
                return False
    return True


CLAIM = Claim(
    number=7,
    name="feasible below one half",
    statement="If the closed form has γ ≤ ½ then its target keeps the budget: KL(h⁽ⁿ⁾‖q) ≤ δ.",
    source="2604.04987 Corollary 6",
    expected="proved",
    derive=derive,
    check=check,
    notebook="03",
    instead=(
        "γ ≤ 1 − q suffices, which is weaker for every q < ½. For q ≥ ½ and γ < 1 the closed form "
        "always overspends: KL(h⁽ⁿ⁾‖q) > δ. The exact region is claim 12."
    ),
)
