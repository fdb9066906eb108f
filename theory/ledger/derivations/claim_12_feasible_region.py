r"""Claim 12: where the closed form keeps the KL budget, exactly.

The slack of a target that is raised to γ by the closed form is Φ(γ) = (γ−q)²/(2q(1−q)) − d_KL(γ,
q): its first part is δ as long as the cap does not bind. Φ and Φ′ vanish at γ = q and

    Φ″(γ) = (γ−q)(1−q−γ) / (q(1−q)γ(1−γ)).

* q ≥ ½: Φ″ < 0 on (q, 1), so Φ < 0: always infeasible below the cap.
* q < ½: Φ″ > 0 up to γ = 1 − q and negative beyond, so Φ′ rises from 0 and then falls to −∞; Φ
  rises from 0 and then falls to Φ(1) = (1−q)/(2q) + log q. It has one more zero γ_c ∈ (1−q, 1) if
  Φ(1) < 0 and none if Φ(1) ≥ 0.
* Φ(1) < 0 iff k(q) = −2q log q − (1−q) > 0; k is concave with k(0⁺) = −1, k(1) = 0 and k′(1) = −1,
  so k > 0 exactly on (q₀, 1).
* Where the cap binds, KL = −log q, feasible iff δ ≥ −log q. It binds from δ = (1−q)/(2q), which is
  at least −log q iff q ≤ q₀.

With y = 1/(2q) the equation k(q) = 0 reads y e^{−y} = e^{−½}/2: y = −W₋₁(−e^{−½}/2).
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import vanishes
from theory.ledger.verdicts import Check, Claim, Step

POINTS = 400_000  # of each of the five searches
TOLERANCE = 1e-11

q, g, e, s, w = sympy.symbols("q gamma epsilon s w", positive=True)
half = sympy.Rational(1, 2)
spent = g * sympy.log(g / q) + (1 - g) * sympy.log((1 - g) / (1 - q))
slack = (g - q) ** 2 / (2 * q * (1 - q)) - spent
branch = sympy.LambertW(-sympy.exp(-half) / 2, -1)
Q0 = float(sympy.N(-1 / (2 * branch), 20))


def derive() -> list[Step]:
    """Derive the curvature of the slack, its end value, q₀, and δ_c near q = ½."""
    return [*_curvature(), *_end_value(), _enclosure(), _near_half()]


def _curvature() -> list[Step]:
    second = sympy.diff(slack, g, 2)
    form = (g - q) * (1 - q - g) / (q * (1 - q) * g * (1 - g))
    b = sympy.Symbol("b", positive=True)
    # γ = q + s; the sign of Φ″ is that of 1 − 2q − s. For q = ½ + (a non-negative number) it is −.
    above = (1 - 2 * q - s).subs(q, half + sympy.Symbol("a", nonnegative=True))
    below = (1 - q - g).subs(g, 1 - q - b)
    return [
        Step(
            "Φ = Φ′ = 0 at γ = q, and Φ″ = (γ−q)(1−q−γ)/(q(1−q)γ(1−γ)).",
            vanishes(slack.subs(g, q))
            and vanishes(sympy.diff(slack, g).subs(g, q))
            and vanishes(second - form),
        ),
        Step("q ≥ ½: Φ″ < 0 on (q, 1), so KL > δ for every δ below the cap.", above.is_negative),
        Step(
            "γ ≤ 1 − q: Φ″ ≥ 0, so KL ≤ δ. Beyond 1 − q the slope falls to −∞, so Φ has at most "
            "one zero γ_c there.",
            bool(below.is_positive)
            and sympy.limit(sympy.diff(slack, g).subs(q, sympy.Rational(1, 3)), g, 1, "-")
            == -sympy.oo,
        ),
    ]


def _end_value() -> list[Step]:
    k = -2 * q * sympy.log(q) - (1 - q)
    end = sympy.limit(slack, g, 1, "-")
    # W e^W = −e^{−½}/2 turns k(q₀) into zero; log q₀ = ½ + W follows from its logarithm.
    y = sympy.Symbol("y", positive=True)
    at_root = sympy.expand_log(2 * y * k.subs(q, 1 / (2 * y)), force=True)
    rule = {sympy.log(y): y - half - sympy.log(2)}  # y e^{−y} = e^{−½}/2
    return [
        Step(
            "Φ(1) = (1−q)/(2q) + log q is negative iff k(q) = −2q log q − (1−q) > 0.",
            vanishes(sympy.expand_log(end - (1 - q) / (2 * q) - sympy.log(q), force=True))
            and vanishes(sympy.expand(end * 2 * q + k)),
        ),
        Step(
            "k is concave, k(0⁺) = −1, k(1) = 0, k′(1) = −1: k > 0 exactly on (q₀, 1).",
            bool(sympy.diff(k, q, 2).is_negative)
            and sympy.limit(k, q, 0, "+") == -1
            and k.subs(q, 1) == 0
            and sympy.diff(k, q).subs(q, 1) == -1,
        ),
        Step(
            "q₀ = −1/(2W₋₁(−e^{−½}/2)) = 1/(1+2δ*) with δ* = −½ − W₋₁ = −log q₀ of claim 11: one "
            "constant decides both.",
            vanishes(sympy.expand(at_root.subs(rule)))
            and vanishes(1 / (1 + 2 * (-half - branch)) + 1 / (2 * branch)),
        ),
        Step(
            "Capped: KL = −log q is within δ iff δ ≥ −log q; the cap binds from (1−q)/(2q), and "
            "(1−q)/(2q) + log q = −k/(2q) ≥ 0 iff q ≤ q₀, so that below q₀ it is never too early.",
            vanishes(sympy.expand((1 - q) / (2 * q) + sympy.log(q) + k / (2 * q))),
        ),
    ]


def _enclosure() -> Step:
    """Enclose q₀ rigorously: k is negative at the left end and positive at the right one."""
    iv = mpmath.iv
    low, high = iv.mpf("0.2846681"), iv.mpf("0.2846682")
    signs = [-2 * v * iv.log(v) - (1 - v) for v in (low, high)]
    holds = signs[0].b < 0 < signs[1].a and 0.2846681 <= Q0 <= 0.2846682
    return Step("0.2846681 < q₀ < 0.2846682.", bool(holds), "interval")


def _near_half() -> Step:
    """Expand Φ at q = ½ − ε and γ = q + wε in ε: the leading term has the root w = 4."""
    near = slack.subs({q: half - e, g: half - e + w * e})
    leading = sympy.factor(sympy.series(near, e, 0, 5).removeO().coeff(e, 4))
    roots = [v for v in sympy.solve(leading, w) if v != 0]
    budget = ((w * e) ** 2 / (2 * (half - e) * (half + e))).subs(w, 4)
    limit = sympy.limit(budget / e**2, e, 0)
    return Step(
        "Near ½ the interval opens like δ_c(q) = 32(½−q)² + …: Φ = (4w³ε⁴/3)(4 − w) + … at γ = q "
        "+ wε.",
        roots == [4] and limit == 32 and vanishes(leading - 4 * w**3 * (4 - w) / 3),
    )


def feasible(tokens: Any, budgets: Any) -> Any:
    """Predict whether the closed form keeps the budget, from the claim alone."""
    critical = critical_budget(tokens)
    return (budgets >= -np.log(tokens)) | (tokens <= Q0) | (budgets <= critical)


def critical_budget(tokens: Any) -> Any:
    """Return δ_c(q) on (q₀, ½) by bisection in γ ∈ (1−q, 1), and 0 for q ≥ ½."""
    tokens = np.asarray(tokens, dtype=np.float64)
    inside = (tokens > Q0) & (tokens < 0.5)
    safe = np.where(inside, tokens, 0.4)
    low, high = np.zeros_like(safe), safe  # of 1 − γ
    for _ in range(60):
        rest = 0.5 * (low + high)
        short = _slack(1.0 - rest, rest, safe) < 0
        low, high = np.where(short, rest, low), np.where(short, high, rest)
    budget = (1.0 - high - safe) ** 2 / (2.0 * safe * (1.0 - safe))
    return np.where(inside, budget, 0.0)


def _slack(gamma: Any, rest: Any, tokens: Any) -> Any:
    gain = gamma * np.log(gamma / tokens) + rest * np.log(np.maximum(rest, 1e-300) / (1 - tokens))
    return (gamma - tokens) ** 2 / (2.0 * tokens * (1.0 - tokens)) - gain


def check(rng: np.random.Generator) -> Check:
    """Compare the predicted region with the KL of the target on both sides of every boundary."""
    worst, where, total = 0.0, {}, 0
    for name, (tokens, budgets) in _boundaries(rng).items():
        raised = theory.second_order_gamma(tokens, budgets)
        rise = np.maximum(raised.value - tokens, 0.0)
        kl = theory.DIVERGENCES["kl"]
        cost = kl.term(raised.value, tokens, rise) + kl.term(raised.complement, 1 - tokens, -rise)
        excess = cost / budgets - 1.0
        wrong = np.where(feasible(tokens, budgets), excess, -excess)
        row, total = int(np.argmax(wrong)), total + tokens.size
        if not wrong[row] <= worst:
            worst = float(wrong[row])
            where = {"search": name, "q": float(tokens[row]), "delta": float(budgets[row])}
    near = critical_budget(0.5 - 1e-4)
    return Check(
        "directed search on both sides of every boundary",
        total,
        worst,
        worst <= TOLERANCE,
        where,
        {"q0": Q0, "δ_c(0.4)": float(critical_budget(0.4)), "δ_c/(½−q)² at ½": float(near / 1e-8)},
    )


def _boundaries(rng: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    """Return points (q, δ) at relative distances 1e−7 … 0.1 from each boundary."""
    side = 1.0 + rng.choice([-1.0, 1.0], (5, POINTS)) * 10.0 ** rng.uniform(-7, -1, (5, POINTS))
    low = rng.uniform(0.01, 1.0, (5, POINTS))
    between = Q0 + (0.499 - Q0) * low[0]
    at_q0 = np.clip(Q0 * side[1], 0.0, 1.0)
    cap = (1.0 - low[3]) / (2.0 * low[3])
    return {
        "δ_c": (between, critical_budget(between) * side[0]),
        "q0": (at_q0, (1.0 - at_q0) / (2.0 * at_q0) * rng.uniform(0.9, 1.0, POINTS)),
        "half": (0.5 * side[2], 10.0 ** rng.uniform(-3, 0, POINTS)),
        "cap": (low[3], np.maximum(cap * side[3], 1e-6)),
        "surprise": (0.99 * low[4], -np.log(0.99 * low[4]) * side[4]),
    }


CLAIM = Claim(
    number=12,
    name="feasible region",
    statement=(
        "The closed form keeps KL(h⁽ⁿ⁾‖q) ≤ δ for every δ iff q ≤ q₀ = 0.2846681…, the root of "
        "−2q log q = 1 − q; for q ≥ ½ it fails for every 0 < δ < −log q; between, it fails exactly "
        "on one interval (δ_c(q), −log q)."
    ),
    source="derived here; sharpens 2604.04987 Corollary 6",
    expected="proved",
    derive=derive,
    check=check,
    notebook="03",
    instead=(
        "q₀ = −1/(2W₋₁(−e^{−½}/2)) = 1/(1+2δ*) with the δ* of claim 11; δ_c(q) = 32(½−q)² + … near "
        "½, and γ ≤ 1 − q is always within the budget."
    ),
)
