r"""The exact laws of what is in use with several candidates, all for the verifier's own law q.

* one by one: the first candidate is tested against q, the second against what is left, and so on
  (SpecInfer 2305.09781; without replacement, recursive rejection sampling);
* K-SEQ (SpecTr 2310.15141): each against q/ρ, the same for all;
* lowest ratio first: the candidate of the lowest p/q is tested, once.

Each is lossless; they differ in the acceptance, and the best there is is 1 − TV(u, q) (claim 26).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from theory.arrays import Array, device_of, quiet, to_numpy
from theory.candidates.effective import whole_count
from theory.candidates.increments import independent
from theory.pair import Pair

__all__ = ["k_seq", "lowest_ratio", "one_by_one"]

MOST = 2_000_000  # ordered draws that are enumerated


def one_by_one(p: Array, q: Array, count: int = 2, *, replace: bool = True) -> Array:
    r"""Return the acceptance ``[...]`` of candidates that are tested one after another.

    With replacement 1 − Π_k TV(h_k, p), h₁ = q and h_{k+1} = norm((h_k − p)₊): what is left after
    a rejection does not depend on the token. Without it the second candidate comes from p without
    the first, renormalised, and all ordered draws are gone through; V·(V−1)⋯ of them beyond
    2,000,000 are refused.

    Parameters and errors are those of :func:`theory.effective_draft`; exact up to rounding.
    """
    count = whole_count(count)

    def row(p: Any, q: Any) -> float:
        if not replace and np.count_nonzero(p) ** (count - 1) > MOST:
            raise ValueError(f"{count} draws without replacement from {len(p)} tokens are too many")
        return 1.0 - (_rejected if replace else _rejected_without)(p, q, count)

    return _by_row(row, p, q)


def k_seq(p: Array, q: Array, count: int = 2) -> Array:
    r"""Return the acceptance ``[...]`` of K-SEQ with its best factor.

    β(ρ) = Σ min(p, q/ρ), ρ in [1, K] with 1 − (1−β)^K = ρβ; acceptance 1 − (1−β)^K (2310.15141,
    section 4). Parameters and errors are those of :func:`theory.effective_draft`.
    """
    count = whole_count(count)

    def row(p: Any, q: Any) -> float:
        def accepted(rho: float) -> float:
            return float(np.sum(np.minimum(p, q / rho)))

        def excess(rho: float) -> float:
            beta = min(accepted(rho), 1.0)
            return 1.0 - (1.0 - beta) ** count - rho * beta

        ends = excess(1.0), excess(float(count))
        rho = 1.0 if ends[0] <= 0 else float(count) if ends[1] >= 0 else None
        rho = brentq(excess, 1.0, float(count), xtol=1e-15, rtol=1e-15) if rho is None else rho
        return 1.0 - (1.0 - min(accepted(float(rho)), 1.0)) ** count

    return _by_row(row, p, q)


def lowest_ratio(p: Array, q: Array, count: int = 2) -> Array:
    """Return the acceptance ``[...]`` of testing the candidate of the lowest p/q alone.

    Σ min(g, q), g the increments of P^K in descending order of p/q. Parameters and errors are those
    of :func:`theory.effective_draft`.
    """
    count = whole_count(count)

    def row(p: Any, q: Any) -> float:
        return float(np.sum(np.minimum(independent(p[::-1], count), q[::-1])))

    return _by_row(row, p, q)


def _by_row(row: Callable[[Any, Any], float], p: Array, q: Array) -> Array:
    """A number for each row of a batch, sorted by p/q."""
    pair = Pair.prepare(p, q)
    found = [row(*sides) for sides in zip(to_numpy(pair.p), to_numpy(pair.q))]
    xp = pair.xp
    values = xp.asarray(np.array(found), dtype=xp.float64, device=device_of(pair.p))
    return pair.restore(values)


def _rejected(p: Any, h: Any, count: int) -> float:
    rejected = 1.0
    for _ in range(count):
        left = np.maximum(h - p, 0.0)
        distance = float(np.sum(left))
        if distance == 0.0:
            return 0.0
        rejected, h = rejected * distance, left / distance
    return rejected


@quiet()
def _rejected_without(p: Any, h: Any, count: int) -> float:
    """Σ over the first draw of its rejection times what all behind it reject."""
    left = np.maximum(h - p, 0.0)
    distance = float(np.sum(left))
    if distance == 0.0 or count == 1:
        return distance
    rejected = np.maximum(p - h, 0.0)
    total = 0.0
    for token in np.flatnonzero(rejected):
        rest = p.copy()
        rest[token] = 0.0
        mass = np.sum(rest)
        if mass == 0.0:  # there is no other candidate
            total += rejected[token]
            continue
        total += rejected[token] * _rejected_without(rest / mass, left / distance, count - 1)
    return float(total)
