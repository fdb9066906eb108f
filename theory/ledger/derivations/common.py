"""What the derivations share: symbolic generators, two decisions, and rows aimed at extremes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy

import theory
from theory.divergences.kinds import resolve_divergence
from theory.rules import Rule

Rows = np.ndarray[Any, np.dtype[np.float64]]

t = sympy.Symbol("t", positive=True)

# The textbook generators f(t), written from their definitions. Total variation, the only one that
# is not smooth, is treated by its own argument wherever it occurs.
GENERATORS: dict[str, Any] = {
    "kl": t * sympy.log(t),
    "reverse_kl": -sympy.log(t),
    "pearson_chi2": (t - 1) ** 2,
    "squared_hellinger": (sympy.sqrt(t) - 1) ** 2 / 2,
    "jensen_shannon": (t * sympy.log(t) - (t + 1) * sympy.log((t + 1) / 2)) / 2,
}


def divergence_error() -> float:
    """Return the largest error of theory's divergences against the symbolic generators.

    Compared are f, f̃(t) = f(t) − f′(1)(t−1) and its slope on twelve decades and close to 1, and
    the limits f̃(0) and f̃(t)/t at infinity; relative to one plus the value.
    """
    power = {f"power:{a}": (t**a - 1 - a * (t - 1)) / (a * (a - 1)) for a in (3, -1)}
    grid, worst = np.append(np.geomspace(1e-6, 1e6, 61), np.linspace(0.76, 1.24, 49)), 0.0
    for name, f in {**GENERATORS, **power, "total_variation": sympy.Abs(t - 1) / 2}.items():
        kind = resolve_divergence(name)
        normal = f - sympy.diff(f, t).subs(t, 1) * (t - 1)
        pairs = [(f, kind.generator), (normal, kind.value), (sympy.diff(normal, t), kind.slope)]
        for symbolic, computed in pairs:
            wanted = sympy.lambdify(t, symbolic, "numpy")(grid)
            worst = max(
                worst, float(np.max(np.abs(computed(grid) - wanted) / (1 + np.abs(wanted))))
            )
        ends = sympy.limit(normal, t, 0, "+"), sympy.limit(normal / t, t, sympy.oo)
        for wanted, known in zip(ends, (kind.at_zero, kind.recession)):
            same = float(wanted) == known or abs(float(wanted) - known) < 1e-14
            worst = worst if same else float("inf")
    return worst


def vanishes(expression: Any) -> bool:
    """Say whether an expression simplifies to zero."""
    return bool(sympy.simplify(sympy.piecewise_fold(expression)) == 0)


def is_convex(f: Any) -> bool:
    """Say whether f″(t) > 0 for every t > 0 follows from the assumptions."""
    return bool(sympy.simplify(sympy.diff(f, t, 2)).is_positive)


def in_every_order(expression: Any, symbols: tuple[Any, ...], decide: Any) -> bool:
    """Decide a statement with minima, maxima and moduli of non-negative symbols in every order.

    Each order x₁ ≤ x₂ ≤ … is written with non-negative gaps, x₂ = x₁ + gap and so on; then every
    difference has a known sign and the expression is a polynomial. ``decide`` is applied to it.
    """
    gaps = sympy.symbols(f"gap0:{len(symbols)}", nonnegative=True)
    for order in itertools.permutations(symbols):
        running, values = sympy.Integer(0), {}
        for symbol, gap in zip(order, gaps):
            running = running + gap
            values[symbol] = running
        if not decide(sympy.expand(expression.subs(values, simultaneous=True))):
            return False
    return True


def extreme_pairs(rng: np.random.Generator, count: int, size: int) -> tuple[Rows, Rows]:
    """Return ``count`` draft and verifier rows of ``size`` tokens, many of them extreme.

    Flat and peaked rows, nearly equal rows, rows with different supports, one-hots, and the
    verifier's probabilities in reverse. Probabilities are 0 or at least about 1e−9, so that the
    relative errors of the tails do not drown the statements.
    """
    sharpness = rng.choice([0.05, 0.3, 1.0, 10.0], size=(2, count, 1))
    p, q = _normalised(_above(rng.gamma(np.broadcast_to(sharpness, (2, count, size)))))
    shape = rng.integers(0, 6, size=count)[:, None]
    noise = np.exp(rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-8, 0, size=(count, 1)))
    p = np.where(shape == 1, q * noise, p)
    p = np.where(shape == 2, _cut(rng, p), p)
    q = np.where((shape == 2) | (shape == 3), _cut(rng, q), q)
    one_hot = np.eye(size)[rng.integers(size, size=count)]
    p = np.where(shape == 4, one_hot, p)
    p = np.where(shape == 5, q[:, ::-1], p)
    return _normalised(p), _normalised(q)


def _above(weights: Any) -> Any:
    """Set weights below 1e−9 of their row's largest to zero."""
    return np.where(weights < 1e-9 * weights.max(axis=-1, keepdims=True), 0.0, weights)


def _normalised(rows: Any) -> Any:
    return rows / rows.sum(axis=-1, keepdims=True)


def _cut(rng: np.random.Generator, rows: Rows) -> Rows:
    """Drop about a third of the tokens of each row, never its largest."""
    keep = (rng.random(rows.shape) < 0.67) | (rows == rows.max(axis=-1, keepdims=True))
    return np.where(keep, rows, 0.0)


def law_by_definition(rule: Rule, p: Rows, q: Rows) -> tuple[Rows, Rows]:
    """Return acceptance Σ p b and output p b + Σ p_n(1−b_n) g⁽ⁿ⁾, candidate by candidate.

    Only the acceptance and recovery that a sampler would use enter, never a closed law.
    """
    accepted = p * rule.accept_prob(p, q)
    output = accepted.copy()
    for n in range(p.shape[-1]):
        output += (p - accepted)[..., n : n + 1] * rule.recovery(p, q, n)
    return accepted.sum(axis=-1), output


def admissible_rules(values: tuple[float, ...]) -> list[tuple[str, float | None, Rule]]:
    """Return every rule of the laboratory at each of the values that it admits."""
    found: list[tuple[str, float | None, Rule]] = []
    for name, kind in theory.RULES.items():
        if not kind.__module__.startswith("theory."):
            continue  # the ledger makes no claim about rules of others
        if kind.parameter is None:
            found.append((name, None, theory.make_rule(name)))
            continue
        for value in values:
            try:
                rule = theory.make_rule(name, **{kind.parameter: value})
            except ValueError:
                continue
            found.append((name, value, rule))
    return found
