r"""Where a convex, decreasing cost D(m) falls to a level: one bracket per row, narrowed at once.

Newton's step from below never passes the root of a convex cost, and the chord between the ends is
never before it: where the two agree the root is known without being looked at.

Seven trials are evaluated together in each step: these two, a point just behind Newton's, which
closes the bracket from above where the upper end is far, and one just before the upper end, which
closes it from below where that is the root already. √D is nearly straight where D is nearly a
parabola, as every f-divergence is near its zero: there the tangent and the chord of √D are the
better guesses. The midpoint halves the bracket where none of them helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from theory.arrays import Array, is_lazy, namespace, take_rows

STEPS = 80
ROUNDING = 2.0**-50  # of the root, and of the cost
UNSEEN = 2.0**-80  # a mass that no acceptance shows: close enough to an end of infinite cost
BEHIND = 0.03  # how far behind Newton's step the next trial lies, as a share of the step


class Point(Protocol):
    """What is known at a mass: the cost and its slope −D′."""

    @property
    def spent(self) -> Array: ...
    @property
    def slope(self) -> Array: ...


class Bracket(NamedTuple):
    """Masses ``[R, 1]`` on both sides of the root, and what is known there."""

    low: Array  # D(low) > level
    high: Array  # D(high) ≤ level
    spent: Array  # D(low)
    slope: Array  # −D′(low)
    spent_high: Array  # D(high)


def descend(evaluate: Callable[[Array], Point], level: Array, bracket: Bracket) -> Array:
    """Return the smallest mass ``[R, 1]`` with D(m) ≤ ``level [R, 1]``, never below the root.

    It is off by a relative ROUNDING at most, or by what rounding the cost by as much means; by
    UNSEEN where it lies that close to a mass of infinite cost.
    """
    xp = namespace(level)
    for _ in range(STEPS):
        slope = _known_slope(xp, bracket)
        blur = _blur(xp, level, bracket, slope)
        before, behind = _tangent(xp, level, bracket, slope), _chord(xp, level, bracket)
        if not is_lazy(level) and bool(xp.all(behind - before <= blur)):
            return behind
        trial = _trials(xp, level, bracket, slope, before, behind, 0.5 * blur)
        bracket = narrowed(level, bracket, trial, evaluate(trial))
    return _chord(xp, level, bracket)


def straight(level: Any, low: Any, high: Any, at_low: Any, at_high: Any) -> Any:
    """Return where the line from (low, at_low) to (high, at_high) crosses a level, or NaN."""
    return low + (at_low - level) / (at_low - at_high) * (high - low)


def _blur(xp: Any, level: Array, bracket: Bracket, slope: Array) -> Array:
    """Return the width at which the ends of a bracket are the same number."""
    rounding = ROUNDING * (bracket.high + level / slope)
    return xp.where(bracket.spent < math.inf, rounding, xp.maximum(rounding, UNSEEN))


def _tangent(xp: Any, level: Array, bracket: Bracket, slope: Array) -> Array:
    """Return Newton's step from the lower end: never behind the root of a convex cost."""
    point = bracket.low + (bracket.spent - level) / slope
    return xp.where(xp.isnan(point), bracket.low, xp.clip(point, bracket.low, bracket.high))


def _chord(xp: Any, level: Array, bracket: Bracket) -> Array:
    """Return where the chord between the ends meets the level: never before the root."""
    low, high, spent, _, spent_high = bracket
    point = straight(level, low, high, spent, spent_high)
    return xp.where(xp.isnan(point), high, xp.clip(point, low, high))


def _known_slope(xp: Any, bracket: Bracket) -> Array:
    """Return −D′(low), or inf where D(low) or its slope says nothing."""
    known = (bracket.spent < math.inf) & (bracket.slope > 0)
    return xp.where(known, bracket.slope, math.inf)


def _trials(
    xp: Any,
    level: Array,
    bracket: Bracket,
    slope: Array,
    before: Array,
    behind: Array,
    blur: Array,
) -> Array:
    """Return the masses ``[R, 7]`` to look at next, inside the bracket."""
    low, high, spent, _, spent_high = bracket
    root, root_level, root_high = xp.sqrt(spent), xp.sqrt(level), xp.sqrt(spent_high)
    trial = xp.concat(
        [
            before,
            before + BEHIND * (before - low) + blur,
            behind,
            low + 2.0 * (root - root_level) * (root / slope),
            straight(root_level, low, high, root, root_high),
            high - blur,
            0.5 * (low + high),
        ],
        axis=-1,
    )
    return xp.where(xp.isnan(trial), low, xp.clip(trial, low, high))


def narrowed(level: Array, bracket: Bracket, trial: Array, point: Point) -> Bracket:
    """Return the bracket between the largest trial above the level and the smallest within it."""
    xp = namespace(level)
    # The upper end is within the level, whatever rounding makes of the cost there.
    over = (point.spent > level) & (trial < bracket.high)
    low = xp.max(xp.where(over, trial, bracket.low), axis=-1, keepdims=True)
    high = xp.min(xp.where(over, bracket.high, trial), axis=-1, keepdims=True)
    at_low = xp.argmax(xp.where(over, trial, -1.0), axis=-1, keepdims=True)
    at_high = xp.argmin(xp.where(over, 2.0, trial), axis=-1, keepdims=True)
    moved, within = xp.any(over, axis=-1, keepdims=True), xp.any(~over, axis=-1, keepdims=True)
    return Bracket(
        xp.minimum(low, high),  # rounding can put a trial above the level behind one within it
        high,
        xp.where(moved, take_rows(xp, point.spent, at_low), bracket.spent),
        xp.where(moved, take_rows(xp, point.slope, at_low), bracket.slope),
        xp.where(
            within, xp.minimum(take_rows(xp, point.spent, at_high), level), bracket.spent_high
        ),
    )
