r"""Claim 1 (Theorem 1): accept with min(1, h/p), recover from norm((h − p)₊).

A scheme that drafts n ~ p and emits x is a coupling c(n, x) of p with the emitted law h, and an
accepted round has x = n, so that its acceptance is at most Σ_n c(n, n). The largest diagonal mass
of a coupling is a linear programme; a feasible point of its dual bounds it from above:

    max Σ c(n, n)  s.t. Σ_x c(n, x) = p_n, Σ_n c(n, x) = h_x, c ≥ 0
    min Σ p_n a_n + Σ h_x b_x  s.t. a_n + b_x ≥ 1[n = x].

The dual point a = 1[p ≤ h], b = 1 − a has the value Σ min(p, h), which the rule attains.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy
from scipy.optimize import linprog

import theory
from theory.ledger.derivations.common import (
    admissible_rules,
    extreme_pairs,
    in_every_order,
    law_by_definition,
    vanishes,
)
from theory.ledger.verdicts import Check, Claim, Step
from theory.rules import TargetRule

TOLERANCE = 1e-9
VALUES = (0.05, 0.3, 1.0)


def derive() -> list[Step]:
    """Derive output, residual mass, acceptance and optimality."""
    p, h = sympy.symbols("p h", nonnegative=True)
    kept, added, lost = sympy.Min(p, h), sympy.Max(h - p, 0), sympy.Max(p - h, 0)

    def zero(expression: Any) -> bool:
        return in_every_order(expression, (p, h), vanishes)

    return [
        Step(
            "p·min(1, h/p) = min(p, h) for p > 0.",
            _accepted_mass(),
        ),
        Step(
            "Accepted and recovered mass add up to the target: min(p, h) + (h − p)₊ = h.",
            zero(kept + added - h),
        ),
        Step(
            "Rejected and residual mass agree: (h − p)₊ − (p − h)₊ = h − p sums to 1 − 1 = 0, so "
            "the rejected mass Σ(p − h)₊ times norm((h − p)₊) is (h − p)₊ itself.",
            zero(added - lost - (h - p)),
        ),
        Step(
            "The acceptance is 1 − TV(p, h): min(p, h) = (p + h − |p − h|)/2.",
            zero(kept - (p + h - sympy.Abs(p - h)) / 2),
        ),
        *_optimality(),
    ]


def _accepted_mass() -> bool:
    """Decide p·min(1, h/p) = min(p, h) in the two cases h = p + s and p = h + s."""
    p, h = sympy.symbols("p h", positive=True)
    s = sympy.Symbol("s", nonnegative=True)
    raised = vanishes(p * sympy.Min(1, 1 + s / p) - sympy.Min(p, p + s))
    lowered = vanishes((h + s) * sympy.Min(1, 1 - s / (h + s)) - sympy.Min(h + s, h))
    return raised and lowered


def _optimality() -> list[Step]:
    """Weak duality as a polynomial identity on four tokens, and the dual point."""
    size = 4
    c = sympy.Matrix(size, size, lambda i, j: sympy.Symbol(f"c{i}{j}", nonnegative=True))
    a, b = sympy.symbols(f"a0:{size}"), sympy.symbols(f"b0:{size}")
    draft, target = [sum(c[i, :]) for i in range(size)], [sum(c[:, j]) for j in range(size)]
    dual = sum(draft[i] * a[i] + target[i] * b[i] for i in range(size))
    cells = list(itertools.product(range(size), repeat=2))
    slack = sum(c[i, j] * (a[i] + b[j] - int(i == j)) for i, j in cells)
    feasible = all(
        side[i] + (1 - side[j]) >= int(i == j)
        for side in itertools.product((0, 1), repeat=size)
        for i, j in cells
    )
    p, s = sympy.symbols("p s", nonnegative=True)
    value = [1 * p + 0 * (p + s) - sympy.Min(p, p + s), 0 * (p + s) + 1 * p - sympy.Min(p + s, p)]
    return [
        Step(
            "Weak duality: dual value − diagonal mass = Σ c(n, x)(a_n + b_x − 1[n = x]) ≥ 0.",
            vanishes(dual - c.trace() - slack),
        ),
        Step("a = 1[p ≤ h], b = 1 − a is dual feasible, whatever the signs of p − h.", feasible),
        Step(
            "The dual value a·p + b·h is min(p, h) where h = p + s and where p = h + s: the rule's "
            "acceptance, so that no scheme with output h accepts more.",
            all(vanishes(difference) for difference in value),
        ),
    ]


def best_diagonal(p: Any, h: Any) -> float:
    """Return the largest diagonal mass of a coupling of p and h, by a linear programme."""
    size = len(p)
    rows = np.kron(np.eye(size), np.ones(size))
    columns = np.kron(np.ones(size), np.eye(size))
    found: Any = linprog(
        -np.eye(size).ravel(),
        A_eq=np.vstack([rows, columns])[:-1],  # the last equation follows from the others
        b_eq=np.concatenate([p, h])[:-1],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return -float(found.fun) if found.success else float("nan")


def check(rng: np.random.Generator) -> Check:
    """Compare every target rule with its definition and with the best coupling for its output."""
    rules = [r for r in admissible_rules(VALUES) if isinstance(r[2], TargetRule)]
    worst, where, points = 0.0, {}, 0
    for size in (2, 3, 5):
        p, q = extreme_pairs(rng, 8, size)
        for name, value, rule in rules:
            acceptance, output = law_by_definition(rule, p, q)
            law = theory.one_step(rule, p, q)
            best = np.array([best_diagonal(*row) for row in zip(p, output)])
            off = np.maximum(np.abs(output - law.output).max(axis=-1), np.abs(acceptance - best))
            off = np.maximum(off, np.abs(law.acceptance - best))
            off = np.where(np.isnan(off), np.inf, off)
            points += len(p)
            row = int(np.argmax(off))
            if off[row] > worst:
                worst, where = float(off[row]), _place(name, value, p[row], q[row])
    return Check(
        "linear programme over all couplings (HiGHS); the law candidate by candidate",
        points,
        worst,
        worst <= TOLERANCE,
        where,
        {"target rules": float(len({name for name, _, _ in rules}))},
    )


def _place(name: str, value: float | None, p: Any, q: Any) -> dict[str, Any]:
    return {"rule": name, "value": value, "p": p.tolist(), "q": q.tolist()}


CLAIM = Claim(
    number=1,
    name="maximal coupling",
    statement=(
        "For any target h, accepting n ~ p with probability min(1, h_n/p_n) and recovering from "
        "norm((h − p)₊) emits exactly h and accepts with probability 1 − TV(p, h); no scheme that "
        "emits h accepts more."
    ),
    source="2604.04987 Theorem 1; Leviathan et al. 2211.17192 Theorem 3.5",
    expected="proved",
    derive=derive,
    check=check,
    notebook="01",
)
