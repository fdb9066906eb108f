r"""Claim 16: lenience accepts exactly as the frontier does and differs in the recovery only.

With a = 1/l lenience accepts p·min(1, q/(l p)) = min(p, aq), the frontier's law before recovery.
The frontier recovers with max(p, bq) among the receivers. For every convex f that is the cheapest
way to put the rejected mass R on tokens of a fixed p: where h > p the slopes f′(h/q) are equal,
where h = p they are at least as large, and the cost Σ q f(h/q) is convex. Lenience puts
R·(q−p)/TV(p, q) on them instead. The two agree iff p/q takes one value among the receivers (or R =
0, or R = TV(p, q)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import GENERATORS, in_every_order, is_convex, t, vanishes
from theory.ledger.derivations.solvers import KINDS, maximal_acceptance
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-8
SOLVER_TOLERANCE = 2e-6
ROWS = 400


def derive() -> list[Step]:
    """Derive the accepted mass, the cheapest recovery, and when lenience's is the same."""
    p, lifted = sympy.symbols("p A", positive=True)  # A = a·q = q/l
    r, x, y = sympy.symbols("r x y", positive=True)
    # aq/p is 1 + r or 1/(1 + r): the minimum is p, or aq.
    scaled = [sympy.Integer(1), 1 / (1 + r)]
    accepted = [vanishes(p * s - sympy.Min(p, p * s)) for s in scaled]
    # Two receivers of verifier masses x and y: moving mass from the higher h/q to the lower one.
    u, v, s = sympy.symbols("u v s", positive=True)
    moved = [
        sympy.diff(f.subs(t, u + v - s / x) * x + f.subs(t, u + s / y) * y, s).subs(s, 0)
        for f in GENERATORS.values()
    ]
    drops = [
        vanishes(change - (sympy.diff(f, t).subs(t, u) - sympy.diff(f, t).subs(t, u + v)))
        for change, f in zip(moved, GENERATORS.values())
    ]
    rejected = sympy.Symbol("R", positive=True)
    alike = r * x + (x - r * x) / (x + y - r * (x + y)) * rejected  # p/q = r for both
    return [
        Step(
            "The accepted mass is p·min(1, aq/p) = min(p, aq), and the rejected one (p − aq)₊.",
            all(accepted)
            and in_every_order(
                p - sympy.Min(p, lifted) - sympy.Max(p - lifted, 0), (p, lifted), vanishes
            ),
        ),
        Step(
            "Moving mass between receivers from the higher h/q to the lower changes the cost at "
            "the rate f′(low) − f′(high) < 0: the cheapest recovery levels h/q from below, max(p, "
            "bq).",
            all(drops) and all(is_convex(f) for f in GENERATORS.values()),
        ),
        Step(
            "If p/q = r for every receiver, lenience levels as well: its h/q is the same for all.",
            vanishes(alike / x - (alike / x).subs({x: y, y: x}, simultaneous=True)),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Level the recovery by bisection and compare acceptance and divergences with lenience's."""
    worst, where, gains = 0.0, {}, []
    for size in (3, 8, 40):
        for l in (0.95, 0.7, 0.4):  # noqa: E741 - the letter of the source
            p, q = rng.dirichlet(np.full(size, 0.7), size=(2, ROWS))
            step = theory.one_step(theory.make_rule("lenience", l=l), p, q)
            levelled = _levelled(p, q, l)
            for kind in theory.DIVERGENCES:
                spent = theory.divergence(kind, levelled, q)
                best = theory.frontier_acceptance(p, q, spent, kind)
                dearer = theory.divergence(kind, step.output, q) - spent
                off = np.maximum(np.abs(best - step.acceptance), -dearer)
                if kind != "total_variation":
                    gains.append(float(np.mean(dearer)))
                row = int(np.argmax(off))
                if not off[row] <= worst:
                    worst, where = float(off[row]), {"kind": kind, "l": l, "tokens": size}
    solver_off = _against_solver(rng)
    return Check(
        "recovery levelled by bisection; conic solver at the divergence it realises",
        9 * ROWS * len(theory.DIVERGENCES) + 3 * len(KINDS),
        max(worst, solver_off),
        bool(worst <= TOLERANCE and solver_off <= SOLVER_TOLERANCE and min(gains) > 1e-9),
        where,
        {"distance from the conic optimum": solver_off, "least mean saving": min(gains)},
    )


def _levelled(p: Any, q: Any, l: float) -> Any:  # noqa: E741 - the letter of the source
    """Return max(min(p, q/l), bq) with b found by bisection so that the rows sum to 1."""
    kept = np.minimum(p, q / l)
    low, high = np.zeros((len(p), 1)), np.ones((len(p), 1))
    for _ in range(100):
        b = 0.5 * (low + high)
        over = np.maximum(kept, b * q).sum(axis=-1, keepdims=True) > 1.0
        low, high = np.where(over, low, b), np.where(over, b, high)
    return np.maximum(kept, low * q)


def _against_solver(rng: np.random.Generator) -> float:
    worst = 0.0
    for kind in KINDS:
        for l in (0.9, 0.7, 0.5):  # noqa: E741 - the letter of the source
            p, q = rng.dirichlet(np.ones(7), size=2) * 0.999 + 0.001 / 7
            accepted = float(theory.one_step(theory.make_rule("lenience", l=l), p, q).acceptance)
            level = float(theory.divergence(kind, _levelled(p[None], q[None], l)[0], q))
            if level > 1e-6:
                found = maximal_acceptance(p, q, kind, level).value
                worst = max(worst, abs(found - accepted))
    return worst


CLAIM = Claim(
    number=16,
    name="lenience accepts alike",
    statement=(
        "Lenience with l = 1/a accepts each candidate exactly as the frontier with factor a does, "
        "min(1, a·q/p); only the recovery differs."
    ),
    source="2211.17192 A.5 for the rule; derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="06",
    instead=(
        "Recovering with (bq − p)₊ instead of (q − p)₊ costs nothing in acceptance and lowers "
        "every f-divergence at once, strictly unless p/q takes one value among the tokens with p "
        "< q."
    ),
)
