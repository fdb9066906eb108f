r"""The clipped law of a long row without sorting it.

A point clip(p, bq, aq) of the frontier is decided by the tokens whose ratio p/q lies near one of
its two factors; of all others only sums count. So tokens of like ratio are merged: their sums
locate both factors to a group, and a row in which only the tokens near them stand alone has the
same frontier as the whole row as long as no factor falls inside a merged token. That is checked,
and where it fails the row is sorted after all. The sums alone tell of most tokens that are kept
whole that they are.

It costs a few passes over the vocabulary, where a sort and its running sums cost many; the decoder,
which asks for one law of one row at a time, waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import UNIT, Array, quiet, ratio_of, take_rows
from theory.divergences.summand import Divergence
from theory.frontier.bracket import descend, narrowed, straight
from theory.frontier.clipped import ClippedFamily, clipped, clipped_law
from theory.pair import Pair, RatioOrder

WORTH_MERGING = 2048  # tokens of a row; below, sorting is as fast
DIGITS = 6  # binary ones that the ratios of a group share, after the first
PER_OCTAVE = 1 << DIGITS
REACH = 24 * PER_OCTAVE  # groups on either side of p = q; the outermost hold everything beyond
OUTSIDE = 2 * REACH  # the group of the tokens with q = 0 < p
SHIFT = 52 - DIGITS  # behind the exponent and the first digits of a float64
FIRST = (int(np.float64(UNIT).view(np.int64)) >> SHIFT) - REACH
# The ratio at which each group starts; the outermost take in everything beyond.
EDGES = ((np.arange(OUTSIDE + 1) + FIRST) << SHIFT).view(np.float64)
EDGES[[0, OUTSIDE]] = 0.0, math.inf
NEAR = 0.05  # how close to a solution a guess is believed to be, as a share of its bracket

Span = tuple[int, int]  # groups from the first to the last, exclusive


def clipped_target(
    pair: Pair, level: float, kind: Divergence, *, on_support: bool = False
) -> Array:
    """Return clip(p, bq, aq) ``[R, K]`` of a pair in any order, at one level for all rows.

    It is the output of :func:`theory.frontier.clipped.clipped_law`, to rounding.
    """
    rows = [row.target(on_support) for row in _merged_rows(pair, level, kind)]
    if rows and all(row is not None for row in rows):
        return rows[0][None] if len(rows) == 1 else np.stack(rows)
    levels = pair.xp.full_like(pair.total_variation, level)
    if pair.is_sorted:
        return clipped_law(pair, levels, kind, on_support=on_support).output
    ordered, back = pair.sorted_by_ratio()
    return back(clipped_law(ordered, levels, kind, on_support=on_support).output)


def surely_kept(pair: Pair, candidate: Array, level: float, kind: Divergence) -> bool:
    """Return whether each row of merged tokens shows that p ≤ aq at its candidate ``[R]``.

    Then the target is at least p there. False says nothing: it holds where rows are not merged.
    """
    rows = _merged_rows(pair, level, kind)
    if not rows:
        return False
    p, q = (take_rows(pair.xp, side, candidate[:, None])[:, 0] for side in (pair.p, pair.q))
    least = np.array([row.place.above for row in rows])
    return bool(np.all((q > 0) & (ratio_of(np, p, q) <= least)))


def _merged_rows(pair: Pair, level: float, kind: Divergence) -> list[Merged]:
    """Return the rows, merged, or none where sorting is as fast."""
    short = pair.p.shape[-1] < WORTH_MERGING
    if short or pair.is_sorted or not isinstance(pair.p, np.ndarray):
        return []
    rows: list[Merged] = pair.cached(
        ("merged", kind, level),
        lambda: [Merged.of(p, q, kind, level) for p, q in zip(pair.p, pair.q)],
    )
    return rows


class Located(NamedTuple):
    """Where the frontier of a row meets a level, to a group."""

    above: float  # a lower bound of a, in units of UNIT
    masses: Any  # [1, J], rejected masses around the solution
    near_a: Span
    near_b: Span


@dataclass(frozen=True, eq=False)
class Merged:
    """One row ``[K]`` in groups of like ratio, ascending; group REACH starts at p = q."""

    kind: Divergence
    level: float
    group: Any
    tokens: tuple[Any, Any, Any]  # p, q and q f̃(p/q) of each token
    sums: tuple[Any, Any, Any]  # the same of each group

    @classmethod
    @quiet()
    def of(cls, p: Any, q: Any, kind: Divergence, level: float) -> Merged:
        """Group the tokens of a row."""
        group = _group_of(ratio_of(np, p, q))
        tokens = (p, q, kind.rough_term(p, q))
        p_in, q_in, cost_in = (np.bincount(group, values, OUTSIDE + 1) for values in tokens)
        # The groups are compared more often than counted, and short integers compare faster.
        return cls(kind, level, group.astype(np.int16), tokens, (p_in, q_in, cost_in))

    @quiet()
    def target(self, on_support: bool) -> Any:
        """Return the row clip(p, bq, aq), or None where merging hides its factors."""
        place = self.place
        family, lacking = self._apart(place.near_a, place.near_b)
        goal = np.array([[max(self.level - lacking, 0.0)]])
        bracket = family.bracket(goal, on_support)
        around = np.clip(place.masses, bracket.low, bracket.high)
        mass = descend(family.at, goal, narrowed(goal, bracket, around, family.at(around)))
        above, below = family.factors(mass)
        group_a, group_b = _group_of(np.concatenate([above[0], below[0]])).tolist()
        (first_a, last_a), (first_b, last_b) = place.near_a, place.near_b
        if not (first_a <= group_a < last_a and first_b <= group_b < last_b):
            return None
        p, q, _ = self.tokens
        return clipped(p, q / UNIT, above, below, 1.0 - mass / family.outside)[0]

    @cached_property
    @quiet()
    def place(self) -> Located:
        """Where the level lies among the divergences with a at each edge between two groups.

        An edge cuts no group, so that the sums of the groups say exactly what is rejected with a
        there, and what that costs the donors. The receivers' cost is convex in the mass that they
        take: between two edges it lies below the chord. So the divergence found is never too small,
        and a is at least the last edge that is within the level.
        """
        taken, raised = self._receivers()
        rejected, spent = self._donors()
        # Behind the last edge the tokens with q = 0 are accepted too, at a price not known here.
        spent = np.append(spent + np.interp(rejected, taken, raised), math.nan)
        rejected = np.append(rejected, 0.0)
        behind = max(int((~(spent <= self.level)).argmax()), 1)
        ends = [behind, behind - 1]
        b_low, b_high = np.searchsorted(taken, rejected[ends], side="right").tolist()
        lowest, highest = self._outermost()
        near_a = min(REACH + behind - 1, highest) - 1, min(REACH + behind + 1, OUTSIDE)
        near_b = max(b_low - 2, 0), max(b_high, lowest + 1) + 1
        above = float(EDGES[REACH + behind - 1])
        return Located(above, _between(self.level, rejected[ends], spent[ends]), near_a, near_b)

    def _outermost(self) -> tuple[int, int]:
        """Return the first and the last group of finite ratio that holds a token."""
        filled = np.flatnonzero((self.sums[0] + self.sums[1])[:OUTSIDE])
        return int(filled[0]), int(filled[-1])

    def _donors(self) -> tuple[Any, Any]:
        """Return Σ(p − aq)₊ and the donors' cost with a at each edge from p = q to infinity."""
        p, q, cost = (values[REACH:] for values in self.sums)
        p_from, q_from = (np.cumsum(values[::-1])[::-1] for values in (p, q))
        clipped_cost = _prices(self.kind)[REACH:] * q_from
        clipped_cost[1:] += np.cumsum(cost[:-1])
        p_from[:-1] -= EDGES[REACH:OUTSIDE] / UNIT * q_from[:-1]
        return p_from, clipped_cost

    def _receivers(self) -> tuple[Any, Any]:
        """Return Σ(bq − p)₊ and the receivers' cost with b at each edge from zero to p = q."""
        p, q, cost = (values[:REACH] for values in self.sums)
        p_below, q_below = (np.append(0.0, np.cumsum(values)) for values in (p, q))
        raised_cost = _prices(self.kind)[: REACH + 1] * q_below
        raised_cost[:-1] += np.cumsum(cost[::-1])[::-1]
        return EDGES[: REACH + 1] / UNIT * q_below - p_below, raised_cost

    def _apart(self, near_a: Span, near_b: Span) -> tuple[ClippedFamily, float]:
        """Return the frontier of a row in which only some groups stand alone, and what it lacks.

        A merged token costs less than its parts do. Those that no factor touches lack the same at
        every point; added to the level, not to a token, the cost of the row stays convex.
        """
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
        rest_p, rest_q, rest_cost = (
            np.array([np.sum(values[slice(*span)]) for span in spans]) for values in self.sums
        )
        merged_cost = self.kind.term(rest_p, rest_q)
        p, q, cost = (
            np.append(one[alone], rest)
            for one, rest in zip(self.tokens, (rest_p, rest_q, merged_cost))
        )
        lacking = float(np.sum(rest_cost[1:3]) - np.sum(merged_cost[1:3]))
        return _family(self.kind, p, q, cost), lacking


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


def _between(level: float, mass: Any, spent: Any) -> Any:
    """Return four masses ``[1, 4]`` around the solution between two, by √D ≈ s − tm."""
    (low, high), roots = mass, np.sqrt(spent)
    width, middle = high - low, straight(math.sqrt(level), *mass, *roots)
    masses = np.array([[low - 0.5 * width, middle - NEAR * width, middle + NEAR * width, high]])
    return np.where(np.isnan(masses), high, masses)  # where the root of the cost says nothing


@cache
def _prices(kind: Divergence) -> Any:
    """Return f̃ at each edge, and 0 at both ends, where no token is."""
    with quiet():
        prices = kind.value(EDGES[:OUTSIDE] / UNIT)
    return np.concatenate([[0.0], prices[1:], [0.0]])
