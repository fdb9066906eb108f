r"""Root finding for the two-point problem d_f(γ, q) = δ along the exponential tilt of (q, 1−q).

The tilt by τ of a mass m is m′ = m·e^τ / (1 + m(e^τ − 1)); along it both m′ and 1 − m′ keep full
relative accuracy, which neither γ nor 1 − γ alone could carry. The solver always tracks the smaller
of the two final masses: m = q with τ > 0 where γ* ≤ ½, and m = 1 − q with τ < 0 otherwise.

* KL has its own path, a fixed number of steps of Householder's method of order 4 from a start of
  relative error below one fifth, then one Newton step in the mass itself, which removes the
  rounding of τ where τ is large.
* Every other divergence uses Newton steps on log D against log τ inside a shrinking bracket.

Callers hand over interior points only: 0 < q < 1 and 0 < δ < D at γ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from theory.arrays import Array, device_of, free_to_ask, is_lazy, put
from theory.divergences.summand import Divergence

KL_STEPS = 2
BRACKET_STEPS = 120
LARGEST_TILT = 1500.0  # no float64 mass is further than this from another on the logit scale
TINY = 2.0**-1022
CERTAIN = 2.0**-48  # a budget this close to certainty is known to a digit only

Branch = tuple[Array, Callable[..., "tuple[Array, Array]"]]


def piecewise(xp: Any, branches: Sequence[Branch], *args: Array) -> tuple[Array, Array]:
    """Evaluate each branch on the elements of its mask alone and put the pairs of results together.

    The masks are disjoint and cover everything. Without values to look at (``meta``) every branch
    runs everywhere.
    """
    first, second = xp.zeros_like(args[0]), xp.zeros_like(args[0])
    for mask, branch in branches:
        if is_lazy(mask):
            a, b = branch(*args)
            first, second = xp.where(mask, a, first), xp.where(mask, b, second)
            continue
        index = xp.nonzero(mask)[0]
        if index.shape[0] == mask.shape[0]:
            return branch(*args)
        if index.shape[0] > 0:
            a, b = branch(*(xp.take(value, index) for value in args))
            first, second = put(xp, first, index, a), put(xp, second, index, b)
    return first, second


def solve_kl(xp: Any, q: Array, rest: Array, budget: Array) -> tuple[Array, Array]:
    """Return (γ*, 1 − γ*) for the KL divergence, elementwise; ``rest`` is 1 − q.

    Four branches: γ* ≤ ½; γ* > ½ for a frequent token; γ* > ½ for a rare one, where the budget is
    within log 2 or so of certainty; and a budget within rounding of certainty.
    """
    surprise = -xp.log(q)  # the budget at which γ* reaches 1
    # γ = 1/2 costs −½ log(4q(1−q)).
    upper = (q >= 0.5) | (2.0 * budget > surprise - xp.log(4.0 * rest))
    certain = upper & (surprise - budget <= CERTAIN * surprise)
    frequent = upper & (q >= 0.2)

    def below(q: Array, rest: Array, surprise: Array, budget: Array) -> tuple[Array, Array]:
        tilt = _start_below_half(xp, q, rest, surprise, budget)
        small = _descend(xp, tilt, q, rest, budget, _weights)
        return small, 1.0 - small

    def often(q: Array, rest: Array, surprise: Array, budget: Array) -> tuple[Array, Array]:
        tilt = _start_frequent(xp, q, rest, surprise, budget)
        small = _descend(xp, tilt, rest, q, budget, _weights_down)
        return 1.0 - small, small

    def rarely(q: Array, rest: Array, surprise: Array, budget: Array) -> tuple[Array, Array]:
        tilt = _start_rare(xp, rest, surprise, budget)
        small = _descend(xp, tilt, rest, q, budget, _weights_far)
        return 1.0 - small, small

    def almost(q: Array, rest: Array, surprise: Array, budget: Array) -> tuple[Array, Array]:
        small = _complement_near_certainty(xp, rest, surprise, budget)
        return 1.0 - small, small

    open_ = upper & ~certain
    return piecewise(
        xp,
        [
            (~upper, below),
            (open_ & frequent, often),
            (open_ & ~frequent, rarely),
            (certain, almost),
        ],
        q,
        rest,
        surprise,
        budget,
    )


def _start_below_half(xp: Any, q: Array, rest: Array, surprise: Array, budget: Array) -> Array:
    """Start for γ* ≤ ½, right to third order for small budgets and in the limit of rare tokens.

    With ρ² = 2δ/(q(1−q)) and s = 1 − 2q the series is τ = ρ − sρ²/3 + …; for q → 0 and large
    κ = ρ²/2 the Poisson limit e^τ(τ−1) = κ − 1 gives e^τ ≈ κ/log κ. One logarithm joins both.
    """
    regular = is_lazy(q) or (free_to_ask(q) and not bool(xp.any(q < 1e-300)))
    floor = q if regular else xp.maximum(q, 1e-300)  # the quotient below stays finite
    kappa = budget / (floor * rest)
    s = 1.0 - 2.0 * q
    step = xp.sqrt(2.0 * kappa) + s * (kappa / (3.0 + xp.log1p(kappa)))
    tilt = xp.log1p(s * step) / s
    return tilt if regular else tilt + (surprise + xp.log(floor))


def _start_rare(xp: Any, rest: Array, surprise: Array, budget: Array) -> Array:
    """Start for γ* > ½ of a rare token: y = 1 − γ solves y(1 + L − log y) = L − δ, L = −log q."""
    room = xp.maximum(surprise - budget, TINY)
    scale = 1.0 + surprise
    y = xp.minimum(room / (scale - xp.log(room / scale)), 0.5)
    return xp.log(y / rest) - xp.log1p(-y) - surprise


def _complement_near_certainty(xp: Any, rest: Array, surprise: Array, budget: Array) -> Array:
    """Return y = 1 − γ* from y(1 + L + log(1−q) − log y) = L − δ, L = −log q, up to O(y²).

    The divergence of γ is a difference of numbers of the size of δ; where L − δ is a few units in
    the last place, only this form is not noise. Each round gains a digit and a half.
    """
    room = xp.maximum(surprise - budget, TINY)
    scale = 1.0 + surprise + xp.log(rest)
    y = room / 40.0
    for _ in range(6):
        y = room / (scale - xp.log(y))
    return y


def _start_frequent(xp: Any, q: Array, rest: Array, surprise: Array, budget: Array) -> Array:
    """Start for γ* > ½ of a frequent token: the lower branch of Lambert's W in closed form.

    The approximation is that of Barry et al. (2000) with its square-root part stretched by
    √(L/(q(1−q))), so that it has the right second order at small budgets.
    """
    sigma = -xp.log1p(-xp.minimum(budget / surprise, 1.0 - 2.0**-53))
    root = 0.3361 * xp.sqrt(surprise / (q * rest) * (0.5 * sigma))
    return -sigma - (2.0 / 0.3361) * (root / (1.0 + root))


Weights = tuple[Array, Array, Array]


def _weights(xp: Any, tilt: Array, mass: Array, other: Array) -> Weights:
    """Return m′, 1 − m′ and log M, M = 1 + m(e^τ−1), accurate unless M is far below 1.

    e^τ is built as (e^{τ/2})² so that m·e^τ cannot overflow before it is small again.
    """
    half = xp.expm1(0.5 * tilt)
    z = (mass * half) * (half + 2.0)
    total = 1.0 + z
    return (mass + z) / total, other / total, xp.log1p(z)


def _weights_down(xp: Any, tilt: Array, mass: Array, other: Array) -> Weights:
    """The same for τ < 0 and M not far below 1: m·e^τ itself, so that m′ keeps its digits."""
    raised, z = mass * xp.exp(tilt), mass * xp.expm1(tilt)
    total = 1.0 + z
    return raised / total, other / total, xp.log1p(z)


def _weights_far(xp: Any, tilt: Array, mass: Array, other: Array) -> Weights:
    """The same where M is far below 1, by way of the odds m′/(1−m′) and log(1−m)."""
    log_other = xp.log(other)
    odds = mass * xp.exp(tilt - log_other)
    return odds / (1.0 + odds), 1.0 / (1.0 + odds), log_other + xp.log1p(odds)


def _descend(
    xp: Any, tilt: Array, mass: Array, other: Array, budget: Array, weights: Callable[..., Weights]
) -> Array:
    """Run the fixed number of steps from a start and return the tilted mass m′."""
    for _ in range(KL_STEPS):
        tilt = _householder(xp, tilt, *weights(xp, tilt, mass, other), budget)
    tracked = weights(xp, tilt, mass, other)[0]
    far = xp.abs(tilt) > 2.0
    if is_lazy(far):
        return tracked
    index = xp.nonzero(far)[0]
    if index.shape[0] == 0:
        return tracked
    polished = _polish_kl(xp, *(xp.take(v, index) for v in (tracked, mass, other, budget)))
    return put(xp, tracked, index, polished)


def _householder(
    xp: Any, tilt: Array, tracked: Array, untracked: Array, log_total: Array, budget: Array
) -> Array:
    """One step of order 4 on K(τ) = τ·m′ − log M, the KL divergence of the tilt by τ.

    K′ = τv, K″ = v(1 + τs), K‴ = v(s(2 + τs) − 2τv) with v = m′(1−m′) and s = 1 − 2m′. Where the
    budget is within rounding of certainty, or vanishes, the residual is noise: the start is right
    to a third, so τ may move by a half of itself and no more.
    """
    v = tracked * untracked
    s = 1.0 - 2.0 * tracked
    slope = tilt * v
    lean = tilt * s
    # The Newton step over τ; below the floor the start is exact to the last digit.
    pace = (tilt * tracked - log_total - budget) / xp.maximum(slope * tilt, 1e-300)
    a = 0.5 * (1.0 + lean) * pace
    b = (s * (2.0 + lean) - 2.0 * slope) * (tilt * pace * pace / 6.0)
    return tilt * xp.clip(1.0 - pace * (1.0 - a) / (1.0 - 2.0 * a + b), 0.5, 1.5)


def _polish_kl(xp: Any, tracked: Array, mass: Array, other: Array, budget: Array) -> Array:
    """One Newton step in the tracked mass m′, for |τ| > 2.

    Rounding τ moves m′ by a relative ε·|τ|, too much for |τ| in the hundreds; evaluated as a
    function of m′ the divergence does not suffer from that. For small |τ| nothing is to gain.
    """
    gain = xp.log(tracked / xp.maximum(mass, 1e-300)) + _log_below(xp, mass)
    loss = xp.log1p((mass - tracked) / xp.maximum(other, 1e-300)) + _log_below(xp, other)
    step = (tracked * gain + (1.0 - tracked) * loss - budget) / (gain - loss)
    # The step corrects rounding; half the mass bounds it where the slope is infinite.
    return tracked - xp.clip(step, -0.5 * tracked, 0.5 * tracked)


def _log_below(xp: Any, mass: Array) -> Array:
    """Return the logarithm that a quotient by max(m, 1e−300) lacks where m is subnormal."""
    # Arrays on both sides: torch divides a number by an array as 1/m times the number.
    return xp.log(xp.maximum(xp.full_like(mass, 1e-300) / mass, 1.0))


def solve_bracketed(
    xp: Any, kind: Divergence, q: Array, rest: Array, budget: Array
) -> tuple[Array, Array]:
    """Return (γ*, 1 − γ*) for any divergence whose two-point form is smooth, elementwise.

    Newton on log D against log τ (a line for small budgets), safeguarded by bisection in τ, which
    also takes over where a step is hardly shorter than the one before: Newton can go to and fro
    between the two ends. An element is finished when it moves by no more than 2⁻⁵² relative; the
    others go on without it. One Newton step in the smaller mass ends the search.
    """
    tilt = xp.clip(xp.sqrt(budget / (q * rest)), 1e-150, 2.0)
    index = xp.arange(q.shape[0], dtype=xp.int64, device=device_of(q))
    ends = xp.zeros_like(q), xp.full_like(q, LARGEST_TILT)
    open_ = (index, tilt, *ends, xp.full_like(q, math.inf), q, rest, budget)
    for _ in range(BRACKET_STEPS):
        index, moved, low, high, step, *point = open_
        moved, low, high = _bracket_step(xp, kind, moved, low, high, step, *point)
        step = xp.abs(moved - open_[1])
        done = (step <= 2.0**-52 * moved) | (high - low <= 2.0**-52 * high)
        if is_lazy(q):
            return _polish(xp, kind, moved, q, rest, budget)
        tilt = put(xp, tilt, index, moved)
        going = xp.nonzero(~done)[0]
        if going.shape[0] == 0:
            break
        open_ = tuple(xp.take(v, going) for v in (index, moved, low, high, step, *point))
    return _polish(xp, kind, tilt, q, rest, budget)


def _bracket_step(
    xp: Any,
    kind: Divergence,
    tilt: Array,
    low: Array,
    high: Array,
    last: Array,
    q: Array,
    rest: Array,
    budget: Array,
) -> tuple[Array, Array, Array]:
    """Return the next tilt, and the bracket that the present one leaves; ``last`` moved so far."""
    gamma, y, d = _tilted_pair(xp, tilt, q, rest)
    spent = kind.term(gamma, q, d) + kind.term(y, rest, -d)
    low = xp.where(spent <= budget, tilt, low)
    high = xp.where(spent > budget, tilt, high)
    slope = (kind.slope(gamma / q) - kind.slope(y / rest)) * gamma * y
    moved = _log_newton(xp, tilt, spent, budget, slope)
    nears = (moved > low) & (moved < high) & (xp.abs(moved - tilt) < 0.9 * last)
    return xp.where(nears, moved, 0.5 * (low + high)), low, high


def _log_newton(xp: Any, tilt: Array, spent: Array, budget: Array, slope: Array) -> Array:
    """Return τ·exp(−log(D/δ)·D/(τD′)), with steps outside a factor e⁴ left to the bisection."""
    usable = (spent > 0) & (slope > 0) & (spent < math.inf) & (slope < math.inf)
    safe_spent, safe_slope = xp.where(usable, spent, budget), xp.where(usable, slope, 1.0)
    exponent = xp.log(budget / safe_spent) * safe_spent / (tilt * safe_slope)
    inside = usable & (xp.abs(exponent) < 4.0)
    return xp.where(inside, tilt * xp.exp(xp.where(inside, exponent, 0.0)), -1.0)


def _tilted_pair(xp: Any, tilt: Array, q: Array, rest: Array) -> tuple[Array, Array, Array]:
    """Return γ, 1 − γ and γ − q of the tilt by τ ≥ 0, each with full relative accuracy.

    The odds (1−γ)/γ = e^{−τ}(1−q)/q are built from two factors e^{−τ/2}: e^{−τ} itself would
    underflow long before the odds do. Odds beyond the range of float64 leave γ at q.
    """
    half, root = xp.expm1(-0.5 * tilt), xp.exp(-0.5 * tilt)
    odds = (rest * root / q) * root
    reached = odds < math.inf
    gamma = xp.where(reached, 1.0 / (1.0 + odds), q)
    y = xp.where(reached, odds / (1.0 + odds), rest)
    # γ − q = (1−q)(1 − e^{−τ})·γ
    return gamma, y, -rest * (half * (half + 2.0)) * gamma


def _polish(
    xp: Any, kind: Divergence, tilt: Array, q: Array, rest: Array, budget: Array
) -> tuple[Array, Array]:
    """One Newton step in the smaller of γ and 1 − γ, as in :func:`_polish_kl`."""
    gamma, y, _ = _tilted_pair(xp, tilt, q, rest)
    upper = y < 0.5
    d = xp.where(upper, rest - y, gamma - q)
    spent = kind.term(gamma, q, d) + kind.term(y, rest, -d)
    slope = kind.slope(gamma / q) - kind.slope(y / rest)
    usable = (slope > 0) & (slope < math.inf) & (spent < math.inf)
    step = xp.where(usable, (spent - budget) / xp.where(usable, slope, 1.0), 0.0)
    small = xp.where(upper, y, gamma)
    step = xp.clip(step, -0.25 * small, 0.25 * small)
    small = xp.where(upper, small + step, small - step)
    return xp.where(upper, 1.0 - small, small), xp.where(upper, small, 1.0 - small)
