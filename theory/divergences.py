r"""The f-divergences :math:`D_f(h\|q) = \sum_x q_x f(h_x/q_x)` in nats, accurate near h = q.

Every kind is kept as one frozen object that knows its normalised generator
:math:`\tilde f(t) = f(t) - f'(1)(t-1)`, which is non-negative, convex, zero at t = 1 and gives the
same divergence between distributions. Working with :math:`\tilde f` makes each summand
non-negative, so sums lose nothing to cancellation, and makes the slope change sign at t = 1, which
the frontier needs. Sources: rules.md of the design; Csiszár (1967) for the class, Cressie and Read
(1984) for the power family.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import (
    Array,
    check_distribution,
    check_same_place,
    coerce,
    is_lazy,
    namespace,
    quiet,
    quotient,
)

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


@dataclass(frozen=True)
class KL(Divergence):
    r"""KL(h‖q) = Σ h log(h/q); f(t) = t log t."""

    name = "kl"
    at_zero = 1.0
    recession = math.inf

    def generator(self, t: Array) -> Array:
        return t * namespace(t).log(t)

    def _near(self, xp: Any, q: Array, u: Array) -> Array:
        return q * ((1.0 + u) * log1p_remainder(u) + u * u)

    def _far(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        return h * _log_ratio(xp, h, q) - d

    def slope(self, t: Array) -> Array:
        return _log(t)


@dataclass(frozen=True)
class ReverseKL(Divergence):
    r"""KL(q‖h) = Σ q log(q/h); f(t) = −log t. Mentored decoding bounds this one."""

    name = "reverse_kl"
    at_zero = math.inf
    recession = 1.0

    def generator(self, t: Array) -> Array:
        return -namespace(t).log(t)

    def _near(self, xp: Any, q: Array, u: Array) -> Array:
        return -q * log1p_remainder(u)

    def _far(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        return d - q * _log_ratio(xp, h, q)

    def slope(self, t: Array) -> Array:
        return 1.0 - quotient(namespace(t), 1.0, t, math.inf)


@dataclass(frozen=True)
class PearsonChi2(Divergence):
    r"""χ²(h‖q) = Σ (h−q)²/q; f(t) = (t−1)²."""

    name = "pearson_chi2"
    at_zero = 1.0
    recession = math.inf

    def generator(self, t: Array) -> Array:
        return (t - 1.0) ** 2

    def _inside(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return d * (d / q)

    def slope(self, t: Array) -> Array:
        return 2.0 * (t - 1.0)


@dataclass(frozen=True)
class TotalVariation(Divergence):
    r"""TV(h, q) = ½ Σ|h−q|; f(t) = ½|t−1|."""

    name = "total_variation"
    at_zero = 0.5
    recession = 0.5

    def generator(self, t: Array) -> Array:
        return 0.5 * namespace(t).abs(t - 1.0)

    def _inside(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        return 0.5 * xp.abs(d)

    def slope(self, t: Array) -> Array:
        return 0.5 * namespace(t).sign(t - 1.0)


@dataclass(frozen=True)
class SquaredHellinger(Divergence):
    r"""H²(h, q) = ½ Σ(√h−√q)²; f(t) = ½(√t−1)²."""

    name = "squared_hellinger"
    at_zero = 0.5
    recession = 0.5

    def generator(self, t: Array) -> Array:
        return 0.5 * (namespace(t).sqrt(t) - 1.0) ** 2

    def _inside(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        root = d / (xp.sqrt(h) + xp.sqrt(q))
        return 0.5 * root * root

    def slope(self, t: Array) -> Array:
        xp = namespace(t)
        return 0.5 - 0.5 * quotient(xp, 1.0, xp.sqrt(t), math.inf)


@dataclass(frozen=True)
class JensenShannon(Divergence):
    r"""JS(h, q) = ½ KL(h‖m) + ½ KL(q‖m), m = (h+q)/2; f(t) = ½[t log t − (t+1) log((t+1)/2)]."""

    name = "jensen_shannon"
    at_zero = 0.5 * math.log(2.0)
    recession = 0.5 * math.log(2.0)

    def generator(self, t: Array) -> Array:
        xp = namespace(t)
        return 0.5 * (t * xp.log(t) - (t + 1.0) * xp.log(0.5 * (t + 1.0)))

    def _inside(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        # With m = (h+q)/2 and v = (h−q)/(h+q) the summand is ½m(2v·artanh v + log(1−v²)), which
        # loses one bit at most; near |v| = 1 the textbook formula is the accurate one.
        v = d / (h + q)
        near = xp.clip(v, -0.5, 0.5)
        close = 0.25 * (h + q) * (2.0 * near * xp.atanh(near) + xp.log1p(-near * near))
        return xp.where(xp.abs(v) < 0.5, close, self._far(xp, h, q, d))

    def _far(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        middle = 0.5 * (h + q)
        return 0.5 * (h * _log_ratio(xp, h, middle) + q * _log_ratio(xp, q, middle))

    def slope(self, t: Array) -> Array:
        # ½ log(2t/(1+t)); written with 1/t so that t = inf gives its limit ½ log 2.
        xp = namespace(t)
        return 0.5 * (math.log(2.0) - xp.log1p(quotient(xp, 1.0, t, math.inf)))


@dataclass(frozen=True)
class Power(Divergence):
    r"""The power family of order a: f(t) = (t^a − 1 − a(t−1)) / (a(a−1)).

    a = 2 is ½χ², a = ½ is four times the squared Hellinger divergence; a = 1 and a = 0 are the
    limits KL(h‖q) and KL(q‖h) and are returned as those by :func:`resolve_divergence`.
    """

    order: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.order) or self.order in (0.0, 1.0):
            raise ValueError(
                f"order must be finite and neither 0 nor 1 (use reverse_kl, kl), got {self.order!r}"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"power:{self.order:g}"

    @property
    def at_zero(self) -> float:  # type: ignore[override]
        return 1.0 / self.order if self.order > 0 else math.inf

    @property
    def recession(self) -> float:  # type: ignore[override]
        return 1.0 / (1.0 - self.order) if self.order < 1 else math.inf

    def generator(self, t: Array) -> Array:
        return (t**self.order - 1.0 - self.order * (t - 1.0)) / (self.order * (self.order - 1.0))

    def _near(self, xp: Any, q: Array, u: Array) -> Array:
        a = self.order
        return (
            q * (_expm1_remainder(xp, a * xp.log1p(u)) + a * log1p_remainder(u)) / (a * (a - 1.0))
        )

    def _far(self, xp: Any, h: Array, q: Array, d: Array) -> Array:
        a = self.order
        return (q * (xp.exp(a * _log_ratio(xp, h, q)) - 1.0) - a * d) / (a * (a - 1.0))

    def slope(self, t: Array) -> Array:
        xp, b = namespace(t), self.order - 1.0
        with np.errstate(over="ignore"):
            return xp.expm1(b * _log(t)) / b


def _log_ratio(xp: Any, h: Array, q: Array) -> Array:
    """Return log(h/q) for h, q > 0, also where the quotient leaves the range of float64."""
    ratio = h / q
    regular = (ratio > 0) & (ratio < math.inf)
    if bool(xp.all(regular)) if not is_lazy(ratio) else True:
        return xp.log(ratio)
    return xp.where(regular, xp.log(xp.where(regular, ratio, 1.0)), xp.log(h) - xp.log(q))


def _log(t: Array) -> Array:
    """Return log t with log 0 = −inf, quietly."""
    xp = namespace(t)
    return xp.where(t > 0, xp.log(xp.where(t > 0, t, 1.0)), -math.inf)


def _expm1_remainder(xp: Any, s: Array) -> Array:
    """Return e^s − 1 − s: its Taylor series below |s| = 1/2, the plain difference above."""
    small = xp.abs(s) < 0.5
    v = xp.where(small, s, 0.0)
    series = v * 0.0 + 1.0
    for k in range(15, 2, -1):
        series = 1.0 + series * v / k
    return xp.where(small, 0.5 * v * v * series, xp.expm1(s) - s)


DIVERGENCES: dict[str, Divergence] = {
    kind.name: kind
    for kind in (
        KL(),
        ReverseKL(),
        PearsonChi2(),
        TotalVariation(),
        SquaredHellinger(),
        JensenShannon(),
    )
}


def resolve_divergence(kind: str | Divergence) -> Divergence:
    """Return the divergence of a kind: a name, ``"js"``, ``"power:A"`` with a number A, or itself.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    if isinstance(kind, Divergence):
        return kind
    if kind == "js":
        return DIVERGENCES["jensen_shannon"]
    if kind in DIVERGENCES:
        return DIVERGENCES[kind]
    match = re.fullmatch(r"power:(.+)", str(kind))
    if match:
        try:
            order = float(match.group(1))
        except ValueError:
            raise ValueError(f"divergence {kind!r}: the order must be a number") from None
        limits = {1.0: DIVERGENCES["kl"], 0.0: DIVERGENCES["reverse_kl"]}
        return limits[order] if order in limits else Power(order)
    known = ", ".join([*DIVERGENCES, "power:A"])
    raise ValueError(f"unknown divergence {kind!r}; known are {known}")


def divergence(kind: str | Divergence, h: Array, q: Array, *, validate: bool = True) -> Array:
    r"""Return :math:`D_f(h\|q) = \sum_x q_x f(h_x/q_x)` over the last axis, in nats.

    Parameters
    ----------
    kind : str or Divergence
        ``"kl"`` (Σ h log(h/q)), ``"reverse_kl"`` (Σ q log(q/h)), ``"pearson_chi2"``,
        ``"total_variation"``, ``"squared_hellinger"``, ``"jensen_shannon"`` or ``"power:A"``.
    h, q : array [..., V]
        Distributions; q is the reference (the verifier). float32 or float64 of one namespace.
    validate : bool
        False skips the checks of the two distributions.

    Returns
    -------
    array [...]
        Never negative, never NaN; inf where the divergence is infinite. Exact up to rounding, also
        where h is so close to q that the textbook formula cancels. Computed in float64 and
        returned in the dtype of the input.

    Raises
    ------
    ValueError
        If a row is not a distribution (argument, row and value are named), if shapes or devices
        differ, or for an unknown kind.
    """
    chosen = resolve_divergence(kind)
    h, q = coerce(h, q)
    if validate:
        check_same_place(("h", "q"), (h, q))
        check_distribution("h", h)
        check_distribution("q", q)
    xp = namespace(h, q)
    dtype = xp.result_type(h, q)
    wide = xp.float64
    return xp.astype(chosen.between(xp.astype(h, wide), xp.astype(q, wide)), dtype)
