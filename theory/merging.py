r"""The clipped law of a long row without sorting it.

A point clip(p, bq, aq) of the frontier is decided by the tokens whose ratio p/q lies near one of
its two factors; of all others only sums count. So tokens of like ratio are merged: a row of a few
hundred merged tokens locates both factors, and a second row, in which only the tokens near them
stand alone, has the same frontier as the whole row as long as no factor falls inside a merged
token. That is checked, and where it fails the row is sorted after all.

It costs a few passes over the vocabulary, where a sort and its running sums cost many; the decoder,
which asks for one law of one row at a time, waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.arrays import UNIT, Array, quiet, ratio_of
from theory.bracket import Bracket, descend, narrowed
from theory.clipped import ClippedFamily, clipped, clipped_law
from theory.pair import Pair, RatioOrder
from theory.summand import Divergence

WORTH_MERGING = 2048  # tokens of a row; below, sorting is as fast
DIGITS = 6  # binary ones that the ratios of a group share, after the first
PER_OCTAVE = 1 << DIGITS
REACH = 24 * PER_OCTAVE  # groups on either side of p = q; the outermost hold everything beyond
OUTSIDE = 2 * REACH  # the group of the tokens with q = 0 < p
SHIFT = 52 - DIGITS  # behind the exponent and the first digits of a float64
FIRST = (int(np.float64(UNIT).view(np.int64)) >> SHIFT) - REACH

Span = tuple[int, int]  # groups from the first to the last, exclusive


def clipped_target(
    pair: Pair, level: float, kind: Divergence, *, on_support: bool = False
) -> Array:
    """Return clip(p, bq, aq) ``[R, K]`` of a pair in any order, at one level for all rows.

    It is the output of :func:`theory.clipped.clipped_law`, to rounding.
    """
    rows = None if pair.is_sorted else _merged_targets(pair, level, kind, on_support)
    if rows is not None:
        return rows
    levels = pair.xp.full_like(pair.total_variation, level)
    if pair.is_sorted:
        return clipped_law(pair, levels, kind, on_support=on_support).output
    ordered, back = pair.sorted_by_ratio()
    return back(clipped_law(ordered, levels, kind, on_support=on_support).output)


def _merged_targets(pair: Pair, level: float, kind: Divergence, on_support: bool) -> Any:
    """Return the rows by merging, or None where sorting is as fast, or has to be."""
    worth = isinstance(pair.p, np.ndarray) and pair.p.shape[-1] >= WORTH_MERGING
    if not worth or len(pair.p) == 0:
        return None
    rows = []
    for p, q in zip(pair.p, pair.q):
        rows.append(Merged.of(p, q, kind).target(level, on_support))
        if rows[-1] is None:
            return None
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


@dataclass(frozen=True, eq=False)
class Merged:
    """One row ``[K]`` in groups of like ratio, ascending; group REACH starts at p = q."""

    kind: Divergence
    group: Any
    tokens: tuple[Any, Any, Any]  # p, q and q f̃(p/q) of each token
    sums: tuple[Any, Any, Any]  # the same of each group

    @classmethod
    @quiet()
    def of(cls, p: Any, q: Any, kind: Divergence) -> Merged:
        """Group the tokens of a row."""
        group = _group_of(ratio_of(np, p, q))
        tokens = (p, q, kind.rough_term(p, q))
        p_in, q_in, cost_in = (np.bincount(group, values, OUTSIDE + 1) for values in tokens)
        # The groups are compared more often than counted, and short integers compare faster.
        return cls(kind, group.astype(np.int16), tokens, (p_in, q_in, cost_in))

    @quiet()
    def target(self, level: float, on_support: bool) -> Any:
        """Return the row clip(p, bq, aq) at a level, or None where merging hides its factors."""
        goal = np.array([[level]])
        bracket, around, near_a, near_b = self._locate(goal, on_support)
        family = self._apart(near_a, near_b)
        mass = descend(family.at, goal, narrowed(goal, bracket, around, family.at(around)))
        above, below = family.factors(mass)
        group_a, group_b = _group_of(np.concatenate([above[0], below[0]])).tolist()
        if not (near_a[0] <= group_a < near_a[1] and near_b[0] <= group_b < near_b[1]):
            return None
        p, q, _ = self.tokens
        return clipped(p, q / UNIT, above, below, 1.0 - mass / family.outside)[0]

    def _locate(self, level: Any, on_support: bool) -> tuple[Bracket, Any, Span, Span]:
        """Return the bracket of the row, masses near the solution, and the groups of a and b.

        A group is taken for one token here, which moves the solution by less than a group.
        """
        filled = np.nonzero((self.sums[0] > 0) | (self.sums[1] > 0))[0]
        family = _family(self.kind, *(values[filled] for values in self.sums))
        bracket = family.bracket(level, on_support)
        # Everything that can be rejected, and the masses at which a donor more is clipped.
        steps = np.append(-family.rejected_at[0, family.receivers[0, 0] :], bracket.high[0])[None]
        steps = np.clip(steps, bracket.low, bracket.high)
        close = narrowed(level, bracket, steps, family.at(steps))
        factors = family.factors(np.concatenate([close.low, close.high], axis=-1))
        near_a, near_b = (_span(_group_of(factor[0])) for factor in factors)
        return bracket, _around(level, bracket, close), near_a, near_b

    def _apart(self, near_a: Span, near_b: Span) -> ClippedFamily:
        """Return the frontier of a row in which only the tokens of some groups stand alone."""
        first, last = near_b[1], max(near_a[0], near_b[1])
        middle = min(max(REACH, first), last)
        # Receivers below b, then those and the donors that neither factor touches, donors above a.
        spans = (
            *((0, near_b[0]), (first, middle), (middle, last), (near_a[1], OUTSIDE)),
            (OUTSIDE, OUTSIDE + 1),
        )
        group = self.group
        near = (group >= near_b[0]) & (group < near_a[1]) & ((group < first) | (group >= last))
        alone = np.nonzero(near)[0]
        rows = (
            np.append(one[alone], [float(np.sum(all_[slice(*span)])) for span in spans])
            for one, all_ in zip(self.tokens, self.sums)
        )
        return _family(self.kind, *rows)


def _family(kind: Divergence, p: Any, q: Any, cost: Any) -> ClippedFamily:
    """Return the frontier of one row of tokens, merged or not."""
    ratio = ratio_of(np, p, q)
    ascending = np.argsort(ratio)
    p, q, cost, ratio = (values[ascending][None] for values in (p, q, cost, ratio))
    distance = np.sum(np.maximum(p - q, 0.0), axis=-1)
    return ClippedFamily.ordered(RatioOrder(p, q / UNIT, ratio), kind, cost, distance)


def _group_of(ratio: Any) -> Any:
    """Return the group of each ratio (in units of UNIT): its exponent and first binary digits."""
    group = (ratio.view(np.int64) >> SHIFT) - FIRST
    np.clip(group, 0, OUTSIDE - 1, out=group)
    outside = np.isinf(ratio)
    if outside.any():
        group[outside] = OUTSIDE
    return group


def _around(level: Any, bracket: Bracket, close: Bracket) -> Any:
    """Return four masses around the solution, two of them close: what D(m) ≈ (s − tm)² suggests."""
    width = close.high - close.low
    root, root_high = np.sqrt(close.spent), np.sqrt(close.spent_high)
    middle = close.low + (root - np.sqrt(level)) / (root - root_high) * width
    far, near = 1.0 / PER_OCTAVE, 0.05 * width
    masses = [close.low * (1.0 - far), middle - near, middle + near, close.high * (1.0 + far)]
    around = np.concatenate(masses, axis=-1)  # NaN where the root of the cost says nothing
    return np.clip(np.where(np.isnan(around), close.high, around), bracket.low, bracket.high)


def _span(groups: Any) -> Span:
    """Return the groups around some groups, without those that no finite ratio falls in."""
    return max(int(groups.min()) - 1, 0), min(int(groups.max()) + 2, OUTSIDE)
