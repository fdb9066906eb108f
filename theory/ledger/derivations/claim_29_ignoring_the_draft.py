r"""Claim 29: for a certain candidate Cactus's exact target is best, and for rules that ignore p.

A draft that is certain of n accepts h_n of a law h, so that the frontier is the largest h_n with
D_f(h‖q) ≤ ε: γ*(q_n, ε), Cactus's exact target. A rule that does not look at p and keeps its budget
for every draft keeps it for p = e_n: it accepts n with at most γ*(q_n, ε). The target-only coupling
attains this for all p at once: its output is Σ_n p_n h⁽ⁿ⁾, within ε because D_f is convex.
"""

from __future__ import annotations

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import GENERATORS, is_convex
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-8
INSTANCES = 60
KINDS = ("kl", "reverse_kl", "pearson_chi2", "squared_hellinger", "jensen_shannon")


def derive() -> list[Step]:
    """Derive what a certain draft accepts."""
    h = sympy.Symbol("h", positive=True)
    return [
        Step(
            "With p = e_n the acceptance Σ min(p, h) is min(1, h_n) = h_n.",
            bool(sympy.Min(1, h).subs(h, sympy.Rational(1, 3)) == sympy.Rational(1, 3)),
        ),
        Step(
            "D_f(·‖q) is convex, so that a mixture Σ_n p_n h⁽ⁿ⁾ of laws within ε is within ε.",
            all(is_convex(f) for f in GENERATORS.values()),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare frontier, γ* and the target-only rule on random rows."""
    worst, where = 0.0, {}
    for instance in range(INSTANCES):
        size = int(rng.integers(2, 9))
        p, q = rng.dirichlet(np.full(size, 0.8), size=2)
        kind, level = KINDS[instance % len(KINDS)], float(10 ** rng.uniform(-3, -0.5))
        gamma = theory.optimal_gamma(q, level, kind).value
        best = theory.frontier_acceptance(np.eye(size), np.tile(q, (size, 1)), level, kind)
        offs = [float(np.max(np.abs(best - gamma)))]
        if kind == "kl":
            rule = theory.make_rule("cactus_target_only", delta=level, exact=True)
            law = theory.one_step(rule, p, q)
            offs.append(abs(float(law.acceptance) - float(p @ gamma)))
            offs.append(max(float(theory.divergence("kl", law.output, q)) - level, 0.0))
        if not max(offs) <= worst:
            worst, where = max(offs), {"instance": instance, "kind": kind, "level": level}
    return Check("certain drafts, one a token", INSTANCES, worst, bool(worst <= TOLERANCE), where)


CLAIM = Claim(
    number=29,
    name="ignoring the draft",
    statement=(
        "With one certain candidate n the frontier is γ*(q_n, ε), Cactus's exact target; no rule "
        "that ignores p and keeps D_f(output‖q) ≤ ε for every draft accepts n more often, and the "
        "exact target-only rule attains it for all drafts at once."
    ),
    source="derived here; γ* is that of 2604.04987, Theorem 2",
    expected="proved",
    derive=derive,
    check=check,
    notebook="10",
)
