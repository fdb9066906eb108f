r"""Claim 10 (mentored decoding): clip(p, q/β, q/α) accepts most among the laws with KL(q‖h) ≤ D.

Maximise Σ min(p_i, h_i) subject to Σ q_i log(q_i/h_i) ≤ D and Σ h_i = 1. The objective is concave
and the budget convex in h, so that the Karush–Kuhn–Tucker conditions are sufficient. With
multipliers λ > 0 and ν the subgradient of the Lagrangian contains zero iff

    g_i + λ q_i/h_i = ν,   g_i = 1 where h_i < p_i,  0 where h_i > p_i,  in [0, 1] where h_i = p_i.

The two solved branches are q/α with α = (ν−1)/λ and q/β with β = ν/λ; the third case is exactly
the interval of draft probabilities between them. So h = clip(p, q/β, q/α), and λ = 1/(β − α).

A token with q_i = 0 < p_i gets h_i ≤ q_i/α = 0 as long as α > 0. At α = 0 the optimum may emit such
tokens, for a divergence beyond that of every law on the verifier's support: mentored decoding stops
there, and is optimal among the laws that do not leave the support.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import in_every_order, vanishes
from theory.ledger.derivations.solvers import maximal_acceptance
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 2e-6
PAIRS = 40

p, q, h = sympy.symbols("p q h", positive=True)
multiplier, nu, s = sympy.symbols("lambda nu s", positive=True)


def derive() -> list[Step]:
    """Solve the stationarity conditions, then fix the two factors by mass and budget."""
    return [*_branches(), *_factors(), *_trade()]


def _lagrangian(gain: Any) -> Any:
    return gain - multiplier * q * sympy.log(q / h) - nu * h


def _branches() -> list[Step]:
    below = sympy.solve(sympy.diff(_lagrangian(h), h), h)  # h < p, where min(p, h) = h
    above = sympy.solve(sympy.diff(_lagrangian(p), h), h)  # h > p, where min(p, h) = p
    alpha, beta = (nu - 1) / multiplier, nu / multiplier
    g = nu - multiplier * q / p  # the subgradient that h = p needs
    at_ends = [g.subs(p, q / alpha) - 1, g.subs(p, q / beta)]
    return [
        Step(
            "The budget is convex in h, since ∂²/∂h² q log(q/h) = q/h² > 0, and min(p, h) is "
            "concave: the conditions are sufficient.",
            bool(sympy.diff(q * sympy.log(q / h), h, 2).is_positive),
        ),
        Step(
            "Where h < p stationarity gives h = q/α with α = (ν − 1)/λ.",
            len(below) == 1 and vanishes(below[0] - q / alpha),
        ),
        Step(
            "Where h > p it gives h = q/β with β = ν/λ = α + 1/λ > α.",
            len(above) == 1
            and vanishes(above[0] - q / beta)
            and vanishes(beta - alpha - 1 / multiplier),
        ),
        Step(
            "Where h = p the subgradient g = ν − λq/p must lie in [0, 1]; it grows with p from 0 "
            "at p = q/β to 1 at p = q/α. So h = clip(p, q/β, q/α).",
            all(vanishes(end) for end in at_ends) and bool(sympy.diff(g, p).is_positive),
        ),
    ]


def _factors() -> list[Step]:
    low, width = sympy.symbols("low width", nonnegative=True)
    x = sympy.Symbol("x", nonnegative=True)
    high = low + width
    clipped = sympy.Min(sympy.Max(x, low), high)
    balance = clipped - x - (sympy.Max(low - x, 0) - sympy.Max(x - high, 0))
    shift = sympy.Symbol("g", nonnegative=True)
    cases = [  # x below low, between, and above high
        balance.subs({low: x + shift}),
        balance.subs({x: low + shift, width: shift + width}, simultaneous=True),
        balance.subs(x, low + width + shift),
    ]
    slack = sympy.Symbol("slack", nonnegative=True)  # Σ(q/α − h) = 1/α − 1, Σ(h − q/β) = 1 − 1/β
    factor = sympy.Symbol("factor", positive=True)
    upper = sympy.solve(1 / factor - 1 - slack, factor)
    lower = sympy.solve(1 - 1 / factor - slack / (1 + slack), factor)  # a sum below 1
    return [
        Step(
            "Σh = 1 is Σ(q/β − p)₊ = Σ(p − q/α)₊, the recovered and the rejected mass.",
            all(vanishes(sympy.expand(case)) for case in cases)
            and in_every_order(sympy.Max(x, low) - x - sympy.Max(low - x, 0), (x, low), vanishes),
        ),
        Step(
            "h ≤ q/α and h ≥ q/β summed over the tokens give 1 ≤ 1/α and 1 ≥ 1/β: α ≤ 1 ≤ β.",
            upper == [1 / (1 + slack)]
            and bool(sympy.simplify(1 - upper[0]).is_nonnegative)
            and len(lower) == 1
            and bool(sympy.simplify(lower[0] - 1).is_nonnegative),
        ),
    ]


def _trade() -> list[Step]:
    """The divergence falls with the rejected mass m, at the rate β − α."""
    mass, draft, kept, raised = sympy.symbols("m P Q_a Q_b", positive=True)
    # Clipped from above: total (P − m) of verifier mass Q_a, so 1/α = (P − m)/Q_a; likewise below.
    above, below = (draft - mass) / kept, (s + mass) / raised
    spent = -kept * sympy.log(above) - raised * sympy.log(below)
    rate = sympy.diff(spent, mass) - (1 / above - 1 / below)
    curvature = sympy.simplify(sympy.diff(spent, mass, 2).subs(draft, mass + nu))
    return [
        Step(
            "As a function of the rejected mass m the divergence has the derivative α − β < 0 and "
            "is convex: the budget is spent in full, up to KL(q‖p), where all is accepted.",
            vanishes(rate) and bool(curvature.is_positive),
        )
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare acceptance, law and divergence with a solver on all tokens, supports included."""
    worst, where, methods = 0.0, {}, set()
    for i in range(PAIRS):
        size = int(rng.integers(2, 9))
        p_row, q_row = rng.dirichlet(np.full(size, 0.8), size=2) * 0.96 + 0.04 / size
        if i % 4 == 3 and size > 2:  # the draft leaves the support of the verifier
            q_row[0] = 0.0
            q_row /= q_row.sum()
        level = float(10.0 ** rng.uniform(-3, 0.3))
        off, method = _against_solver(p_row, q_row, level)
        methods.add(method)
        if not off <= worst:
            worst, where = off, {"p": p_row.tolist(), "q": q_row.tolist(), "level": level}
    refused = _refused()
    return Check(
        f"the programme on all V tokens ({', '.join(sorted(methods))})",
        PAIRS,
        worst,
        worst <= TOLERANCE and refused > 0.0,
        where,
        {"acceptance refused outside the support (an example)": refused},
    )


def _refused() -> float:
    """Return what an optimum that may leave the support accepts beyond mentored decoding.

    NaN if the frontier for KL(q‖h), which may leave it, is not that optimum.
    """
    p_row, q_row, level = np.array([0.3, 0.5, 0.2]), np.array([0.0, 0.4, 0.6]), 0.2
    rule = theory.make_rule("mentored", level=level)
    best = maximal_acceptance(p_row, q_row, "reverse_kl", level).value
    frontier = float(theory.frontier_acceptance(p_row, q_row, level, "reverse_kl"))
    refused = best - float(theory.one_step(rule, p_row, q_row).acceptance)
    return refused if abs(best - frontier) <= TOLERANCE else float("nan")


def _against_solver(p_row: Any, q_row: Any, level: float) -> tuple[float, str]:
    """Return the largest error of acceptance, budget and shape, and the solver's name."""
    law = theory.one_step(theory.make_rule("mentored", level=level), p_row, q_row)
    support = q_row > 0
    best = maximal_acceptance(p_row[support], q_row[support], "reverse_kl", level)
    acceptance = float(law.acceptance)
    spent = float(np.sum(q_row[support] * np.log(q_row[support] / law.output[support])))
    off = max(abs(acceptance - best.value), spent - level, float(law.output[~support].sum()))
    off = max(off, abs(float(np.minimum(p_row, law.output).sum()) - acceptance))
    if acceptance < float(p_row[support].sum()) - 1e-6:  # below full acceptance the budget binds
        off = max(off, level - spent)
        off = max(off, 0.01 * float(np.max(np.abs(law.output[support] - best.target))))
    return off, best.method


CLAIM = Claim(
    number=10,
    name="mentored decoding",
    statement=(
        "clip(p, q/β, q/α) with 0 < α ≤ 1 ≤ β, Σ(p − q/α)₊ = Σ(q/β − p)₊ and KL(q‖h) = D has the "
        "largest acceptance of all laws with KL(q‖h) ≤ D; from D ≥ KL(q‖p) on everything is "
        "accepted."
    ),
    source="Tran-Thien 2023, optimally lossy speculative sampling",
    expected="proved",
    derive=derive,
    check=check,
    notebook="06",
    instead=(
        "Where the draft leaves the verifier's support this is the optimum among laws on the "
        "support. A budget above the divergence of the best of those would buy more acceptance "
        "outside it, which mentored decoding refuses and the frontier for KL(q‖h) takes."
    ),
)
