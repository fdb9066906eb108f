"""Which value of its parameter gives a rule a wanted divergence, or a wanted acceptance.

Nothing here knows where the numbers come from: `calibrate` is handed a function that evaluates
settings, and decides which to ask for. How a mean changes with a parameter is not taken for
granted. It may rise or fall, be flat, jump or turn round, so that a grid is evaluated first, and
the crossing of the target is looked for only between neighbours of which one meets it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from scipy.optimize import brentq

from sim.checks import require_between
from sim.tables.grid import Setting, settings
from sim.tables.target import ACCEPTANCE, ROUNDING, Point, Target
from theory import RULES

__all__ = ["MET", "MISSED", "SLACK", "TOLERANCE", "Choice", "calibrate"]

MET, SLACK, MISSED = "met", "slack", "missed"
"""The target is met and crossed just beyond; met with room by every value; met by none."""

TOLERANCE = 1e-3
_FAR = (-math.inf, 0.0, 1e-6, 1e6, math.inf)


@dataclass(frozen=True)
class Choice:
    """The value that was found, what it realises, and how far that can be relied on.

    status      : MET; SLACK where every value that was tried meets the target, so that the mean
                  does not come up to it; MISSED where none does, and the value is the nearest.
    monotone    : whether the measure only rises, or only falls, over all values that were tried.
    evaluations : how many values were tried.
    """

    setting: Setting
    point: Point
    status: str
    monotone: bool
    evaluations: int

    def sentence(self, target: Target) -> str:
        """What has to be said beside the value; "" where the target was met."""
        realised = f"{self.point.realised:.4g}"
        if self.status == MET:
            return "" if self.monotone else "not monotone: the best of the values that were tried"
        if not self.setting.parameter:
            return f"has no parameter and gives {realised}"
        if (self.status == SLACK) == (target.measure != ACCEPTANCE):
            return f"no value gives more than {realised}"
        return f"no value gives less than {realised}"


Evaluate = Callable[[Sequence[Setting]], Sequence[Point]]
"""Means of settings, in their order: any source of numbers."""


def calibrate(
    evaluate: Evaluate,
    rules: Sequence[str],
    target: Target,
    *,
    grid: Mapping[str, Sequence[float]] | None = None,
    tolerance: float = TOLERANCE,
) -> list[Choice]:
    """For each rule the laxest value of its parameter whose mean divergence is within the target.

    For a target of acceptance it is the strictest value that accepts as much. A grid of values (by
    default grid.DEFAULT_GRID) is evaluated in one call for all rules; where it lies on one side
    of the target, values far beyond it are too. Between neighbours of which one meets the target
    its crossing is found by bracketing (scipy's `brentq`, in log x where both ends are positive),
    until the realised mean meets the target within

        0 ≤ (level − realised)/level ≤ tolerance        (for a divergence),

    or the bracket is narrower than `tolerance` in log x, or than that part of its first width. A
    returned value never exceeds the target, except where its status is MISSED. Among several
    values that meet it, of a curve that turns round, the one that accepts most is taken.

    Raises ValueError for unknown rules, for values out of range and for a tolerance outside (0, 1].
    """
    require_between("tolerance", tolerance, 0.0, 1.0, open_low=True)
    scanned = settings(rules, grid)
    points = dict(zip(scanned, evaluate(scanned)))
    one_sided = [rule for rule in dict.fromkeys(rules) if not _straddles(target, points, rule)]
    far = [setting for rule in one_sided for setting in _far(rule) if setting not in points]
    points |= zip(far, evaluate(far))
    return [
        _choose(_Curve(evaluate, target, _of(points, rule)), tolerance)
        for rule in dict.fromkeys(rules)
    ]


class _Curve:
    """All values of one rule that were tried, in ascending order, with their points."""

    def __init__(self, evaluate: Evaluate, target: Target, tried: dict[Setting, Point]) -> None:
        self.target, self._evaluate, self._tried = target, evaluate, dict(tried)

    @property
    def tried(self) -> list[tuple[Setting, Point]]:
        return sorted(self._tried.items(), key=lambda item: item[0].value)

    def at(self, like: Setting, value: float) -> Point:
        """The point at a value, computed once."""
        setting = Setting(like.rule, like.parameter, value)
        if setting not in self._tried:
            self._tried[setting] = self._evaluate([setting])[0]
        return self._tried[setting]

    def brackets(self) -> Iterator[tuple[Setting, Setting]]:
        """Finite neighbours of which one meets the target and the other does not."""
        for (low, at_low), (high, at_high) in pairwise(self.tried):
            crossed = self.target.met_by(at_low) != self.target.met_by(at_high)
            if crossed and math.isfinite(low.value) and math.isfinite(high.value):
                yield low, high


def _choose(curve: _Curve, tolerance: float) -> Choice:
    target = curve.target
    for low, high in list(curve.brackets()):
        _refine(curve, low, high, tolerance)
    tried = curve.tried
    within = [item for item in tried if target.met_by(item[1])]
    if not within:
        status, chosen = MISSED, min(tried, key=lambda item: target.excess(item[1]))
    else:
        status = SLACK if len(within) == len(tried) else MET
        chosen = max(within, key=lambda item: (target.gain(item[1]), -item[1].realised))
    return Choice(*chosen, status, _monotone([p.realised for _, p in tried]), len(tried))


def _refine(curve: _Curve, low: Setting, high: Setting, tolerance: float) -> None:
    """Try values between two until the target is met closely, or the two are close."""
    whole = _counts(low)
    logarithmic = low.value > 0
    to, back = (math.log, math.exp) if logarithmic else (float, float)
    ends = {to(setting.value): setting.value for setting in (low, high)}

    def excess(x: float) -> float:
        value = ends.get(x, back(x))
        missed = curve.target.excess(curve.at(low, float(round(value)) if whole else value))
        # An inf would make the next guess nan; any large number says as much.
        return 0.0 if -tolerance <= missed <= ROUNDING else min(missed, 1.0)

    a, b = ends
    step = tolerance if logarithmic else tolerance * (b - a)
    brentq(excess, a, b, xtol=step, rtol=1e-12, disp=False)


def _counts(setting: Setting) -> bool:
    """Whether the parameter is a whole number by its declaration."""
    kinds = {field.name: field.type for field in fields(RULES[setting.rule])}
    return kinds[setting.parameter] in (int, "int")


def _of(points: Mapping[Setting, Point], rule: str) -> dict[Setting, Point]:
    return {setting: point for setting, point in points.items() if setting.rule == rule}


def _straddles(target: Target, points: Mapping[Setting, Point], rule: str) -> bool:
    return len({target.met_by(point) for point in _of(points, rule).values()}) == 2


def _far(rule: str) -> Iterator[Setting]:
    """Settings beyond the grid: those of _FAR that the rule takes."""
    for value in _FAR:
        try:
            found = settings([rule], [value])
        except ValueError:
            continue
        yield from found


def _monotone(values: Sequence[float]) -> bool:
    """Whether values only rise, or only fall, but for rounding; inf included."""
    steps = [(a, b, ROUNDING * min(a, b, 1e300)) for a, b in pairwise(values)]
    rises = all(b >= a - slack for a, b, slack in steps)
    return rises or all(b <= a + slack for a, b, slack in steps)
