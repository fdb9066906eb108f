"""A table in a few numbers: what each rule accepts at one divergence.

A rule is measured at the values of a grid, and no two rules are at the same divergence. So every
number here stands beside its own divergence, and says how it was come by.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

__all__ = [
    "AT_LEVEL",
    "BETWEEN",
    "FARTHER",
    "FRONTIER",
    "LEVEL",
    "MEAN",
    "MEASURED",
    "MIXED",
    "NEARER",
    "SUMMARY_COLUMNS",
    "summarise",
]

LEVEL = 0.1  # nats, mean KL(output‖verifier)
FRONTIER = "best possible"
MEAN = "mean"

MEASURED, BETWEEN = "measured", "between"
NEARER, FARTHER, MIXED = "nearer", "farther", "mixed"
AT_LEVEL = (MEASURED, BETWEEN)
"""The two of the five that may be compared with each other: what a rule accepts within the level.

measured: a value that was measured, and no value measured beyond the level makes more of it.
between: at the level itself, between two values that were measured. nearer: all values lie nearer
to the verifier than the level, so that the rule might accept more at it. farther: all of them
lie beyond the level. mixed: of a mean, where the panels stand at different divergences.
"""
SUMMARY_COLUMNS: tuple[str, ...] = (
    "panel",
    "rule",
    "acceptance",
    "interpolated_acceptance",
    "kl_output_verifier",
    "best_acceptance",
    "status",
)
"""Columns of the summary, one row per panel and rule, FRONTIER first and the panel MEAN last.

acceptance: at a mean divergence of kl_output_verifier nats, or more than it.
interpolated_acceptance: the same where it was measured. Between two values the shortfall below the
frontier, exact at both, is interpolated and not the acceptance, a concave curve, so that it does
not matter how far apart they are; an estimate, and no bound. best_acceptance: the most that any
rule accepts at that divergence; neither of the two is above it. status: one of the five above. For
`farther` the divergence is the smallest that was measured and acceptances are nan; for `mixed` it
is nan too.
"""
_PANEL = ["source", "pair", "vocab"]
_ROUNDING = 1e-9


def summarise(table: pd.DataFrame, frontier: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """What each rule accepts at a mean KL(output‖verifier) of `level` nats; SUMMARY_COLUMNS.

    `table` and `frontier` as in sim.tables.tradeoff. Between two measured settings (D₁, A₁) and
    (D₂, A₂) with D₁ ≤ level < D₂ a rule is credited with

        A₁ + (level − D₁)/(D₂ − D₁) · (A₂ − A₁),

    which a coin tossed between the two at each position accepts, diverging no more than `level`,
    since KL is convex. It is a lower bound: the rule itself may accept more. A rule whose values
    end before the level stands at its own divergence. Where there are several sources, a last panel
    has the means of the rules that stand at one divergence in all panels; sampling settings of
    one source are not averaged.
    """
    names = _panel_names(table)
    rows = [
        {"panel": names[key], **entry}
        for key, points in table.groupby(_PANEL, sort=False)
        for entry in _panel(points, frontier[(frontier[_PANEL] == list(key)).all(axis=1)], level)
    ]
    summary = pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))
    if len(names) == 1 or table["source"].nunique() == 1:
        return summary
    means = [_mean(group, level) for _, group in summary.groupby("rule", sort=False)]
    return pd.concat([summary, pd.DataFrame(means)], ignore_index=True)


def _panel(points: pd.DataFrame, curve: pd.DataFrame, level: float) -> Iterator[dict]:
    """The frontier and each rule of one panel."""
    best = _Best(points, curve)
    yield _entry(FRONTIER, (best.at(level),) * 2, level, best.at(level), MEASURED)
    for rule, rows in points.groupby("rule", sort=False):
        accepted, divergence, status = _at(rows, best, level)
        there = math.nan if status == FARTHER else best.at(divergence)
        yield _entry(rule, accepted, divergence, there, status)


def _entry(
    rule: str, accepted: tuple[float, float], divergence: float, best: float, status: str
) -> dict:
    return dict(zip(SUMMARY_COLUMNS[1:], (rule, *accepted, divergence, best, status)))


class _Best:
    """The corpus frontier of a panel through all points where it is known.

    A concave curve lies above the chord between two of its points and below the lines through the
    points on either side; in √level it is nearly straight, which tells where between the two. Since
    it is nowhere below a chord, no mixture of two settings can seem to accept more.
    """

    def __init__(self, points: pd.DataFrame, curve: pd.DataFrame) -> None:
        finite = points[np.isfinite(points["kl_output_verifier"])]
        levels = np.concatenate([curve["level"], finite["kl_output_verifier"]])
        values = np.concatenate([curve["acceptance"], finite["frontier_acceptance"]])
        known = pd.Series(values).groupby(np.maximum(levels, 0.0)).max().sort_index().cummax()
        self._x, self._y = known.index.to_numpy(), known.to_numpy()

    def at(self, level: float) -> float:
        x, y, level = self._x, self._y, max(level, 0.0)
        chord = float(np.interp(level, x, y))
        bent = float(np.interp(math.sqrt(level), np.sqrt(x), y))
        k = int(np.searchsorted(x, level))  # x[k − 1] < level ≤ x[k]
        sides = [(k - 2, k - 1), (k + 1, k)]
        lines = [
            y[near] + (level - x[near]) * (y[near] - y[far]) / (x[near] - x[far])
            for far, near in sides
            if min(far, near) >= 0 and max(far, near) < len(x)
        ]
        return max(chord, min([bent, *lines]))


def _at(rows: pd.DataFrame, best: _Best, level: float) -> tuple[tuple[float, float], float, str]:
    """The two acceptances of one rule, the divergence at which it stands, and its status."""
    rows = rows.sort_values("kl_output_verifier", kind="stable")
    rows = rows[np.isfinite(rows["kl_output_verifier"])]
    x, y = rows["kl_output_verifier"].to_numpy(), rows["acceptance"].to_numpy()
    within = int(np.searchsorted(x, level * (1 + _ROUNDING), side="right"))
    if within == 0:
        return (math.nan, math.nan), float(x[0]) if x.size else math.inf, FARTHER
    # A rule that accepts less at a larger divergence is used at the smaller one.
    own = int(np.argmax(y[:within]))
    if within < x.size and level > x[own] * (1 + _ROUNDING):
        share = (level - x[:within, None]) / (x[within:] - x[:within, None])
        tossed = float(np.max(y[:within, None] + share * (y[within:] - y[:within, None])))
        if tossed > y[own] + _ROUNDING:
            short = (rows["frontier_acceptance"] - rows["acceptance"]).to_numpy()[within - 1 :][:2]
            likely = best.at(level) - (short[0] + share[-1, 0] * (short[1] - short[0]))
            return (tossed, max(tossed, min(float(likely), best.at(level)))), level, BETWEEN
    settled = within < x.size or x[own] >= level * (1 - _ROUNDING)
    exhausted = y[own] >= best.at(level) - _ROUNDING
    status = MEASURED if settled or exhausted else NEARER
    return (float(y[own]),) * 2, float(x[own]), status


def _mean(entries: pd.DataFrame, level: float) -> dict:
    """A rule's mean over the panels, where these are at one divergence."""
    told_of, divergences = set(entries["status"]), entries["kl_output_verifier"]
    columns = ["acceptance", "interpolated_acceptance", "best_acceptance"]
    *accepted, best = entries[columns].mean()
    rule = entries["rule"].iloc[0]
    if told_of <= set(AT_LEVEL):
        place, status = level, BETWEEN if BETWEEN in told_of else MEASURED
    elif told_of == {NEARER} and np.ptp(divergences) <= _ROUNDING:
        place, status = float(divergences.max()), NEARER
    else:
        accepted, best, place, status = [math.nan] * 2, math.nan, math.nan, MIXED
    return {"panel": MEAN, **_entry(rule, tuple(accepted), place, best, status)}


def _panel_names(table: pd.DataFrame) -> dict[tuple[str, str, int], str]:
    """A name for each panel, made of what tells it from the others; the source if nothing does."""
    one = table["source"].nunique() == 1
    varied = table.groupby("source")[["pair", "vocab"]].nunique().max() > 1
    names = {}
    for key in table[_PANEL].drop_duplicates().itertuples(index=False, name=None):
        source, pair, vocab = key
        parts = {"pair": pair, "vocab": f"V={vocab}"}
        apart = ", ".join(part for column, part in parts.items() if varied[column])
        names[key] = source if not apart else apart if one else f"{source} ({apart})"
    return names
