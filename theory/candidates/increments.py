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

STEP = 0.15  # of the quadrature in log t; the error falls by a square where it is halved


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
    a quadrature over the arrival times of an exponential race, to about 10⁻¹².
    """
    known = np.flatnonzero(p > 0)
    row = p[known] / np.sum(p[known])
    found = np.zeros_like(p)
    if count >= len(known):
        found[known[-1]] = 1.0
    else:
        found[known] = {1: lambda: row, 2: lambda: _pairs(row)}.get(
            count, lambda: _race(row, count)
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


def _race(p: Any, count: int) -> Any:
    r"""Increments by the race in which token i arrives at rate p_i and the first K are drawn.

    A set S is drawn, x last, with ∫ p_x e^{−t} Π_{S∖x} (e^{p_i t} − 1) dt; summed over all S whose
    last token in the order is j, and over x, this is

        g_j = ∫ e^{−t} (p_j e_{K−1} + z_j d_{K−1}) dt,   z = e^{pt} − 1,

    e_k and d_k the sums over the k-sets S of tokens before j of Π_S z and Σ_{x∈S} p_x Π_{S∖x} z.
    """
    big = np.sort(np.argpartition(-p, count - 2)[: count - 1])
    rest = float(np.sum(np.delete(p, big)))  # the rate of what ends the race at the latest
    # Analytic in log t and falling on both sides: the trapezoid rule converges geometrically.
    times = np.exp(np.arange(np.log(1e-17) / count, np.log(50.0 / rest), STEP))
    return sum(STEP * t * _density(p, big, t, rest, count) for t in times)


def _density(p: Any, big: Any, t: float, rest: float, count: int) -> Any:
    """The integrand at one time, for every j.

    The K − 1 likeliest tokens set the time scale, and their z would overflow: of them the chances
    1 − e^{−pt} and e^{−pt} are used, and of all others z.
    """
    is_big = np.zeros(len(p), dtype=int)
    is_big[big] = 1
    rate = np.where(is_big, 0.0, p)
    arrived = np.expm1(rate * t)
    e, d = _sums_before(arrived, rate, count)
    stays = np.exp(-p[big] * t)
    arrived[big], rate[big] = -np.expm1(-p[big] * t), p[big] * stays
    big_e, big_d = _sums_at(arrived[big], rate[big], stays, count)
    before = np.cumsum(is_big) - is_big
    chosen_e = sum(big_e[before, b] * e[count - 1 - b] for b in range(count))
    chosen_d = sum(
        big_e[before, b] * d[count - 1 - b] + big_d[before, b] * e[count - 1 - b]
        for b in range(count)
    )
    behind = np.append(np.cumprod(stays[::-1])[::-1], [1.0, 1.0])
    waiting = behind[before + is_big]
    return np.exp(-rest * t) * waiting * (rate * chosen_e + arrived * chosen_d)


def _sums_before(z: Any, p: Any, count: int) -> tuple[list[Any], list[Any]]:
    """e_k and d_k, k < K, of the tokens before each j."""
    e, d = [np.ones_like(z)], [np.zeros_like(z)]
    for _ in range(count - 1):
        more_e, more_d = z * e[-1], p * e[-1] + z * d[-1]
        e.append(_before(more_e))
        d.append(_before(more_d))
    return e, d


def _sums_at(arrived: Any, rate: Any, stays: Any, count: int) -> tuple[Any, Any]:
    """The same of the likeliest tokens: ``[their number before j, k]``."""
    e, d = np.zeros((count, count)), np.zeros((count, count))
    e[0, 0] = 1.0
    for n, (come, came_now, stay) in enumerate(zip(arrived, rate, stays), start=1):
        e[n], d[n] = e[n - 1] * stay, d[n - 1] * stay
        e[n, 1:] += come * e[n - 1, :-1]
        d[n, 1:] += came_now * e[n - 1, :-1] + come * d[n - 1, :-1]
    return e, d
