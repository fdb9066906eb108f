r"""The universal frontier h = clip(p, b·q, a·q), 0 ≤ b ≤ 1 ≤ a, Σh = 1: one family for every f.

For every f-divergence the largest acceptance of any scheme whose output satisfies D_f(h‖q) ≤ level
is reached inside this family (claim 15): the multiplier condition makes f′(h/q) take one value
where h < p and another where h > p. The family is parametrised here by the rejected mass
m = Σ(p − aq)₊ = Σ(bq − p)₊, because the acceptance is 1 − m and the divergence D(m) is convex and
decreasing with D′(m) = −(f′(a) − f′(b)).

Where p has mass P₀ outside the support of q, the family is continued to m < P₀: everything else is
accepted and the tokens with q = 0 in equal proportion; that costs the recession slope of f per unit
of mass, which is inf for KL and χ².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from theory.arrays import UNIT, Array, is_lazy, namespace, quiet, search_rows, take_rows
from theory.law import OneStep
from theory.pair import Pair, RatioOrder
from theory.summand import Divergence, price_of

SOLVER_STEPS = 80


class Clip(NamedTuple):
    """A point of the family at rejected mass m: factors a and b, the divergence and −D′(m)."""

    above: Array  # a and b in units of UNIT, as the ratios
    below: Array
    spent: Array
    slope: Array


@dataclass(frozen=True, eq=False)
class ClippedFamily:
    """The frontier of each row of a prepared pair for one divergence."""

    kind: Divergence
    order: RatioOrder
    rejected_at: Array  # −Σ(p − r_k q)₊ at each breakpoint a = r_k, ascending
    recovered_at: Array  # Σ(r_k q − p)₊ at each breakpoint b = r_k, ascending
    donor_cost: Array  # Σ q f̃(p/q) over 1 < r_i, i < k
    receiver_cost: Array  # Σ q f̃(p/q) over r_i < 1, i ≥ k
    outside: Array  # P₀, the draft mass where q = 0
    total: Array  # TV(p, q), the largest rejected mass
    receivers: Array  # how many tokens have p < q: b clips among them alone, a beyond them

    @classmethod
    @quiet()
    def of(cls, pair: Pair, kind: Divergence) -> ClippedFamily:
        """Collect the breakpoints and running costs of a pair in O(K) after its sort."""
        xp, order = pair.xp, pair.order
        r = order.ratio
        finite = r < math.inf
        safe = xp.where(finite, r, 0.0)
        rejected = xp.where(
            finite, safe * order.lifted_from[:, :-1] - order.p_from[:, :-1], math.inf
        )
        recovered = xp.where(
            finite, safe * order.lifted_below[:, :-1] - order.p_below[:, :-1], math.inf
        )
        cost = kind.term(pair.p, pair.q)
        donors = xp.where(finite & (r > UNIT), cost, 0.0)
        receivers = xp.where(r < UNIT, cost, 0.0)
        # Rounding must not carry a mass beyond 1: acceptance is 1 minus it.
        outside = xp.minimum(xp.sum(xp.where(finite, 0.0, order.p), axis=-1), 1.0)
        return cls(
            kind,
            order,
            rejected,
            recovered,
            xp.cumulative_sum(donors, axis=-1, include_initial=True),
            xp.flip(
                xp.cumulative_sum(xp.flip(receivers, axis=-1), axis=-1, include_initial=True),
                axis=-1,
            ),
            outside,
            xp.minimum(xp.maximum(pair.total_variation, outside), 1.0),
            xp.count_nonzero(r < UNIT, axis=-1, keepdims=True),
        )

    @property
    def xp(self) -> Any:
        """The array namespace of the rows."""
        return namespace(self.total)

    @quiet()
    def at(self, mass: Array) -> Clip:
        """Return the family's point at each rejected mass of ``mass [R, J]``."""
        xp, order = namespace(mass), self.order
        in_support = xp.maximum(mass, self.outside[:, None])
        i, a, high = self._above(xp, in_support)
        j, b, low = self._below(xp, mass)
        # Two clipped groups, the untouched tokens between them, and the tokens with q = 0.
        spent = (
            self.kind.term(high, UNIT * take_rows(xp, order.lifted_from, i))
            + self.kind.term(low, UNIT * take_rows(xp, order.lifted_below, j))
            + take_rows(xp, self.donor_cost, i)
            + take_rows(xp, self.receiver_cost, j)
        )
        leaked = in_support - mass
        spent = spent + price_of(xp, leaked, self.kind.recession)
        steep = xp.where(leaked > 0, self.kind.recession, self.kind.slope(a / UNIT))
        return Clip(a, b, spent, steep - self.kind.slope(b / UNIT))

    def _above(self, xp: Any, mass: Array) -> tuple[Array, Array, Array]:
        """Return the first clipped donor i, the factor a, and a·Σ_{≥i} q."""
        order = self.order
        i = xp.maximum(search_rows(xp, self.rejected_at, -mass), self.receivers)
        kept = take_rows(xp, order.lifted_from, i)
        high = xp.maximum(take_rows(xp, order.p_from, i) - mass, 0.0)
        last = take_rows(xp, order.ratio, xp.maximum(i - 1, 0))
        a = xp.where(kept > 0, high / xp.where(kept > 0, kept, 1.0), last)
        return i, xp.maximum(a, UNIT), xp.where(kept > 0, high, 0.0)

    def _below(self, xp: Any, mass: Array) -> tuple[Array, Array, Array]:
        """Return the first receiver j that is not raised, the factor b, and b·Σ_{<j} q."""
        order = self.order
        j = xp.minimum(search_rows(xp, self.recovered_at, mass), self.receivers)
        raised = take_rows(xp, order.lifted_below, j)
        low = mass + take_rows(xp, order.p_below, j)
        first = take_rows(xp, order.ratio, xp.minimum(j, order.ratio.shape[-1] - 1))
        b = xp.where(raised > 0, low / xp.where(raised > 0, raised, 1.0), first)
        return j, xp.minimum(b, UNIT), xp.where(raised > 0, low, 0.0)

    @quiet()
    def solve(self, level: Array, *, on_support: bool = False) -> Array:
        """Return the smallest rejected mass ``[R]`` with D(m) ≤ ``level [R]``.

        Convexity gives two guaranteed sides: Newton's step from below the root stays below it, the
        chord stays above; a midpoint halves the bracket where both are slow. The side with
        D(m) ≤ level is returned. ``on_support`` never accepts a token with q = 0, at any level.
        """
        xp = namespace(level)
        level = level[:, None]
        must_stay = on_support or math.isinf(self.kind.recession)
        floor = self.outside[:, None] if must_stay else xp.zeros_like(level)
        if not on_support:
            floor = xp.where(level == math.inf, 0.0, floor)
        low, high = floor, xp.maximum(self.total[:, None], floor)
        start = self.at(low)
        spent, slope, spent_high = start.spent, start.slope, xp.zeros_like(low)
        free = spent <= level
        high = xp.where(free | (level == 0), xp.where(free, low, high), high)
        low = xp.where(free | (level == 0), high, low)
        for _ in range(SOLVER_STEPS):
            if not is_lazy(low) and bool(xp.all(high - low <= 2.0**-52 * high)):
                break
            low, high, spent, slope, spent_high = self._narrow(
                xp, level, low, high, spent, slope, spent_high
            )
        return high[:, 0]

    def _narrow(
        self,
        xp: Any,
        level: Array,
        low: Array,
        high: Array,
        spent: Array,
        slope: Array,
        spent_high: Array,
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Shrink the bracket by Newton's step, the chord and the midpoint, evaluated at once."""
        known = (spent < math.inf) & (slope > 0) & (slope < math.inf)
        newton = low + xp.where(known, (spent - level) / xp.where(known, slope, 1.0), 0.0)
        drop = xp.where(known, spent - spent_high, 1.0)
        share = xp.where(
            known & (drop > 0), (level - spent_high) / xp.where(drop > 0, drop, 1.0), 0.5
        )
        chord = high - share * (high - low)
        trial = xp.concat([newton, 0.5 * (low + high), chord], axis=-1)
        trial = xp.where(xp.isnan(trial), low, xp.clip(trial, low, high))
        point = self.at(trial)
        over = point.spent > level
        # The largest trial above the level and the smallest within it become the new ends.
        below = xp.max(xp.where(over, trial, low), axis=-1, keepdims=True)
        above = xp.min(xp.where(over, high, trial), axis=-1, keepdims=True)
        at_low = xp.argmax(xp.where(over, trial, -1.0), axis=-1, keepdims=True)
        moved = xp.any(over, axis=-1, keepdims=True)
        spent = xp.where(moved, take_rows(xp, point.spent, at_low), spent)
        slope = xp.where(moved, take_rows(xp, point.slope, at_low), slope)
        at_high = xp.argmin(xp.where(over, 2.0, trial), axis=-1, keepdims=True)
        within = xp.any(~over, axis=-1, keepdims=True)
        spent_high = xp.where(within, take_rows(xp, point.spent, at_high), spent_high)
        return below, above, spent, slope, spent_high

    @quiet()
    def law(self, mass: Array) -> OneStep:
        """Return the law clip(p, bq, aq) at the rejected mass ``[R]``, in pair coordinates."""
        xp, p, lifted = namespace(mass), self.order.p, self.order.lifted
        point = self.at(mass[:, None])
        inside = xp.minimum(xp.maximum(p, point.below * lifted), point.above * lifted)
        share = xp.clip(1.0 - mass / xp.where(self.outside > 0, self.outside, 1.0), 0.0, 1.0)
        output = xp.where((lifted == 0) & (p > 0), p * share[:, None], inside)
        return OneStep(1.0 - mass, output)


def clipped_law(pair: Pair, level: Array, kind: Divergence, *, on_support: bool = False) -> OneStep:
    """Return the best law of a prepared pair at ``level [R]`` of a divergence."""
    family: ClippedFamily = pair.cached(("frontier", kind), lambda: ClippedFamily.of(pair, kind))
    return family.law(family.solve(level, on_support=on_support))
