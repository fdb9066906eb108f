r"""The clip of a block: clip(p/s, b·q, a·q), the draft raised by what was over-supplied (claim 33).

Block verification has accepted the prefix v with A(v) = s·p(v), s ≤ 1: of the draft's row only the
share s is still to be accepted or rejected, and a target h may take p/s of a token without a
rejection. At a multiplier μ = log(a/b) the optimum of one place for KL is h = clip(p/s, b·q, a·q),
and A(vy) = A(v)·min(p/s, h). With s = 1 it is the frontier's clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from theory.arrays import UNIT, Array, quiet, search_rows, take_rows
from theory.divergences import DIVERGENCES
from theory.pair import Pair, running_sums

__all__ = ["ScaledClip", "scaled_clip"]

STEPS = 60  # halvings of log b
LARGEST = 690.0  # of log a: a token without verifier mass, whose ratio is inf, stays beyond it
KL = DIVERGENCES["kl"]


class ScaledClip(NamedTuple):
    """The clip at each scale and multiplier: factors a and b, and KL(h‖q) in nats; ``[R, J]``."""

    above: Array
    below: Array
    spent: Array


@quiet()
def scaled_clip(pair: Pair, scale: Array, multiplier: Array) -> ScaledClip:
    r"""Return the clip of prepared rows at scales s in (0, 1] and multipliers μ ≥ 0 of KL.

    With a = b·e^μ the sum of h grows with b, from at most 1 at b = e^{−μ} to at least 1 at b = 1;
    log b is halved to rounding between them. Each sum takes the running sums of the unscaled rows,
    which at the solution are of the order of s where they are divided by it: no digits are lost at
    faint scales.

    Parameters
    ----------
    pair : Pair
        R rows, prepared with ``sort=True``.
    scale, multiplier : array [R, J]
        J scales and finite multipliers for each row, float64.

    Returns
    -------
    ScaledClip
        1 ≤ a, b ≤ 1; Σ h = 1 up to rounding. Of a token with q = 0 nothing is emitted.
    """
    sums, xp = _Sums.of(pair), pair.xp
    low, high = -multiplier, xp.zeros_like(multiplier)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        short = sums.at(scale, middle, multiplier).total < 1.0
        low, high = xp.where(short, middle, low), xp.where(short, high, middle)
    groups = sums.at(scale, high, multiplier)
    return ScaledClip(groups.above, groups.below, sums.spent(groups, scale))


class _Groups(NamedTuple):
    """A clip in three: its factors, the tokens that are clipped, and what each group emits."""

    above: Array
    below: Array
    first: Array  # of the tokens between, in order
    last: Array
    emitted: tuple[Array, Array, Array]  # below, between, above
    verifier: tuple[Array, Array, Array]

    @property
    def total(self) -> Array:
        """Σ h."""
        return self.emitted[0] + self.emitted[1] + self.emitted[2]


@dataclass(frozen=True, eq=False)
class _Sums:
    """The running sums of a pair's rows in order, and of p·log(p/q)."""

    pair: Pair
    costs: Array

    @classmethod
    def of(cls, pair: Pair) -> _Sums:
        sums: _Sums = pair.cached("scaled clip", lambda: cls._collect(pair))
        return sums

    @classmethod
    def _collect(cls, pair: Pair) -> _Sums:
        xp = pair.xp
        inside = (pair.q > 0) & (pair.p > 0)
        p, q = (xp.where(inside, rows, 1.0) for rows in (pair.p, pair.q))
        costs = xp.where(inside, p * (xp.log(p) - xp.log(q)), 0.0)
        return cls(pair, running_sums(xp, costs))

    def at(self, scale: Array, log_below: Array, multiplier: Array) -> _Groups:
        """The groups of clip(p/s, b·q, b·e^μ·q)."""
        xp, order = self.pair.xp, self.pair.order
        below = xp.exp(log_below)
        above = xp.exp(xp.minimum(log_below + multiplier, LARGEST))
        first = search_rows(xp, order.ratio, scale * UNIT * below)
        last = search_rows(xp, order.ratio, scale * UNIT * above, side="right")
        kept = self._between(order.lifted_below, first, last)
        ends = [take_rows(xp, order.lifted_below, first), take_rows(xp, order.lifted_from, last)]
        lifted = (ends[0], kept, ends[1])
        low, between, high = (UNIT * mass for mass in lifted)
        emitted = (
            below * low,
            self._between(order.p_below, first, last) / scale,
            above * high,
        )
        return _Groups(above, below, first, last, emitted, (low, between, high))

    def _between(self, sums: Array, first: Array, last: Array) -> Array:
        xp = self.pair.xp
        return xp.maximum(take_rows(xp, sums, last) - take_rows(xp, sums, first), 0.0)

    def spent(self, groups: _Groups, scale: Array) -> Array:
        """KL(h‖q): two clipped groups, and p/s between them, Σ q·f̃(p/(sq)) by its running sums."""
        xp = self.pair.xp
        ends = [KL.term(groups.emitted[end], groups.verifier[end]) for end in (0, 2)]
        cost = take_rows(xp, self.costs, groups.last) - take_rows(xp, self.costs, groups.first)
        kept, verifier = groups.emitted[1], groups.verifier[1]
        middle = cost / scale - xp.log(scale) * kept - kept + verifier
        return xp.maximum(ends[0] + ends[1] + middle, 0.0)
