r"""Claim 36: what a list leaves open lies between the rest merged and the rest split.

Let A be the tokens whose probabilities are known in both rows, P and Q the masses outside A. Put
every token (p, q) outside A in the place of the two (p, 0) and (0, q): those tokens of one kind are
alike, so that the row becomes A with (P, 0) and (0, Q), the split row. Merging the two halves of
each token gives the completion back, and merging all tokens outside A gives the merged row, A with
(P, Q). So split → completion → merged, by merging alone.

For convex f the summand q f(p/q) is convex and homogeneous, hence subadditive: merging never
raises a divergence. min(p, cq) is concave and homogeneous: merging never lowers an overlap. And
merging the tokens of a law h with D_f(h‖q) ≤ level lowers its divergence and raises Σ min(p, h):
it never lowers what the best rule accepts at a level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import (
    GENERATORS,
    admissible_rules,
    t,
    vanishes,
)
from theory.ledger.derivations.completions import listed_pairs
from theory.ledger.verdicts import Check, Claim, Step
from theory.partial import Between, partial_law

TOLERANCE = 1e-7
VALUES = (0.02, 0.3, 0.8)
SIZES = ((12, 3), (40, 8), (200, 20))
KINDS = ("kl", "jensen_shannon", "total_variation", "pearson_chi2")


def derive() -> list[Step]:
    """Derive that merging lowers divergences and raises overlaps."""
    p, q, c, d = sympy.symbols("p q c d", positive=True)
    u, v, s = sympy.symbols("u v s", real=True)
    bends = []
    for f in GENERATORS.values():
        along = (q + s * v) * f.subs(t, (p + s * u) / (q + s * v))
        bend = sympy.diff(f, t, 2).subs(t, p / q) * (u - p * v / q) ** 2 / q
        bends.append(vanishes(sympy.diff(along, s, 2).subs(s, 0) - bend))
    return [
        Step(
            "Along any direction (u, v) the second derivative of q f(p/q) is f″(p/q)(u − pv/q)²/q "
            "≥ 0: it is convex and homogeneous, hence subadditive, and merging lowers D_f.",
            all(bends),
        ),
        Step(
            "min(x + y, z + w) ≥ min(x, z) + min(y, w): merging raises Σ min(p, cq), and with h in "
            "the place of q what a law accepts.",
            _merging_raises_minima(),
        ),
        Step(
            "(p, 0) and (0, q) merge to (p, q); the halves of one kind have one ratio, and merging "
            "these changes nothing: q f(p/q) is homogeneous.",
            all(
                vanishes((c + d) * f.subs(t, p) - c * f.subs(t, p) - d * f.subs(t, p))
                for f in GENERATORS.values()
            ),
        ),
    ]


def _merging_raises_minima() -> bool:
    """Decide min(x + y, z + w) ≥ min(x, z) + min(y, w) in every order of x and z, of y and w."""
    m, n, a, gap = sympy.symbols("m n a gap", nonnegative=True)
    for more, less in ((a + gap, a), (a, a + gap)):
        for x, z in ((m + more, m), (m, m + more)):
            for y, w in ((n + less, n), (n, n + less)):
                gain = sympy.Min(x + y, z + w) - sympy.Min(x, z) - sympy.Min(y, w)
                if not sympy.expand(gain).is_nonnegative:
                    return False
    return True


def check(rng: np.random.Generator) -> Check:
    """Search completions that leave the bracket, or the bounds of any rule of the laboratory."""
    worst, where, points = 0.0, {}, 0
    rules = admissible_rules(VALUES)
    for size, top in SIZES:
        rows, wholes = listed_pairs(rng, 12, size, top)
        bounds = {(name, value): _bounded(rule, rows) for name, value, rule in rules}
        for p, q in wholes:
            found = {"bracket": (_bracket(rows), _whole(p, q))}
            for name, value, rule in rules:
                found[f"{name} {value}"] = bounds[name, value], _law(rule, p, q)
            for label, (wanted, values) in found.items():
                for measure, number in values.items():
                    off = _outside(wanted[measure], number)
                    points += number.size
                    if not off <= worst:
                        worst, where = off, {"of": label, "measure": measure, "tokens": size}
    return Check(
        "search of completions: rests apart, together, even and at random, every rule",
        points,
        worst,
        bool(worst <= TOLERANCE),
        where,
    )


def _bracket(rows: Any) -> dict[str, Between]:
    """Return the bracket of overlap, divergences and the frontier at 0.1 nats."""
    ends = [_whole(pair.p, pair.q) for pair in (rows.split, rows.merged)]
    rising = {name: Between(ends[0][name], ends[1][name]) for name in ("overlap", "frontier")}
    return rising | {kind: Between(ends[1][kind], ends[0][kind]) for kind in KINDS}


def _whole(p: Any, q: Any) -> dict[str, Any]:
    best = theory.frontier_acceptance(p, q, 0.1, validate=False)
    found = {"overlap": np.minimum(p, q).sum(-1), "frontier": best}
    return found | {kind: theory.divergence(kind, p, q, validate=False) for kind in KINDS}


def _bounded(rule: Any, rows: Any) -> dict[str, Between]:
    law = partial_law(rule, rows)
    found = {kind: law.divergence(theory.DIVERGENCES[kind]) for kind in KINDS}
    return {"acceptance": law.acceptance} | found


def _law(rule: Any, p: Any, q: Any) -> dict[str, Any]:
    law = theory.one_step(rule, p, q)
    found = {kind: theory.divergence(kind, law.output, q) for kind in KINDS}
    return {"acceptance": law.acceptance} | found


def _outside(bounds: Between, value: Any) -> float:
    """Return by how much values leave their bounds, relative to one plus them."""
    with np.errstate(invalid="ignore"):
        off = np.maximum(bounds.lower - value, value - bounds.upper)
    same = (value == bounds.lower) | (value == bounds.upper)
    scale = 1.0 + np.where(np.isfinite(value), np.abs(value), 0.0)
    return float(np.max(np.where(same, 0.0, np.maximum(off, 0.0) / scale)))


CLAIM = Claim(
    number=36,
    name="merged and split",
    statement=(
        "Of rows of which only some tokens are known in both, every completion lies between the "
        "row with all else merged into one token (P, Q) and the row with it split into (P, 0) and "
        "(0, Q): in D_f(p‖q), in the overlap, and in the most that any rule accepts at a "
        "divergence."
    ),
    source="derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="07",
    instead=(
        "With what is known token by token the same two rows bound acceptance and every divergence "
        "of every rule (theory.partial_law)."
    ),
)
