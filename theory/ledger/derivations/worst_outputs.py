"""Searches for worse outputs than the certificate's, by other methods (claim 19)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import rel_entr

import theory
from theory.certificates.budgets import certified_divergence
from theory.ledger.derivations.claim_03_between import plain_divergences

Measure = Callable[[Any, Any], Any]
MEASURES: dict[str, Measure] = {
    "kl": lambda h, q: rel_entr(h, q),
    "pearson_chi2": lambda h, q: (h - q) ** 2 / q,
}


def largest_at_vertices(q: Any, cap: Any) -> dict[str, float]:
    """Return the largest D_f over all vertices of {h ≤ cap}, one subset after the other."""
    best = dict.fromkeys(theory.DIVERGENCES, 0.0)
    for bits in product((0.0, 1.0), repeat=len(q)):
        whole = np.asarray(bits) * cap
        left = 1.0 - whole.sum()
        if left < -1e-12:
            continue
        for k in range(len(q)):
            if (bits[k] == 0.0 and left <= cap[k] + 1e-12) or left < 1e-12:
                h = whole.copy()
                h[k] = max(h[k] + left, 0.0)
                for kind, value in plain_divergences(h, q).items():
                    best[kind] = max(best[kind], float(value))
    return best


def gain_on_ball(rng: np.random.Generator) -> float:
    """Maximise D_f on the ball KL(q‖h) ≤ D from random starts; return the gain over the bound."""
    gain, level = -1.0, 0.1
    for kind, measure in MEASURES.items():
        for q in rng.dirichlet(np.ones(5), size=4):
            rule = theory.make_rule("mentored", level=level)
            bound = float(certified_divergence(q, rule, kind).upper)
            for start in rng.dirichlet(np.ones(5), size=6):
                end = _climb(measure, q, level, 0.7 * q + 0.3 * start)
                if rel_entr(q, end).sum() <= level + 1e-9:
                    gain = max(gain, float(measure(end, q).sum()) - bound)
    return gain


def _climb(measure: Measure, q: Any, level: float, start: Any) -> Any:
    """Return the end point of one run of sequential quadratic programming."""
    run: Any = minimize
    limits = [
        {"type": "eq", "fun": lambda h: h.sum() - 1.0},
        {"type": "ineq", "fun": lambda h: level - rel_entr(q, h).sum()},
    ]
    found = run(
        lambda h: -measure(h, q).sum(),
        start,
        bounds=[(1e-9, 1.0)] * q.size,
        constraints=limits,
        method="SLSQP",
    )
    return found.x


def uniform_rows() -> tuple[float, dict[str, float]]:
    """Compare the certificate of uniform rows with log(1 + √(2δ(V−1)))."""
    worst, figures = 0.0, {}
    for size in (10, 300, 49_152):
        q = np.full(size, 1.0 / size)
        found = certified_divergence(q, theory.make_rule("cactus", delta=0.01))
        scale = 1.0 + np.sqrt(0.02 * (size - 1))
        whole = int(size / scale)
        left = 1.0 - whole * scale / size
        exact = whole * scale / size * np.log(scale) + float(rel_entr(left, 1.0 / size))
        worst = max(worst, float(found.lower) - exact, exact - float(found.upper))
        worst = max(worst, float(found.upper) - float(np.log(scale)))
        figures[f"Γ_KL(0.01), uniform, V={size}"] = float(found.upper)
    return worst, figures
