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
from theory.pair import Pair
from theory.summand import Divergence

WORTH_MERGING = 2048  # tokens of a row; below, sorting is as fast
PER_UNIT = 128  # groups for each unit of log(p/q)
REACH = 16 * PER_UNIT  # groups on either side of p = q; the outermost hold everything beyond
OUTSIDE = 2 * REACH  # the group of the tokens with q = 0 < p

Span = tuple[int, int]  # groups from the first to the last, exclusive


def clipped_target(
    pair: Pair, level: float, kind: Divergence, *, on_support: bool = False
) -> Array:
    """Return clip(p, bq, aq) ``[R, K]`` of a pair in any order, at one level for all rows.

    It is the output of :func:`theory.clipped.clipped_law`, to rounding.
    """
    levels = pair.xp.full_like(pair.total_variation, level)
    if pair.is_sorted:
        return clipped_law(pair, levels, kind, on_support=on_support).output
    rows = _merged_targets(pair, level, kind, on_support)
    if rows is not None:
        return rows
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
    return np.stack(rows)


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
        tokens = (p, q, kind.term(p, q))
        p_in, q_in, cost_in = (np.bincount(group, values, OUTSIDE + 1) for values in tokens)
        return cls(kind, group, tokens, (p_in, q_in, cost_in))

    @quiet()
    def target(self, level: float, on_support: bool) -> Any:
        """Return the row clip(p, bq, aq) at a level, or None where merging hides its factors."""
        goal = np.array([[level]])
        bracket, guess, near_a, near_b = self._locate(goal, on_support)
        family = self._apart(near_a, near_b)
        bracket = narrowed(goal, bracket, guess, family.at(guess))
        mass = descend(family.at, goal, bracket)
        point = family.at(mass)
        group_a, group_b = _group_of(np.concatenate([point.above[0], point.below[0]])).tolist()
        if not (near_a[0] <= group_a < near_a[1] and near_b[0] <= group_b < near_b[1]):
            return None
        p, q, _ = self.tokens
        return clipped(p, q / UNIT, point, mass, family.outside)[0]

    def _locate(self, level: Any, on_support: bool) -> tuple[Bracket, Any, Span, Span]:
        """Return the bracket of the row, two masses near the solution, and the groups of a and b.

        A group is taken for one token here, which moves the solution by less than a group.
        """
        filled = (self.sums[0] > 0) | (self.sums[1] > 0)
        family = _family(self.kind, *(values[filled] for values in self.sums))
        steps = np.concatenate([-family.rejected_at, family.recovered_at], axis=-1)
        bracket = family.bracket(level, on_support)
        steps = np.clip(steps, bracket.low, bracket.high)
        close = narrowed(level, bracket, steps, family.at(steps))
        ends = np.concatenate([close.low, close.high], axis=-1)
        point = family.at(ends)
        near_a, near_b = (_span(_group_of(factors[0])) for factors in (point.above, point.below))
        around = ends * (1.0 - 1.0 / PER_UNIT, 1.0 + 1.0 / PER_UNIT)
        return bracket, np.clip(around, bracket.low, bracket.high), near_a, near_b

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
        rows = (
            np.append(one[near], [float(np.sum(all_[slice(*span)])) for span in spans])
            for one, all_ in zip(self.tokens, self.sums)
        )
        return _family(self.kind, *rows)


def _family(kind: Divergence, p: Any, q: Any, cost: Any) -> ClippedFamily:
    """Return the frontier of one row of tokens, merged or not."""
    pair = Pair.prepare(p[None], q[None], validate=False, compress=False)
    return ClippedFamily.of(pair, kind, cost[pair.token])


def _group_of(ratio: Any) -> Any:
    """Return the group of each ratio (in units of UNIT)."""
    place = np.log(ratio / UNIT)
    place *= PER_UNIT
    np.floor(np.clip(place, -REACH, REACH - 1, out=place), out=place)
    return np.where(np.isinf(ratio), OUTSIDE, place.astype(np.int64) + REACH)


def _span(groups: Any) -> Span:
    """Return the groups around some groups, without those that no finite ratio falls in."""
    return max(int(groups.min()) - 1, 0), min(int(groups.max()) + 2, OUTSIDE)
