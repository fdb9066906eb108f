r"""The f-divergences :math:`D_f(h\|q) = \sum_x q_x f(h_x/q_x)` in nats, accurate near h = q.

Every kind is one frozen object that knows its generator, its normalised summand and its slope (see
:mod:`theory.divergences.summand`). Sources: Csiszár (1967) for the class, Cressie and Read (1984)
for the power family.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from theory.arrays import (
    Array,
    check_distribution,
    check_same_place,
    coerce,
    namespace,
    quotient,
)
from theory.divergences.contrast import Contrast
from theory.divergences.summand import Divergence, expm1_remainder, log_or_minus_inf

__all__ = [
    "DIVERGENCES",
    "Divergence",
    "Power",
    "divergence",
    "resolve_divergence",
    "several_divergences",
]


@dataclass(frozen=True)
class KL(Divergence):
    r"""KL(h‖q) = Σ h log(h/q); f(t) = t log t."""

    name = "kl"
    at_zero = 1.0
    recession = math.inf

    def generator(self, t: Array) -> Array:
        return t * namespace(t).log(t)

    def _near(self, c: Contrast) -> Array:
        u = c.step
        return c.q * ((1.0 + u) * c.remainder + u * u)

    def _far(self, c: Contrast) -> Array:
        return c.h * c.log - c.d

    def rough_term(self, h: Array, q: Array) -> Array:
        return self._by_ratio(h, q, lambda xp, t: t * xp.log(t) - (t - 1.0))

    def slope(self, t: Array) -> Array:
        return log_or_minus_inf(t)


@dataclass(frozen=True)
class ReverseKL(Divergence):
    r"""KL(q‖h) = Σ q log(q/h); f(t) = −log t. Mentored decoding bounds this one."""

    name = "reverse_kl"
    at_zero = math.inf
    recession = 1.0

    def generator(self, t: Array) -> Array:
        return -namespace(t).log(t)

    def _near(self, c: Contrast) -> Array:
        return -c.q * c.remainder

    def _far(self, c: Contrast) -> Array:
        return c.d - c.q * c.log

    def rough_term(self, h: Array, q: Array) -> Array:
        return self._by_ratio(h, q, lambda xp, t: (t - 1.0) - xp.log(t))

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

    def _inside(self, c: Contrast) -> Array:
        return c.d * c.relative

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

    def _inside(self, c: Contrast) -> Array:
        return 0.5 * c.xp.abs(c.d)

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

    def _inside(self, c: Contrast) -> Array:
        root = c.d / (c.xp.sqrt(c.h) + c.xp.sqrt(c.q))
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

    def _inside(self, c: Contrast) -> Array:
        # With v = (h−q)/(h+q), so that log(h/q) = 2 artanh v, four times the summand is
        #     (h+q)·(v·log(h/q) + log(1 − v²))
        #     = −2 min(h, q)·|log(h/q)| − 2(h+q)·log(1 − |h−q|/(2 max(h, q))).
        # The first form loses one bit at most near v = 0, the second hardly more away from it.
        both, larger = c.h + c.q, c.xp.maximum(c.h, c.q)
        v = c.d / both
        near = c.xp.abs(v) < 0.5
        tail = c.xp.log1p(c.xp.where(near, -v * v, -0.5 * c.xp.abs(c.d) / larger))
        close = 0.25 * both * (v * c.log + tail)
        smaller = c.xp.minimum(c.h, c.q)
        return c.xp.where(near, close, -0.5 * (smaller * c.xp.abs(c.log) + both * tail))

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
        return f"power:{float(self.order)!r}".removesuffix(".0")

    @property
    def at_zero(self) -> float:  # type: ignore[override]
        return 1.0 / self.order if self.order > 0 else math.inf

    @property
    def recession(self) -> float:  # type: ignore[override]
        return 1.0 / (1.0 - self.order) if self.order < 1 else math.inf

    def generator(self, t: Array) -> Array:
        return (t**self.order - 1.0 - self.order * (t - 1.0)) / (self.order * (self.order - 1.0))

    def _near(self, c: Contrast) -> Array:
        a, rise = self.order, c.xp.log1p(c.step)
        return c.q * (expm1_remainder(c.xp, a * rise) + a * c.remainder) / (a * (a - 1.0))

    def _far(self, c: Contrast) -> Array:
        a, exponent = self.order, self.order * c.log
        # (h/q)^a may overflow where q·(h/q)^a does not.
        large = exponent > 700.0
        powered = c.xp.where(large, c.xp.exp(exponent + c.xp.log(c.q)), c.q * c.xp.exp(exponent))
        return (powered - c.q - a * c.d) / (a * (a - 1.0))

    def slope(self, t: Array) -> Array:
        xp, b = namespace(t), self.order - 1.0
        with np.errstate(over="ignore"):
            return xp.expm1(b * log_or_minus_inf(t)) / b


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


SHORT_NAMES: dict[str, str] = {
    "tv": "total_variation",
    "chi2": "pearson_chi2",
    "hellinger2": "squared_hellinger",
    "js": "jensen_shannon",
}
"""What the columns of tables call a divergence."""


def resolve_divergence(kind: str | Divergence) -> Divergence:
    """Return the divergence of a kind: a name, a short one, ``"power:A"`` (A a number), or itself.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    if isinstance(kind, Divergence):
        return kind
    name = SHORT_NAMES.get(kind, kind) if isinstance(kind, str) else None
    if name in DIVERGENCES:
        return DIVERGENCES[name]
    match = re.fullmatch(r"power:(.+)", str(kind))
    if match:
        try:
            order = float(match.group(1))
        except ValueError:
            raise ValueError(f"divergence {kind!r}: the order must be a number") from None
        limits = {1.0: DIVERGENCES["kl"], 0.0: DIVERGENCES["reverse_kl"]}
        return limits[order] if order in limits else Power(order)
    known = ", ".join([*DIVERGENCES, "power:A", *SHORT_NAMES])
    raise ValueError(f"unknown divergence {kind!r}; known are {known}")


def divergence(kind: str | Divergence, h: Array, q: Array, *, validate: bool = True) -> Array:
    r"""Return :math:`D_f(h\|q) = \sum_x q_x f(h_x/q_x)` over the last axis, in nats.

    Parameters
    ----------
    kind : str or Divergence
        ``"kl"`` (Σ h log(h/q)), ``"reverse_kl"`` (Σ q log(q/h)), ``"pearson_chi2"``,
        ``"total_variation"``, ``"squared_hellinger"``, ``"jensen_shannon"``, a short name of these
        (``"chi2"``, ``"tv"``, ``"hellinger2"``, ``"js"``) or ``"power:A"``.
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
    return several_divergences([kind], h, q, validate=validate)[0]


def several_divergences(
    kinds: Iterable[str | Divergence], h: Array, q: Array, *, validate: bool = True
) -> list[Array]:
    """Return the divergences of many kinds between the same rows, ``[...]`` each.

    Each is what :func:`divergence` returns; logarithms and quotients are computed once for all.
    Parameters and errors are those of :func:`divergence`.
    """
    chosen = [resolve_divergence(kind) for kind in kinds]
    h, q = coerce(h, q, names=("h", "q"))
    if validate:
        check_same_place(("h", "q"), (h, q))
        check_distribution("h", h)
        check_distribution("q", q)
    xp = namespace(h, q)
    dtype = xp.result_type(h, q)
    contrast = Contrast.of(*(xp.astype(x, xp.float64, copy=False) for x in (h, q)))
    return [xp.astype(kind.over(contrast), dtype, copy=False) for kind in chosen]
