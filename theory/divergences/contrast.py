"""A mass h against a mass q, elementwise: what the summands of all f-divergences are made of.

Differences, quotients and logarithms are the cost of a divergence. A :class:`Contrast` computes
each when it is first asked for, and once, however many kinds are summed over it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from theory.arrays import Array, free_to_ask, is_lazy, namespace

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


def log_ratio(xp: Any, h: Array, q: Array) -> Array:
    """Return log(h/q) for h, q > 0, also where the quotient leaves the range of float64."""
    ratio = h / q
    regular = (ratio >= 2.0**-1022) & (ratio < math.inf)  # a subnormal quotient lost digits
    if is_lazy(ratio) or (free_to_ask(ratio) and bool(xp.all(regular))):
        return xp.log(ratio)
    return xp.where(regular, xp.log(xp.where(regular, ratio, 1.0)), xp.log(h) - xp.log(q))


@dataclass(frozen=True, eq=False)
class Contrast:
    """Positive h and q and their difference d; where one was zero, what h = q would give.

    ``dropped`` holds the mass q where h = 0 and ``leaked`` the mass h where q = 0, both 0
    elsewhere; None where no h and no q is zero.
    """

    xp: Any
    h: Array
    q: Array
    d: Array
    dropped: Array | None = None
    leaked: Array | None = None

    @classmethod
    def of(cls, h: Array, q: Array, difference: Array | None = None) -> Contrast:
        """Contrast h ≥ 0 with q ≥ 0.

        ``difference`` is h − q where the caller knows it more accurately than subtraction gives.
        """
        xp = namespace(h, q)
        d = h - q if difference is None else difference
        if free_to_ask(h) and bool(xp.all(h > 0)) and bool(xp.all(q > 0)):
            return cls(xp, h, q, d)
        inside = (h > 0) & (q > 0)
        safe_q = xp.where(q > 0, q, 1.0)
        return cls(
            xp,
            xp.where(inside, h, safe_q),
            safe_q,
            xp.where(inside, d, 0.0),
            xp.where(h == 0, q, 0.0),
            xp.where(q == 0, h, 0.0),
        )

    @cached_property
    def relative(self) -> Array:
        """Return u = (h − q)/q."""
        with np.errstate(over="ignore", under="ignore"):
            return self.d / self.q

    @cached_property
    def is_near(self) -> Array:
        """Return where |u| < NEAR."""
        return self.xp.abs(self.relative) < NEAR

    @cached_property
    def step(self) -> Array:
        """Return u clipped to [−NEAR, NEAR]."""
        return self.xp.minimum(self.xp.maximum(self.relative, -NEAR), NEAR)

    @cached_property
    def remainder(self) -> Array:
        """Return log(1 + u) − u of the clipped u."""
        return log1p_remainder(self.step)

    @cached_property
    def log(self) -> Array:
        """Return log(h/q), with full relative accuracy near h = q too."""
        with np.errstate(over="ignore", under="ignore"):
            far = log_ratio(self.xp, self.h, self.q)
        return self.xp.where(self.is_near, self.step + self.remainder, far)
