"""What an f-divergence is here: its normalised generator as a summand, a slope and two limits.

The normalised generator f̃(t) = f(t) − f′(1)(t−1) is non-negative, convex, zero at t = 1 and gives
the same divergence between distributions. Summing it loses nothing to cancellation;
within a summand the textbook formula cancels near h = q, where a series takes over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import Array, is_lazy, namespace, quiet

NEAR = 0.25  # below |h/q − 1| = NEAR the textbook formulas cancel and a series takes over


def log1p_remainder(u: Array) -> Array:
    r"""Return :math:`\log(1+u) - u` for |u| ≤ NEAR to a few units in the last place.

    The series :math:`\log(1+u) = 2\,\mathrm{artanh}(w)`, w = u/(2+u), is subtracted term by term:
    :math:`-2w^2/(1-w) + 2(w^3/3 + w^5/5 + \dots)`; what is left out is below 2⁻⁵³ relative.
    """
    w = u / (2.0 + u)
    square = w * w
    series = square * (1.0 / 19.0)
    for k in (17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0):
        series = (series + 1.0 / k) * square
    return 2.0 * square * (w * (series + 1.0 / 3.0) - 1.0 / (1.0 - w))


@dataclass(frozen=True)
class Divergence:
    """An f-divergence: its normalised generator as a summand, a slope and two limits.

    ``at_zero`` is f̃(0), the price of a verifier token that h drops; ``recession`` is
    lim f̃(t)/t, the price per unit of mass that h puts where q = 0. Either may be inf.
    """

    name: ClassVar[str]
    at_zero: ClassVar[float]
    recession: ClassVar[float]

    def term(self, h: Array, q: Array, difference: Array | None = None) -> Array:
        """Return q·f̃(h/q) elementwise, with 0 at h = q = 0 and the limits where one of them is 0.

        ``difference`` is h − q where the caller knows it more accurately than subtraction gives.
        """
        xp = namespace(h, q)
        d = h - q if difference is None else difference
        if not is_lazy(h) and bool(xp.all(h > 0)) and bool(xp.all(q > 0)):
            return self._inside(xp, h, q, d)
        safe_q, safe_h = xp.where(q > 0, q, 1.0), xp.where(h > 0, h, 1.0)
        inside = (q > 0) & (h > 0)
        d = xp.where(inside, d, 0.0)
        safe_h = xp.where(inside, safe_h, safe_q)
        value = self._inside(xp, safe_h, safe_q, d)
        value = xp.where((h == 0) & (q > 0), price_of(xp, q, self.at_zero), value)
        return xp.where((q == 0) & (h > 0), price_of(xp, h, self.recession), value)

    def _inside(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        """Choose, for h, q > 0, between the series near h = q and the textbook formula."""
        with np.errstate(over="ignore", under="ignore"):
            u = d / q
            return xp.where(
                xp.abs(u) < NEAR,
                self._near(xp, q, xp.clip(u, -NEAR, NEAR)),
                self._far(xp, h, q, d),
            )

    def _near(self, xp: Any, q: Array, u: Array) -> Array:
        """Return q·f̃(1+u) for |u| ≤ NEAR, without cancellation."""
        raise NotImplementedError

    def _far(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        """Return q·f̃(h/q) for h, q > 0 away from h = q, given d = h − q."""
        raise NotImplementedError

    def slope(self, t: Array) -> Array:
        """Return f̃′(t) for t in [0, inf]; −inf and inf are its honest limits."""
        raise NotImplementedError

    def value(self, t: Array) -> Array:
        """Return f̃(t) for t in [0, inf)."""
        xp = namespace(t)
        return self.term(t, xp.ones_like(t))

    def between(self, h: Array, q: Array) -> Array:
        """Return D_f(h‖q) over the last axis of unchecked float64 rows."""
        xp = namespace(h, q)
        return xp.sum(self.term(h, q), axis=-1)

    def generator(self, t: Array) -> Array:
        """Return the textbook f(t) for t > 0, by its plain formula."""
        raise NotImplementedError

    @quiet()
    def plain_two_point(self, gamma: Array, q: Array) -> Array:
        """Return d_f(γ, q) by its plain formula: fast, NaN at the ends, cancelling near γ = q."""
        other = 1.0 - q
        return q * self.generator(gamma / q) + other * self.generator((1.0 - gamma) / other)

    def two_point(self, gamma: Array, q: Array) -> Array:
        """Return d_f(γ, q) = q·f(γ/q) + (1−q)·f((1−γ)/(1−q)), elementwise on [0, 1]."""
        d = gamma - q
        return self.term(gamma, q, d) + self.term(1.0 - gamma, 1.0 - q, -d)


def price_of(xp: Any, mass: Array, price: float) -> Array:
    """Return mass·price with 0·inf = 0."""
    if math.isinf(price):
        return xp.where(mass > 0, price, xp.zeros_like(mass))
    return mass * price


def log_ratio(xp: Any, h: Array, q: Array) -> Array:
    """Return log(h/q) for h, q > 0, also where the quotient leaves the range of float64."""
    ratio = h / q
    regular = (ratio >= 2.0**-1022) & (ratio < math.inf)  # a subnormal quotient lost digits
    if bool(xp.all(regular)) if not is_lazy(ratio) else True:
        return xp.log(ratio)
    return xp.where(regular, xp.log(xp.where(regular, ratio, 1.0)), xp.log(h) - xp.log(q))


def log_or_minus_inf(t: Array) -> Array:
    """Return log t with log 0 = −inf, quietly."""
    xp = namespace(t)
    return xp.where(t > 0, xp.log(xp.where(t > 0, t, 1.0)), -math.inf)


def expm1_remainder(xp: Any, s: Array) -> Array:
    """Return e^s − 1 − s: its Taylor series below |s| = 1/2, the plain difference above."""
    small = xp.abs(s) < 0.5
    v = xp.where(small, s, 0.0)
    series = v * 0.0 + 1.0
    for k in range(15, 2, -1):
        series = 1.0 + series * v / k
    return xp.where(small, 0.5 * v * v * series, xp.expm1(s) - s)
