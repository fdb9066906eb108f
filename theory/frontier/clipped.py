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

from theory.arrays import (
    UNIT,
    Array,
    device_of,
    free_to_ask,
    namespace,
    quiet,
    search_rows,
    take_rows,
)
from theory.divergences.summand import Divergence, price_of
from theory.frontier.bracket import Bracket, descend
from theory.law import OneStep, as_probability
from theory.pair import Pair, RatioOrder, running_sums, suffix_sums

BITS, AT_ONCE = 45, 3  # of a rejected mass by its slope; bits that one step finds
FEW = 8  # slopes up to which a step finds so many: more calls cost more than more masses


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
    def of(cls, pair: Pair, kind: Divergence) -> ClippedFamily:
        """Collect the breakpoints and running costs of a pair in O(K) after its sort."""
        return cls.ordered(pair.order, kind, kind.term(pair.p, pair.q), pair.total_variation)

    @classmethod
    @quiet()
    def ordered(
        cls, order: RatioOrder, kind: Divergence, cost: Array, distance: Array
    ) -> ClippedFamily:
        """Do the same for rows in order, of which q f̃(p/q) ``[R, K]`` and TV ``[R]`` are known."""
        xp, r = namespace(cost), order.ratio
        finite = r < math.inf
        safe = xp.where(finite, r, 0.0)
        rejected = xp.where(
            finite, safe * order.lifted_from[:, :-1] - order.p_from[:, :-1], math.inf
        )
        recovered = xp.where(
            finite, safe * order.lifted_below[:, :-1] - order.p_below[:, :-1], math.inf
        )
        donors = xp.where(finite & (r > UNIT), cost, 0.0)
        receivers = xp.where(r < UNIT, cost, 0.0)
        # Rounding must not carry a mass beyond 1: acceptance is 1 minus it.
        outside = xp.minimum(xp.sum(xp.where(finite, 0.0, order.p), axis=-1), 1.0)
        return cls(
            kind,
            order,
            rejected,
            recovered,
            running_sums(xp, donors),
            suffix_sums(xp, receivers),
            outside,
            xp.minimum(xp.maximum(distance, outside), 1.0),
            xp.count_nonzero(r < UNIT, axis=-1, keepdims=True),
        )

    @property
    def xp(self) -> Any:
        """The array namespace of the rows."""
        return namespace(self.total)

    @quiet()
    def at(self, mass: Array) -> Clip:
        """Return the family's point at each rejected mass of ``mass [R, J]``."""
        xp, kind, count = namespace(mass), self.kind, mass.shape[-1]
        in_support = xp.maximum(mass, self.outside[:, None])
        i, a, high, above = self._above(xp, in_support)
        j, b, low, below = self._below(xp, mass)
        # Two clipped groups, the untouched tokens between them, and the tokens with q = 0. One call
        # for both groups: on short rows the calls are what takes time.
        groups = kind.term(xp.concat([high, low], axis=-1), xp.concat([above, below], axis=-1))
        spent = (
            (groups[:, :count] + groups[:, count:])
            + take_rows(xp, self.donor_cost, i)
            + take_rows(xp, self.receiver_cost, j)
        )
        leaked = in_support - mass
        spent = spent + price_of(xp, leaked, kind.recession)
        slopes = kind.slope(xp.concat([a, b], axis=-1) / UNIT)
        steep = xp.where(leaked > 0, kind.recession, slopes[:, :count])
        return Clip(a, b, spent, steep - slopes[:, count:])

    def _above(self, xp: Any, mass: Array) -> tuple[Array, Array, Array, Array]:
        """Return the first clipped donor i, the factor a, a·Σ_{≥i} q and Σ_{≥i} q."""
        order = self.order
        i = xp.maximum(search_rows(xp, self.rejected_at, -mass), self.receivers)
        kept = take_rows(xp, order.lifted_from, i)
        # With a ≥ 1 no less is kept, whatever the difference rounds to where TV(p, q) is near 1.
        high = xp.maximum(take_rows(xp, order.p_from, i) - mass, UNIT * kept)
        last = take_rows(xp, order.ratio, xp.maximum(i - 1, 0))
        a = xp.where(kept > 0, high / xp.where(kept > 0, kept, 1.0), last)
        return i, xp.maximum(a, UNIT), xp.where(kept > 0, high, 0.0), UNIT * kept

    def _below(self, xp: Any, mass: Array) -> tuple[Array, Array, Array, Array]:
        """Return the first receiver j that is not raised, the factor b, b·Σ_{<j} q and Σ_{<j} q."""
        order = self.order
        j = xp.minimum(search_rows(xp, self.recovered_at, mass), self.receivers)
        raised = take_rows(xp, order.lifted_below, j)
        low = xp.minimum(mass + take_rows(xp, order.p_below, j), UNIT * raised)
        first = take_rows(xp, order.ratio, xp.minimum(j, order.ratio.shape[-1] - 1))
        b = xp.where(raised > 0, low / xp.where(raised > 0, raised, 1.0), first)
        return j, xp.minimum(b, UNIT), xp.where(raised > 0, low, 0.0), UNIT * raised

    @quiet()
    def solve(self, level: Array, *, on_support: bool = False) -> Array:
        """Return the smallest rejected mass ``[R]`` with D(m) ≤ ``level [R]``.

        ``on_support`` never accepts a token with q = 0, at any level.
        """
        level = level[:, None]
        return descend(self.at, level, self.bracket(level, on_support))[:, 0]

    @quiet()
    def mass_at(self, slopes: Array) -> Array:
        """Return, ``[R, J]``, the smallest rejected mass at which −D′(m) is at most each slope.

        These are the points of one multiplier μ = f′(a) − f′(b) for all rows (claim 17).
        """
        xp, total = self.xp, self.total
        low = self.outside if math.isinf(self.kind.recession) else 0.0 * self.outside
        low = xp.broadcast_to(low[:, None], (total.shape[0], slopes.shape[0]))
        high = xp.broadcast_to(xp.maximum(total[:, None], low[:, :1]), low.shape)
        # Where even the first unit of acceptance is worth its price, everything is accepted.
        high = xp.where(self._slopes(low) <= slopes, low, high)
        bits = AT_ONCE if slopes.shape[0] <= FEW else 1
        inner = xp.arange(1, 2**bits, dtype=low.dtype, device=device_of(low)) / 2**bits
        for _ in range(BITS // bits):
            width = high - low
            trial = low[:, :, None] + width[:, :, None] * inner
            rows, columns, points = trial.shape
            flat = self._slopes(xp.reshape(trial, (rows, columns * points)))
            steep = xp.reshape(flat, trial.shape) > slopes[:, None]
            # The slope falls: the steep ones are the first.
            first = xp.astype(xp.count_nonzero(steep, axis=-1), low.dtype)
            low = low + width * (first / 2**bits)
            high = xp.where(first < 2**bits - 1, low + width / 2**bits, high)
        return high

    def _slopes(self, mass: Array) -> Array:
        """Return −D′ at each rejected mass of ``mass [R, J]``, none of them below that of `at`."""
        xp = namespace(mass)
        above, below = self.factors(mass)
        steep, flat = self.kind.slope(above / UNIT), self.kind.slope(below / UNIT)
        leaked = self.outside[:, None] > mass
        return xp.where(leaked, self.kind.recession, steep) - flat

    @quiet()
    def bracket(self, level: Array, on_support: bool) -> Bracket:
        """Return the ends of the family around the mass of each ``level [R, 1]``."""
        xp = namespace(level)
        must_stay = on_support or math.isinf(self.kind.recession)
        floor = self.outside[:, None] if must_stay else xp.zeros_like(level)
        if not on_support:
            floor = xp.where(level == math.inf, 0.0, floor)
        start = self.at(floor)
        free = start.spent <= level
        total = xp.maximum(self.total[:, None], floor)
        low = xp.where(~free & (level == 0), total, floor)
        high = xp.where(free, floor, total)
        return Bracket(low, high, start.spent, start.slope, xp.zeros_like(low))

    @quiet()
    def law(self, mass: Array) -> OneStep:
        """Return the law clip(p, bq, aq) at the rejected mass ``[R]``, in pair coordinates."""
        xp = namespace(mass)
        above, below = self.factors(mass[:, None])
        p, lifted = self.order.p, self.order.lifted
        share = 1.0 - mass / xp.where(self.outside > 0, self.outside, 1.0)
        output = clipped(p, lifted, above, below, share[:, None])
        return OneStep(as_probability(xp, 1.0 - mass), output)

    def factors(self, mass: Array) -> tuple[Array, Array]:
        """Return a and b, in units of UNIT, at each rejected mass of ``mass [R, J]``."""
        xp = namespace(mass)
        above = self._above(xp, xp.maximum(mass, self.outside[:, None]))[1]
        return above, self._below(xp, mass)[1]


@quiet()
def clipped(p: Array, lifted: Array, above: Array, below: Array, share: Array) -> Array:
    """Return clip(p, bq, aq) ``[R, K]`` for tokens in any order; ``lifted`` is q/UNIT.

    Of a token with q = 0 the part ``share [R, 1]``, clipped to [0, 1], is emitted.
    """
    xp = namespace(p)
    inside = xp.minimum(xp.maximum(p, below * lifted), above * lifted)
    outside = (lifted == 0) & (p > 0)
    if free_to_ask(p) and not bool(xp.any(outside)):
        return inside
    return xp.where(outside, p * xp.clip(share, 0.0, 1.0), inside)


def clipped_law(pair: Pair, level: Array, kind: Divergence, *, on_support: bool = False) -> OneStep:
    """Return the best law of a prepared pair at ``level [R]`` of a divergence."""
    family: ClippedFamily = pair.cached(("frontier", kind), lambda: ClippedFamily.of(pair, kind))
    return family.law(family.solve(level, on_support=on_support))
