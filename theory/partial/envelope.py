r"""What is known of a rule's law on partial rows: a box of emitted probabilities, and its bounds.

On the tokens A that both lists know, what a rule emits lies between two numbers; outside A the
ratio π/q lies between two others. Cut into pieces, within which a quantity that the completions
share (a scale, a rejected mass) varies little, such boxes give two-sided bounds of D_f(π‖q):

* from below, the least divergence of any law in the box: clip(τq, low, high) with one τ for all
  tokens, since the slopes f′(π/q) of those that are free must agree, for every f the same law
  (claim 37). What lies outside A counts as one token, which merging allows;
* from above, each token at the worse end of its interval, and outside A the chord of f̃ between the
  two ratios: a convex function lies below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import quiet
from theory.divergences.summand import Divergence
from theory.partial.rows import PartialRows

HALVINGS = 50  # of log τ between SMALLEST and its inverse
SMALLEST = 1e-30
SUMS = 1e-13  # by which the sum of a row may be off 1
LEFT = 1e-14  # by which what is left of it may be off


class Between(NamedTuple):
    """Two-sided bounds: lower and upper, [R]."""

    lower: Any
    upper: Any


def _hull(bounds: Between, at: Any, others: Between) -> Between:
    """Bounds that hold for the others at these rows too."""
    lower, upper = bounds.lower.copy(), bounds.upper.copy()
    lower[at] = np.minimum(lower[at], others.lower)
    upper[at] = np.maximum(upper[at], others.upper)
    return Between(lower, upper)


Excess = Callable[[Divergence], Any]  # more than that [R] no token outside A can cost


@dataclass(frozen=True, eq=False)
class Envelope:
    """A rule's law on every completion of partial rows, as boxes of what it emits.

    acceptance : bounds [R].
    low, high  : of the emitted probability on A, [R, J, L], in J pieces that cover all completions.
    ratio      : of π/q outside A, lower and upper, [R, J] each; the upper may be inf.
    possible   : which pieces a row can be in, [R, J].
    excess     : for a divergence, an upper bound [R] or inf of all that lies outside A.
    known      : bounds of a divergence that are known better, or None.
    other      : rows that may be others as well, and the envelope of those; or None.
    """

    rows: PartialRows
    acceptance: Between
    low: Any
    high: Any
    ratio: tuple[Any, Any]
    possible: Any = True
    excess: Excess | None = None
    known: Callable[[Divergence], Between | None] | None = None
    other: tuple[Any, Envelope] | None = None

    def either(self, at: Any, other: Envelope) -> Envelope:
        """The envelope of rows of which those ``at`` may be those of another as well."""
        acceptance = _hull(self.acceptance, at, other.acceptance)
        return replace(self, acceptance=acceptance, other=(at, other))

    def divergence(self, kind: Divergence) -> Between:
        """Bounds of D_f(π‖q) over all completions, in nats."""
        found = self._divergence(kind)
        if self.other is None:
            return found
        at, other = self.other
        return _hull(found, at, other.divergence(kind))

    @quiet()
    def _divergence(self, kind: Divergence) -> Between:
        lower, upper = self._least(kind), self._most(kind)
        possible = np.broadcast_to(self.possible, lower.shape)
        found = Between(
            np.min(np.where(possible, lower, math.inf), axis=-1),
            np.max(np.where(possible, upper, -math.inf), axis=-1),
        )
        better = self.known(kind) if self.known is not None else None
        if better is None:
            return found
        least, most = np.maximum(found.lower, better.lower), np.minimum(found.upper, better.upper)
        return Between(np.minimum(least, most), most)  # which rounding may have crossed

    def _outside(self) -> tuple[Any, Any]:
        """Bounds of the emitted mass outside A, [R, J]: by the ratios, and by what A leaves."""
        mass = self.rows.q_outside[:, None]
        least, most = (np.where(mass > 0, ratio * mass, 0.0) for ratio in self.ratio)
        # What is emitted where q = 0 has no ratio; it is there at most where the draft has mass.
        leaks = (mass == 0) & np.isinf(self.ratio[1]) & (self.rows.p_outside > 0)[:, None]
        most = np.minimum(np.where(leaks, 1.0, most), 1.0)
        left = [1.0 - np.sum(part, axis=-1) for part in (self.high, self.low)]
        low = np.minimum(np.maximum(least, left[0]), most)
        return low, np.maximum(np.minimum(most, left[1]), low)

    def _least(self, kind: Divergence) -> Any:
        """The least divergence of a law in each box, [R, J]: a value of the dual, hence a bound."""
        low, high, q = self._box
        scale = self._scale
        inside = np.clip(scale[..., None] * q, low, high)
        unmet = np.sum(inside, axis=-1) - 1.0
        owed = np.where(np.abs(unmet) <= SUMS, 0.0, kind.slope(scale) * unmet)
        # What A leaves is a difference: where it is faint it may be nearer to the verifier's.
        left = inside[..., -1]
        inside[..., -1] = np.clip(q[..., -1], left - LEFT, left + LEFT)
        return np.maximum(self._cost(kind, inside) - owed, 0.0)

    def _cost(self, kind: Divergence, emitted: Any) -> Any:
        return np.sum(kind.term(emitted, np.broadcast_to(self._box[2], emitted.shape)), axis=-1)

    @cached_property
    def _box(self) -> tuple[Any, Any, Any]:
        """Intervals and verifier of A and of all else as one token, [R, J, L + 1]."""
        low, high = self._outside()
        q = np.concatenate([self.rows.core_q, self.rows.q_outside[:, None]], axis=-1)
        return (
            np.concatenate([self.low, low[..., None]], axis=-1),
            np.concatenate([self.high, high[..., None]], axis=-1),
            q[:, None, :],
        )

    @cached_property
    def _scale(self) -> Any:
        """τ with Σ clip(τq, low, high) = 1, [R, J], as nearly as there is one; the nearest to 1."""
        low, high, q = self._box

        def total(scale: Any) -> Any:
            return np.sum(np.clip(scale[..., None] * q, low, high), axis=-1)

        # Slopes are steep far from τ = 1, and rounding must not be priced with them.
        rises = total(np.ones(low.shape[:2])) < 1.0
        slack = 1.0 + np.where(rises, -0.5, 0.5) * SUMS
        least = np.where(rises, 0.0, np.log(SMALLEST))
        most = np.where(rises, -np.log(SMALLEST), 0.0)
        for _ in range(HALVINGS):
            middle = 0.5 * (least + most)
            short = total(np.exp(middle)) < slack
            least, most = np.where(short, middle, least), np.where(short, most, middle)
        scale = np.exp(np.where(rises, most, least))
        # Rounding may let the sums of a box miss 1 altogether; τ = 1 has no price and bounds all.
        return np.where(np.abs(total(scale) - 1.0) <= SUMS, scale, 1.0)

    def _most(self, kind: Divergence) -> Any:
        """No law in a box costs more, [R, J]."""
        q = np.broadcast_to(self.rows.core_q[:, None, :], self.low.shape)
        inside = np.sum(np.maximum(kind.term(self.low, q), kind.term(self.high, q)), axis=-1)
        outside = np.maximum(*(self._chord(kind, mass) for mass in self._outside()))
        if self.excess is not None:
            outside = np.minimum(outside, self.excess(kind)[:, None])
        return inside + outside

    def _chord(self, kind: Divergence, mass: Any) -> Any:
        """What emitting ``mass`` [R, J] outside A costs at most, its ratios within the two."""
        q = np.broadcast_to(self.rows.q_outside[:, None], mass.shape)
        low, high = (np.broadcast_to(ratio, mass.shape) for ratio in self.ratio)
        start = kind.value(low)
        top = kind.value(np.where(np.isinf(high), low, high))
        rise = (top - start) / np.where(high > low, high - low, 1.0)
        rise = np.where(np.isinf(high), kind.recession, np.where(high > low, rise, 0.0))
        above = np.maximum(mass - low * q, 0.0)
        # 0·inf is 0 here: no mass costs nothing, whatever its price.
        priced = np.where(above > 0, above * rise, 0.0)
        leaked = np.where(mass > 0, mass * kind.recession, 0.0)
        return np.where(q > 0, np.where(np.isinf(start), math.inf, q * start + priced), leaked)
