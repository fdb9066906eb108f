r"""Claim 27: what is in use with several candidates, the optimum, and a choice that reaches it.

One by one with residuals accepts 1 − Π_k TV(h_k, p), h₁ = q and h_{k+1} = norm((h_k − p)₊): what is
left does not depend on the rejected token. K-SEQ accepts 1 − (1 − β)^K at 1 − (1−β)^K = ρβ, at
least (1 − (1 − 1/K)^K) of the optimum. Testing the candidate of the lowest p/q has the law of the
increments g. Weights inside the flat blocks of u/q bring the law of the chosen one to u.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy

import theory
from theory.candidates import k_seq, lowest_ratio, one_by_one, select
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-10
INSTANCES = 40


def derive() -> list[Step]:
    """Derive the guarantee of K-SEQ at its factor, and the win of a draw by clocks."""
    t, w, v = sympy.symbols("t w v", positive=True)
    wins = sympy.integrate(w * sympy.exp(-w * t) * sympy.exp(-v * t), (t, 0, sympy.oo))
    k = sympy.symbols("K", positive=True)
    share = 1 - (1 - 1 / k) ** k
    return [
        Step(
            "A clock of rate w rings before one of rate v with probability w/(w + v): a draw is "
            "chosen with the odds of its weight.",
            bool(sympy.simplify(wins - w / (w + v)) == 0),
        ),
        Step(
            "The guarantee 1 − (1 − 1/K)^K is 1 at K = 1, 3/4 at 2, and falls to 1 − 1/e.",
            share.subs(k, 1) == 1
            and share.subs(k, 2) == sympy.Rational(3, 4)
            and sympy.limit(share, k, sympy.oo) == 1 - sympy.exp(-1),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Go through all draws: acceptance one by one, the law of the chosen one, K-SEQ's guarantee."""
    worst, where = 0.0, {}
    for instance in range(INSTANCES):
        size, count = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        p, q = rng.dirichlet(np.full(size, 0.7), size=2)
        best = float(np.minimum(theory.effective_draft(p, q, count), q).sum())
        offs = [
            abs(float(one_by_one(p, q, count)) - _one_by_one(p, q, count)),
            float(np.max(np.abs(select(p, q, count).law - _chosen(p, q, count)))),
            max(float(k_seq(p, q, count)) - best, float(lowest_ratio(p, q, count)) - best, 0.0),
            best - float(np.minimum(select(p, q, count).law, q).sum()),
            max((1 - (1 - 1 / count) ** count) * best - float(k_seq(p, q, count)), 0.0),
        ]
        if not max(offs) <= worst:
            worst, where = max(offs), {"instance": instance, "count": count}
    return Check("all draws, one after another", INSTANCES, worst, bool(worst <= TOLERANCE), where)


def _one_by_one(p: Any, q: Any, count: int) -> float:
    """The acceptance by going through all draws."""
    accepted, h, alive = 0.0, q, 1.0
    for _ in range(count):
        keep = np.minimum(np.where(p > 0, h / np.where(p > 0, p, 1.0), 0.0), 1.0)
        accepted += alive * float(p @ keep)
        alive *= 1.0 - float(p @ keep)
        left = np.maximum(h - p, 0.0)
        if left.sum() < 1e-15:
            break
        h = left / left.sum()
    return accepted


def _chosen(p: Any, q: Any, count: int) -> Any:
    """The law of the candidate that `choose` picks: uniforms fall into its odds evenly."""
    chosen = select(np.broadcast_to(p, (GRID, len(p))), np.broadcast_to(q, (GRID, len(q))), count)
    law = np.zeros(len(p))
    for drawn in itertools.product(range(len(p)), repeat=count):
        block, weight = chosen._block[0][list(drawn)], chosen._weight[0][list(drawn)]
        odds = np.where(block == block.max(), weight, 0.0)
        at = (np.arange(GRID) + 0.5) / GRID
        picked = chosen.choose(np.broadcast_to(drawn, (GRID, count)), at)
        shares = np.bincount(picked, minlength=count) / GRID
        if np.max(np.abs(shares - odds / odds.sum())) > 1.5 / GRID:
            return np.full(len(p), np.nan)
        for token, share in zip(drawn, odds / odds.sum()):
            law[token] += np.prod(p[list(drawn)]) * share
    return law


GRID = 16  # uniforms that `choose` is asked with, evenly spaced

CLAIM = Claim(
    number=27,
    name="candidates in use",
    statement=(
        "One by one, K-SEQ and the lowest ratio first are lossless and below the optimum; a choice "
        "by weights inside the flat blocks of u/q has a law that is known exactly, and reaches u "
        "where every ratio p/q has a weight of its own."
    ),
    source="2305.09781, 2310.15141, 2410.18234 (choose, then test); weights derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="10",
)
