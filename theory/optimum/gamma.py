r"""Theorem 2: the largest acceptance of one candidate under a divergence budget.

For a candidate of verifier probability q the programme max h_n subject to D_f(h‖q) ≤ δ is solved
by h_n = γ*, the largest γ in [q, 1] with

    d_f(γ, q) = q·f(γ/q) + (1−q)·f((1−γ)/(1−q)) ≤ δ,

the other tokens scaled by (1−γ)/(1−q) (arXiv 2604.04987, Theorem 2). γ* and its complement are both
returned with full relative accuracy: near 1 a budget is decided by 1 − γ, not by γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from theory.arrays import (
    SUM_TOLERANCE,
    Array,
    check_distribution,
    check_elementwise,
    coerce,
    device_of,
    dtype_name,
    namespace,
    plain_number,
    quiet,
)
from theory.divergences.kinds import DIVERGENCES, Divergence, resolve_divergence
from theory.optimum.tilting import piecewise, solve_bracketed, solve_kl

BLOCK = 1 << 15  # elements per block on a CPU: every temporary stays in the second-level cache


SMALLEST = 5e-324  # the smallest positive float64


class Gamma(NamedTuple):
    """The raised probability of a candidate and its complement 1 − γ, of one shape and dtype."""

    value: Array
    complement: Array


def optimal_gamma(
    q: Array,
    budget: Array,
    divergence: str | Divergence = "kl",
    method: str = "fast",
    *,
    validate: bool = True,
) -> Gamma:
    r"""Return the exact optimum γ*(q, δ) of Theorem 2 and 1 − γ*, elementwise.

    Parameters
    ----------
    q : array or float
        Verifier probabilities of candidates, in [0, 1]; values above 1 by no more than the rounding
        of the dtype are taken as 1.
    budget : array or float
        δ ≥ 0 in nats (inf allowed); broadcast against q.
    divergence : str or Divergence
        f of D_f(h‖q), as in :func:`theory.divergence`. ``pearson_chi2`` (q + √(δq(1−q))),
        ``total_variation`` (q + δ) and ``squared_hellinger`` (an angle sum) are closed forms, the
        others are roots; all are capped at 1.
    method : {"fast", "scipy"}
        ``"fast"`` uses a fixed small number of convergent steps; ``"scipy"`` the bracketing root
        finder of ``scipy.optimize.elementwise`` (numpy only), kept as the plain reference: it
        returns the feasible end of its last bracket.
    validate : bool
        False skips the range checks.

    Returns
    -------
    Gamma
        ``value`` and ``complement`` in the dtype of q (computed in float64). γ* = 0 where q = 0
        (the support never leaks), γ* = 1 where q = 1 or the budget covers a one-hot target (for KL:
        δ ≥ −log q). Exact: both agree with the true root for a budget within a few units in the
        last place of the given one.

    Raises
    ------
    ValueError
        For q outside [0, 1], a negative or NaN budget (index and value are named), an unknown
        divergence or method.
    """
    kind = resolve_divergence(divergence)
    if method not in ("fast", "scipy"):
        raise ValueError(f"unknown method {method!r}; known are fast, scipy")
    solver = _root if method == "fast" else _root_scipy
    return _elementwise(q, budget, lambda xp, a, b, d: _gamma(xp, kind, a, b, d, solver), validate)


def second_order_gamma(q: Array, budget: Array, *, validate: bool = True) -> Gamma:
    r"""Return Cactus's closed form γ = min(q + √(2δq(1−q)), 1) and 1 − γ (Corollary 5).

    An approximation of the KL optimum of second order in γ − q, and the exact optimum for ½χ². Its
    true KL(h‖q) can exceed δ (for q ≥ ½ it always does, until the cap) but never log(1 + 2δ).
    Parameters, conventions and errors are those of :func:`optimal_gamma`.
    """
    return _elementwise(q, budget, _second_order, validate)


def candidate_target(q: Array, n: int, gamma: Array) -> Array:
    r"""Return the target h of candidate n: h_n = γ, h_i = q_i(1−γ)/(1−q_n), for one row q [V].

    Raises
    ------
    ValueError
        For q that is not one distribution, n that is no token of it, and γ that is not one number
        in [0, 1].
    """
    q, gamma = coerce(q, gamma, names=("q", "gamma"))
    xp, n = namespace(q), plain_number(n)
    if q.ndim != 1:
        raise ValueError(f"q must be one row [V], got shape {tuple(q.shape)}")
    check_distribution("q", q)
    if gamma.ndim != 0:
        raise ValueError(f"gamma must be one number, got shape {tuple(gamma.shape)}")
    if type(n) is not int or not 0 <= n < q.shape[-1]:
        raise ValueError(f"n is {n!r}, not a token index in [0, {q.shape[-1] - 1}]")
    check_elementwise("gamma", gamma, 0.0, 1.0)
    at_n = xp.arange(q.shape[-1], device=device_of(q)) == n
    rest = 1.0 - q[n]
    scale = xp.where(rest > 0, (1.0 - gamma) / xp.where(rest > 0, rest, 1.0), 0.0)
    return xp.where(at_n, gamma, q * scale)


Solver = Callable[[Any, Divergence, Array, Array, Array], "tuple[Array, Array]"]


def _elementwise(
    q: Array, budget: Array, compute: Callable[..., tuple[Array, Array]], validate: bool
) -> Gamma:
    """Validate, widen to float64, run ``compute`` block by block and restore shape and dtype."""
    q, budget = coerce(q, budget, names=("q", "budget"))
    xp, dtype = namespace(q, budget), q.dtype
    if validate:
        check_elementwise("q", q, 0.0, 1.0 + SUM_TOLERANCE.get(dtype_name(q), 0.0))
        check_elementwise("budget", budget, 0.0, math.inf)
    try:
        shape = np.broadcast_shapes(tuple(q.shape), tuple(budget.shape))
    except ValueError:
        told = f"budget has shape {tuple(budget.shape)}, which does not go beside q"
        raise ValueError(f"{told} of shape {tuple(q.shape)}") from None
    q, budget = (
        xp.reshape(xp.broadcast_to(xp.astype(v, xp.float64, copy=False), shape), (-1,))
        for v in (q, budget)
    )
    value, complement = xp.empty_like(q), xp.empty_like(q)
    size = q.shape[0]
    block = BLOCK if str(device_of(q)) == "cpu" and size > 2 * BLOCK else max(size, 1)
    with quiet():
        for start in range(0, size, block):
            part = slice(start, start + block)
            inside = xp.clip(q[part], 0.0, 1.0) + 0.0  # −0.0 becomes 0.0
            value[part], complement[part] = compute(xp, inside, 1.0 - inside, budget[part])
    return Gamma(
        xp.astype(xp.reshape(value, shape), dtype, copy=False),
        xp.astype(xp.reshape(complement, shape), dtype, copy=False),
    )


def _gamma(
    xp: Any, kind: Divergence, q: Array, rest: Array, budget: Array, solver: Solver
) -> tuple[Array, Array]:
    """Settle the decided points and solve the interior ones."""
    if solver is _root and kind.name in _CLOSED_FORMS:
        return _bounded(xp, q, rest, *_CLOSED_FORMS[kind.name](xp, q, rest, budget))
    idle = (q == 0) | (rest == 0) | (budget == 0)
    certain = ~idle & (budget >= _cost_of_certainty(xp, kind, q, rest))
    value, complement = piecewise(
        xp,
        [
            (~(idle | certain), lambda q, rest, budget: solver(xp, kind, q, rest, budget)),
            (certain, lambda q, rest, budget: (xp.ones_like(q), xp.zeros_like(q))),
            (idle, lambda q, rest, budget: (q, rest)),
        ],
        q,
        rest,
        budget,
    )
    return _bounded(xp, q, rest, value, complement)


def _bounded(
    xp: Any, q: Array, rest: Array, value: Array, complement: Array
) -> tuple[Array, Array]:
    """Keep rounding from pushing γ below q or 1−γ above 1−q."""
    return xp.maximum(value, q), xp.minimum(complement, rest)


def _cost_of_certainty(xp: Any, kind: Divergence, q: Array, rest: Array) -> Array:
    """Return d_f(1, q), the budget from which γ* = 1.

    Where it is infinite γ* stays below 1, but 1 − γ* falls below the smallest float64 at a finite
    budget; from there on it is 0.
    """
    if kind.name == "kl":
        return -xp.log(q)
    last = 0.0 if math.isfinite(kind.at_zero) else SMALLEST
    return kind.term(xp.ones_like(q), q, rest) + kind.term(xp.full_like(q, last), rest, last - rest)


def _root(xp: Any, kind: Divergence, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    if kind.name == "kl":
        return solve_kl(xp, q, rest, budget)
    return solve_bracketed(xp, kind, q, rest, budget)


def _root_scipy(
    xp: Any, kind: Divergence, q: Array, rest: Array, budget: Array
) -> tuple[Array, Array]:
    """Solve for the smaller of γ and 1 − γ by scipy's bracketing root finder.

    The bracket shrinks to four units in the last place; its feasible end is returned.
    """
    from scipy.optimize import elementwise

    if not array_api_compat.is_numpy_namespace(xp):
        raise ValueError("method='scipy' needs numpy arrays; use method='fast'")

    def excess(small: Any, q: Any, rest: Any, budget: Any, upper: Any) -> Any:
        d = np.where(upper, rest - small, small - q)
        gamma, y = np.where(upper, 1.0 - small, small), np.where(upper, small, 1.0 - small)
        return kind.term(gamma, q, d) + kind.term(y, rest, -d) - budget

    upper = np.full_like(q, False, dtype=bool)
    upper = (q >= 0.5) | (excess(np.full_like(q, 0.5), q, rest, budget, upper) <= 0)
    low, high = np.where(upper, SMALLEST, q), np.where(upper, np.minimum(rest, 0.5), 0.5)
    for _ in range(12):  # within a factor 1.2 first: a step across many decades loses its digits
        middle = np.clip(np.sqrt(low) * np.sqrt(high), low, high)
        left_of_root = (excess(middle, q, rest, budget, upper) <= 0) ^ upper
        low, high = np.where(left_of_root, middle, low), np.where(left_of_root, high, middle)
    found = elementwise.find_root(
        excess,
        (low, high),
        args=(q, rest, budget, upper),
        maxiter=2500,
        tolerances={"xatol": 0.0, "xrtol": 4 * 2.0**-52, "fatol": 0.0, "frtol": 0.0},
    )
    left, right = found.bracket
    feasible = np.where(found.f_bracket[0] <= 0, left, right)
    small = np.where(found.f_x <= 0, found.x, feasible)
    return np.where(upper, 1.0 - small, small), np.where(upper, small, 1.0 - small)


def _square_root_form(xp: Any, q: Array, rest: Array, scaled: Array) -> tuple[Array, Array]:
    """Return γ = q + √(s·q(1−q)) and 1 − γ = (1−q)((1−q) − s·q)/((1−q) + √…), capped at 1."""
    bonus = xp.sqrt(scaled) * xp.sqrt(q * rest)  # the product of all three may underflow
    raised = bonus > 0  # False for NaN: an infinite budget adds nothing where q is 0 or 1
    bonus = xp.where(raised, bonus, 0.0)
    room = xp.maximum(rest - scaled * q, 0.0)
    complement = xp.where(raised, rest * (room / xp.maximum(rest + bonus, SMALLEST)), rest)
    return xp.minimum(q + bonus, 1.0), complement


def _second_order(xp: Any, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    return _bounded(xp, q, rest, *_square_root_form(xp, q, rest, 2.0 * budget))


def _chi2(xp: Any, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    return _square_root_form(xp, q, rest, budget)


def _total_variation(xp: Any, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    reachable = xp.where(q > 0, budget, 0.0)  # the support never leaks
    return xp.minimum(q + reachable, 1.0), xp.maximum(rest - reachable, 0.0)


def _squared_hellinger(xp: Any, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    """√q = sin φ and 1−δ = cos ψ give √γ = sin(φ+ψ), as long as φ+ψ ≤ π/2."""
    spent = xp.minimum(xp.where(q > 0, budget, 0.0), 1.0)
    cosine, sine = 1.0 - spent, xp.sqrt(spent * (2.0 - spent))
    root_q, root_rest = xp.sqrt(q), xp.sqrt(rest)
    left = root_rest * cosine - root_q * sine  # √(1−γ); not positive beyond the cap
    raised = root_q * cosine + root_rest * sine
    return (
        xp.where(left > 0, xp.minimum(raised * raised, 1.0), 1.0),
        xp.where(left > 0, left * left, 0.0),
    )


_CLOSED_FORMS = {
    "pearson_chi2": _chi2,
    "total_variation": _total_variation,
    "squared_hellinger": _squared_hellinger,
}
assert set(_CLOSED_FORMS) <= set(DIVERGENCES)
