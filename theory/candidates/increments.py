r"""How likely is it that the candidates of a place lie among the first tokens of an order?

K candidates are drawn from one draft row. F(T) is the probability that all of them lie in T; with
the tokens in an order and T_j the first j of them, the *increment* g_j = F(T_j) − F(T_{j−1}) is the
probability that j is the last candidate in that order. Both schemes give it as a sum of positive
terms, so that a faint token keeps its digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.arrays import quiet
from theory.candidates.race import race


def independent(p: Any, count: int) -> Any:
    r"""Return the increments ``[V]`` of F(T) = p(T)^K, K independent draws from ``p [V]`` in order.

    g_j = P_j^K − P_{j−1}^K = P_j^K (1 − (1 − p_j/P_j)^K), P_j the sum of the first j.
    """
    if count == 1:
        return p
    reached = np.cumsum(p)
    total = reached[-1]
    with quiet():
        share = np.where(reached > 0, p / reached, 0.0)
        jump = -np.expm1(count * np.log1p(-share))
    return np.power(reached / total, count) * jump


def without_replacement(p: Any, count: int) -> Any:
    """Return the increments ``[V]`` of K draws from ``p [V]`` in order, each token once at most.

    The second candidate is drawn from p without the first one, renormalised, and so on. Where the
    draft has no more than K tokens all of them are candidates. K = 2 is a closed form, more go by
    the arrival times of an exponential race, to about 10⁻¹² of every increment.
    """
    known = np.flatnonzero(p > 0)
    row = p[known] / np.sum(p[known])
    found = np.zeros_like(p)
    if count >= len(known):
        found[known[-1]] = 1.0
    else:
        found[known] = {1: lambda: row, 2: lambda: _pairs(row)}.get(
            count, lambda: race(row, count)
        )()
    return found


def _pairs(p: Any) -> Any:
    """g_j = p_j Σ_{i<j} w_i + w_j Σ_{i<j} p_i with w = p/(1 − p)."""
    odds = p / _others(p)
    return p * _before(odds) + odds * _before(p)


def _before(values: Any) -> Any:
    """The sum of the entries before each, which a difference would round."""
    return np.append(0.0, np.cumsum(values[:-1]))


def _others(p: Any) -> Any:
    """1 − p as the sum of the other entries, which keeps its digits where p is near 1."""
    rest = 1.0 - p
    top = int(np.argmax(p))
    rest[top] = np.sum(np.delete(p, top))
    return rest
