r"""Claim 19: the outputs a candidate rule can produce are exactly the capped simplex {h : h ≤ γ}.

Inclusion: a token with p > q emits min(p, γ); one with p ≤ q stays below q ≤ γ (claim 3).
Conversely a draft p = h ≤ γ is accepted whole and emitted. So Γ_f(δ; q) = max D_f(h‖q) over the
capped simplex.

The maximum is attained at a vertex (D_f is convex): every token at 0 or at its cap but one. Chords
of the summands from 0 to the caps have the slopes (f(t)−f(0))/t at t = γ/q, which never fall with
t, so filling in decreasing γ/q maximises the chords: an upper bound that is off by one token's
chord defect. For KL the defect is −cθ log θ ≤ c/e for a token of cap c. The function that is
checked here, ``theory.certified_divergence``, keeps the summands of the likeliest
tokens exact.

* Uniform q: γV = 1 + √(2δ(V−1)) =: t, Γ_KL ≤ log t, with equality iff V/t is a whole number.
* Lenience has the cap q/l, so t = 1/l for all: Γ_f ≤ l f(1/l) + (1−l) f(0) = d_f(1, l).
* Mentored decoding reaches the ball KL(q‖h) ≤ D. With s the verifier mass of the raised set and
  A(t) = t f′ − f, the envelope theorem gives dΓ/ds = −[A(a) − A(b)] + ν[A_g(a) − A_g(b)], g = −log
  t and ν = (f′(a) − f′(b))/(g′(a) − g′(b)). As A′ = t f″, the two brackets over f′(a)−f′(b) and
  g′(a)−g′(b) are means of t on [b, a] with the weights f″ and g″ = 1/t²; the first is the larger if
  t²f″ increases, since (f″/g″) then shifts weight to larger t. So the rarest token is the worst
  set.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import sympy
from scipy.special import rel_entr

import theory
from theory.certificates.budgets import certified_divergence
from theory.ledger.derivations.common import GENERATORS, extreme_pairs, t, vanishes
from theory.ledger.derivations.worst_outputs import gain_on_ball, largest_at_vertices, uniform_rows
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-9
FINITE = ("kl", "pearson_chi2", "squared_hellinger", "jensen_shannon")  # smooth with f(0) < ∞

theta, c, s, u, v, w = sympy.symbols("theta c s u v w", positive=True)


def derive() -> list[Step]:
    """Derive the greedy order, the size of the gap, and the three special cases."""
    return [*_greedy(), *_special(), *_ball()]


def _greedy() -> list[Step]:
    rising = []
    for name in FINITE:
        f = GENERATORS[name]
        start = sympy.limit(f, t, 0, "+")
        numerator = t * sympy.diff(f, t) - f + start  # t² times the derivative of the slope
        rising.append(
            vanishes(sympy.diff((f - start) / t, t) * t**2 - numerator)
            and sympy.limit(numerator, t, 0, "+") == 0
            and vanishes(sympy.diff(numerator, t) - t * sympy.diff(f, t, 2))
            and bool(sympy.simplify(sympy.diff(f, t, 2)).is_positive)
        )
    defect = -theta * sympy.log(theta)
    chord = theta * c * sympy.log(t) - theta * c * sympy.log(theta * t)
    peak = sympy.solve(sympy.diff(defect, theta), theta)
    return [
        Step(
            "(f(t)−f(0))/t never falls: its derivative times t² vanishes at 0 and has the "
            "derivative t f″ > 0. Filling in decreasing γ/q is right for every f with f(0) < ∞.",
            all(rising),
        ),
        Step(
            "KL: a token of cap c filled to θc lies −cθ log θ below its chord, at most c/e.",
            vanishes(sympy.expand_log(chord - c * defect, force=True))
            and peak == [sympy.exp(-1)]
            and vanishes(defect.subs(theta, sympy.exp(-1)) - sympy.exp(-1)),
        ),
    ]


def _special() -> list[Step]:
    d, n, level = sympy.symbols("delta n l", positive=True)  # V = n + 1
    share = 1 / (n + 1)
    gamma = share + sympy.sqrt(2 * d * share * (1 - share))
    uniform = sympy.simplify(gamma * (n + 1) - 1 - sympy.sqrt(2 * d * n))
    lenient = []
    for name in FINITE:
        f = GENERATORS[name]
        chord = level * f.subs(t, 1 / level) + (1 - level) * sympy.limit(f, t, 0, "+")
        other = (1 - level) * sympy.limit(f.subs(t, (1 - s) / (1 - level)), s, 1, "-")
        lenient.append(vanishes(chord - (level * f.subs(t, 1 / level) + other)))
    kl = level * GENERATORS["kl"].subs(t, 1 / level)
    return [
        Step("Uniform q: γV = 1 + √(2δ(V−1)), so Γ_KL ≤ log(1 + √(2δ(V−1))).", uniform == 0),
        Step(
            "Lenience: the chord bound is d_f(1, l), for KL log(1/l), whatever the row.",
            all(lenient) and vanishes(sympy.expand_log(kl + sympy.log(level), force=True)),
        ),
    ]


def _ball() -> list[Step]:
    increasing, brackets = [], []
    gamma, mass = sympy.symbols("gamma m", positive=True)
    for f in GENERATORS.values():
        slope = sympy.diff(t**2 * sympy.diff(f, t, 2), t)
        increasing.append(bool(sympy.simplify(slope).is_nonnegative))
        legendre = t * sympy.diff(f, t) - f
        spent = mass * f.subs(t, gamma / mass) + (1 - mass) * f.subs(t, (1 - gamma) / (1 - mass))
        moved = sympy.diff(spent, mass)
        brackets.append(
            vanishes(
                moved + legendre.subs(t, gamma / mass) - legendre.subs(t, (1 - gamma) / (1 - mass))
            )
            and vanishes(sympy.diff(legendre, t) - t * sympy.diff(f, t, 2))
        )
    return [
        Step(
            "t²f″(t) never falls for KL, KL(q‖h), χ², Hellinger and Jensen–Shannon, so f′(t) + ν/t "
            "takes a value at most twice: the worst h/q on the ball KL(q‖h) ≤ D has two values.",
            all(increasing),
        ),
        Step(
            "∂d_f/∂s = A(b) − A(a) with A = t f′ − f and A′ = t f″: the means of t under f″ and "
            "1/t² decide, and raising the rarest token alone is the worst.",
            all(brackets),
        ),
        _rare_limit(),
    ]


def _rare_limit() -> Step:
    """Let the raised token's verifier probability m fall to 0 at a fixed γ."""
    gamma, mass = 1 / (1 + u), sympy.Symbol("m", positive=True)  # u > 0 keeps γ below 1
    spent = {
        name: mass * f.subs(t, gamma / mass) + (1 - mass) * f.subs(t, (1 - gamma) / (1 - mass))
        for name, f in GENERATORS.items()
    }
    ball = sympy.limit(spent["reverse_kl"], mass, 0, "+") + sympy.log(1 - gamma)
    entropy = gamma * sympy.log(gamma) + (1 - gamma) * sympy.log(1 - gamma)
    emitted = sympy.expand_log(spent["kl"], force=True) + gamma * sympy.log(mass)
    return Step(
        "As q_min falls to 0, γ* tends to 1 − e^{−D} and KL(h‖q) to (1−e^{−D}) log(1/q_min) minus "
        "the entropy of (γ, 1−γ): unbounded at any level D > 0.",
        vanishes(sympy.expand_log(ball, force=True))
        and vanishes(sympy.expand_log(sympy.limit(emitted, mass, 0, "+") - entropy, force=True)),
    )


def check(rng: np.random.Generator) -> Check:
    """Compare with all vertices, with drafts of every kind, and with a search on the ball."""
    vertices, where = _against_vertices(rng)
    exceeded, points = _against_drafts(rng)
    ball = gain_on_ball(rng)
    uniform, figures = uniform_rows()
    holds = max(vertices, exceeded, uniform) <= TOLERANCE and ball <= 1e-6
    return Check(
        "all vertices of small rows; extreme and directed drafts; sequential quadratic programming",
        points,
        max(vertices, exceeded, uniform, ball),
        bool(holds),
        where,
        figures | {"most that a search on the ball gains": ball},
    )


def _against_vertices(rng: np.random.Generator) -> tuple[float, dict[str, Any]]:
    worst, where = 0.0, {}
    for size in (2, 3, 5, 7):
        for sharpness in (0.3, 2.0):
            q = rng.dirichlet(np.full(size, sharpness))
            for name in ("cactus", "cactus_exact", "lenience"):
                value = float(10.0 ** rng.uniform(-3, 0))
                rule, cap = _with_cap(name, value, q)
                for kind, best in largest_at_vertices(q, cap).items():
                    found = certified_divergence(q, rule, kind)
                    attained = theory.divergence(
                        kind, theory.one_step(rule, found.draft, q).output, q
                    )
                    for bound in (found.lower, found.upper, attained):
                        off = 0.0 if best == bound else abs(float(bound) - best) / (1.0 + best)
                        # The reciprocal and the root of a last digit of a dropped token.
                        off = 0.0 if kind != "kl" and off < 1e-7 else off
                        if not off <= worst:
                            worst, where = off, {"rule": repr(rule), "kind": kind, "q": q.tolist()}
    return worst, where


def _with_cap(name: str, value: float, q: Any) -> tuple[Any, Any]:
    if name == "lenience":
        return theory.make_rule(name, l=np.exp(-value)), np.minimum(q / np.exp(-value), 1.0)
    rule: Any = theory.make_rule(name, delta=value)
    return rule, rule.gamma(q).value


def _against_drafts(rng: np.random.Generator) -> tuple[float, int]:
    """Run drafts at random, at the caps and at the worst case; return the largest relative "
    "excess."""
    worst, points = 0.0, 0
    for name, value in product(("cactus", "cactus_exact", "lenience"), (1e-3, 0.05, 1.0)):
        for size in (3, 8, 50):
            p, q = extreme_pairs(rng, 200, size)
            rule: Any = _with_cap(name, value, q)[0]
            found = certified_divergence(q, rule)
            for share in (0.0, 0.9, 1.0):
                drafts = (1.0 - share) * p + share * found.draft
                output = theory.one_step(rule, drafts, q).output
                spent = rel_entr(output, q).sum(axis=-1)
                worst = max(worst, float(np.max((spent - found.upper) / (1.0 + found.upper))))
                points += len(p)
            worst = max(worst, float(np.max(found.lower - spent)))
    return worst, points


CLAIM = Claim(
    number=19,
    name="reach",
    statement=(
        "For every draft output ≤ γ(q, δ) pointwise, and every distribution h ≤ γ is the output of "
        "the draft p = h. So the reachable outputs are exactly the capped simplex, and Theorem 3's "
        "Γ_f(δ; q) is the maximum of D_f(h‖q) over it, attained at an extreme point. Filling mass "
        "1 in decreasing γ/q bounds it up to one token. Uniform q: Γ_KL ≈ log(1 + √(2δV))."
    ),
    source="derived here; makes Γ of 2604.04987 Theorem 3 explicit",
    expected="proved",
    derive=derive,
    check=check,
    notebook="04",
    instead=(
        "The greedy order is right for every f with f(0) < ∞, and the gap for KL is at most γ/e of "
        "one token; keeping the m likeliest tokens exact lowers it to γ/e of the (m+1)-th. "
        "Uniform: Γ_KL ≤ log(1 + √(2δ(V−1))). Lenience: Γ_f ≤ d_f(1, l), for KL log(1/l), on "
        "every row. Mentored decoding: the worst draft raises the verifier's rarest token alone, "
        "for every f with t²f″ increasing, and its KL(h‖q) is about (1−e^{−D}) log(1/q_min), far "
        "above D."
    ),
)
