r"""The clip of a block: clip(p/s, b·q, a·q), the draft raised by what was over-supplied (claim 33).

Block verification has accepted the prefix v with A(v) = s·p(v), s ≤ 1: of the draft's row only the
share s is still to be accepted or rejected, and a target h may take p/s of a token without a
rejection. At a multiplier μ = log(a/b) the optimum of one place for KL is h = clip(p/s, b·q, a·q),
and A(vy) = A(v)·min(p/s, h). With s = 1 it is the frontier's clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from theory.arrays import UNIT, Array, namespace, quiet, search_rows, take_rows
from theory.divergences import DIVERGENCES
from theory.frontier.clipped import ClippedFamily
from theory.pair import Pair, running_sums

__all__ = ["ScaledClip", "scaled_clip"]

STEPS = 60  # halvings of the recovered mass
KL = DIVERGENCES["kl"]


class ScaledClip(NamedTuple):
    """The clip at each scale and multiplier: factors a and b, and KL(h‖q) in nats; ``[R, J]``."""

    above: Array
    below: Array
    spent: Array


@quiet()
def scaled_clip(pair: Pair, scale: Array, multiplier: Array) -> ScaledClip:
    r"""Return the clip of prepared rows at scales s in (0, 1] and multipliers μ ≥ 0 of KL.

    The sums are those of the unscaled rows: with a′ = s·a and b′ = s·b, Σ h = 1 says

        Σ (p − a′q)₊ − Σ (b′q − p)₊ = 1 − s,

    and log(a′/b′) falls as the recovered mass Σ (b′q − p)₊ rises, which is halved to rounding.

    Parameters
    ----------
    pair : Pair
        R rows, prepared with ``sort=True``.
    scale, multiplier : array [R, J]
        J scales and multipliers for each row, float64.

    Returns
    -------
    ScaledClip
        Of a token with q = 0 nothing is emitted.
    """
    sums, xp = _Sums.of(pair), pair.xp
    low = xp.maximum(sums.family.outside[:, None] - (1.0 - scale), 0.0)
    high = xp.maximum(pair.order.recovered(scale * UNIT), low)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        above, below = sums.above(middle + 1.0 - scale), sums.below(middle)
        steep = xp.log(above.factor / below.factor) > multiplier
        low, high = xp.where(steep, middle, low), xp.where(steep, high, middle)
    above, below = sums.above(high + 1.0 - scale), sums.below(high)
    spent = sums.spent(above, below, scale)
    return ScaledClip(above.factor / UNIT / scale, below.factor / UNIT / scale, spent)


class _Edge(NamedTuple):
    """One clipped group: where it ends, its factor (in units of UNIT), its mass and that of q."""

    index: Array
    factor: Array
    mass: Array
    verifier: Array


@dataclass(frozen=True, eq=False)
class _Sums:
    """The running sums of a pair's rows in order, and of q·f̃(p/q)."""

    family: ClippedFamily
    costs: Array

    @classmethod
    def of(cls, pair: Pair) -> _Sums:
        sums: _Sums = pair.cached("scaled clip", lambda: cls._collect(pair))
        return sums

    @classmethod
    def _collect(cls, pair: Pair) -> _Sums:
        inside = pair.xp.where(pair.q > 0, KL.term(pair.p, pair.q), 0.0)
        return cls(ClippedFamily.of(pair, KL), running_sums(pair.xp, inside))

    def above(self, rejected: Array) -> _Edge:
        """The tokens above a′q where Σ (p − a′q)₊ is ``rejected``."""
        xp, order = namespace(rejected), self.family.order
        index = search_rows(xp, self.family.rejected_at, -rejected)
        kept = take_rows(xp, order.lifted_from, index)
        mass = xp.maximum(take_rows(xp, order.p_from, index) - rejected, 0.0)
        last = take_rows(xp, order.ratio, xp.maximum(index - 1, 0))
        factor = xp.where(kept > 0, mass / xp.where(kept > 0, kept, 1.0), last)
        return _Edge(index, factor, xp.where(kept > 0, mass, 0.0), UNIT * kept)

    def below(self, recovered: Array) -> _Edge:
        """The tokens below b′q where Σ (b′q − p)₊ is ``recovered``."""
        xp, order = namespace(recovered), self.family.order
        index = search_rows(xp, self.family.recovered_at, recovered)
        raised = take_rows(xp, order.lifted_below, index)
        mass = recovered + take_rows(xp, order.p_below, index)
        first = take_rows(xp, order.ratio, xp.minimum(index, order.ratio.shape[-1] - 1))
        factor = xp.where(raised > 0, mass / xp.where(raised > 0, raised, 1.0), first)
        return _Edge(index, factor, xp.where(raised > 0, mass, 0.0), UNIT * raised)

    def spent(self, above: _Edge, below: _Edge, scale: Array) -> Array:
        """KL(h‖q): two clipped groups, and p/s between them, q·f̃(p/(sq)) by its running sums."""
        xp, order = namespace(scale), self.family.order

        def between(sums: Any) -> Array:
            return take_rows(xp, sums, above.index) - take_rows(xp, sums, below.index)

        ends = [KL.term(edge.mass / scale, edge.verifier) for edge in (above, below)]
        cost, drafted = between(self.costs), between(order.p_below)
        verifier = UNIT * between(order.lifted_below)
        middle = (cost - verifier - xp.log(scale) * drafted) / scale + verifier
        return xp.maximum(ends[0] + ends[1] + middle, 0.0)
