"""What an f-divergence is here: its normalised generator as a summand, a slope and two limits.

The normalised generator f̃(t) = f(t) − f′(1)(t−1) is non-negative, convex, zero at t = 1 and gives
the same divergence between distributions. Summing it loses nothing to cancellation;
within a summand the textbook formula cancels near h = q, where a series takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import Array, namespace, quiet
from theory.divergences.contrast import Contrast


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
        return self.summand(Contrast.of(h, q, difference))

    def rough_term(self, h: Array, q: Array) -> Array:
        """Return q·f̃(h/q) to about ε·h·|log(h/q)|, where that is faster than :meth:`term`.

        It is all that a sum needs which is compared with another and divided by a slope of f̃.
        """
        return self.term(h, q)

    def _by_ratio(self, h: Array, q: Array, normalised: Callable[[Any, Array], Array]) -> Array:
        """Return q·f̃(t), t = h/q, by a plain formula of f̃; by :meth:`term` where it has no value.

        The formula's error is that of t, ε·t·|f̃′(t)|, as long as every step of it uses the same t.
        """
        xp = namespace(h, q)
        with np.errstate(all="ignore"):
            value = q * normalised(xp, h / q)
        return value if bool(xp.all(xp.isfinite(value))) else self.term(h, q)

    def summand(self, contrast: Contrast) -> Array:
        """Return q·f̃(h/q) elementwise; many kinds may share one contrast."""
        c = contrast
        with np.errstate(over="ignore", under="ignore"):
            value = self._inside(c)
        if c.dropped is None or c.leaked is None:
            return value
        value = c.xp.where(c.dropped > 0, price_of(c.xp, c.dropped, self.at_zero), value)
        return c.xp.where(c.leaked > 0, price_of(c.xp, c.leaked, self.recession), value)

    def _inside(self, c: Contrast) -> Array:
        """Choose, for h, q > 0, between the series near h = q and the textbook formula."""
        return c.xp.where(c.is_near, self._near(c), self._far(c))

    def _near(self, c: Contrast) -> Array:
        """Return q·f̃(1+u) at the clipped u, ``c.step``, without cancellation."""
        raise NotImplementedError

    def _far(self, c: Contrast) -> Array:
        """Return q·f̃(h/q) away from h = q."""
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
        return self.over(Contrast.of(h, q))

    def over(self, contrast: Contrast) -> Array:
        """Return D_f(h‖q) over the last axis of a contrast."""
        return contrast.xp.sum(self.summand(contrast), axis=-1)

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
