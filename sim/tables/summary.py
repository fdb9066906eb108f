"""A table in a few numbers and sentences: what each rule accepts at one divergence.

A rule is measured at the values of a grid, and no two rules are at the same divergence. So every
number here stands beside its own divergence, and says how it was come by.
"""

import math
import textwrap
from collections.abc import Iterator

import numpy as np
import pandas as pd

__all__ = [
    "AT_LEVEL",
    "BETWEEN",
    "FARTHER",
    "FRONTIER",
    "LEVEL",
    "MARKS",
    "MEAN",
    "MEASURED",
    "MIXED",
    "NEARER",
    "SUMMARY_COLUMNS",
    "amplification_finding",
    "summarise",
    "summary_table",
    "summary_text",
    "told",
    "tradeoff_finding",
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
    "kl_output_verifier",
    "best_acceptance",
    "status",
)
"""Columns of the summary, one row per panel and rule, FRONTIER first and the panel MEAN last.

acceptance: at a mean divergence of kl_output_verifier nats. best_acceptance: the most that any rule
accepts at that divergence, so that acceptance ≤ best_acceptance. status: one of the five above. For
`farther` the divergence is the smallest that was measured and the acceptances are nan; for `mixed`
all three are.
"""
MARKS = (
    "≥: at least, between two measured values; 'at': at that smaller divergence, where the "
    "measured values end or accept most; –: all of them are farther away, or the panels of a mean "
    "at different divergences."
)
_PANEL = ["source", "pair", "vocab"]
_HEADLINE = ("lenience", "cactus", "interpolation", "sps")
_ROUNDING = 1e-9
_LOSSLESS = 1e-12  # nats; a divergence below it is rounding


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
    yield _entry(FRONTIER, best.at(level), level, best.at(level), MEASURED)
    for rule, rows in points.groupby("rule", sort=False):
        accepted, divergence, status = _at(rows, best, level)
        there = math.nan if status == FARTHER else best.at(divergence)
        yield _entry(rule, accepted, divergence, there, status)


def _entry(rule: str, accepted: float, divergence: float, best: float, status: str) -> dict:
    return dict(zip(SUMMARY_COLUMNS[1:], (rule, accepted, divergence, best, status)))


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


def _at(rows: pd.DataFrame, best: _Best, level: float) -> tuple[float, float, str]:
    """Acceptance of one rule, the divergence at which it stands, and its status."""
    rows = rows.sort_values("kl_output_verifier", kind="stable")
    x, y = rows["kl_output_verifier"].to_numpy(), rows["acceptance"].to_numpy()
    within, beyond = x <= level * (1 + _ROUNDING), (x > level * (1 + _ROUNDING)) & np.isfinite(x)
    if not within.any():
        return math.nan, float(x[0]), FARTHER
    # A rule that accepts less at a larger divergence is used at the smaller one.
    own = int(np.argmax(np.where(within, y, -math.inf)))
    if beyond.any():
        share = (level - x[within, None]) / (x[beyond] - x[within, None])
        tossed = float(np.max(y[within, None] + share * (y[beyond] - y[within, None])))
        if tossed > y[own] + _ROUNDING and level > x[own] * (1 + _ROUNDING):
            return tossed, level, BETWEEN
    settled = beyond.any() or x[own] >= level * (1 - _ROUNDING)
    exhausted = y[own] >= best.at(level) - _ROUNDING
    return float(y[own]), float(x[own]), MEASURED if settled or exhausted else NEARER


def _mean(entries: pd.DataFrame, level: float) -> dict:
    """A rule's mean over the panels, where these are at one divergence."""
    told_of, divergences = set(entries["status"]), entries["kl_output_verifier"]
    means = entries["acceptance"].mean(), entries["best_acceptance"].mean()
    rule = entries["rule"].iloc[0]
    if told_of <= set(AT_LEVEL):
        place, status = level, BETWEEN if BETWEEN in told_of else MEASURED
    elif told_of == {NEARER} and np.ptp(divergences) <= _ROUNDING:
        place, status = float(divergences.max()), NEARER
    else:
        means, place, status = (math.nan, math.nan), math.nan, MIXED
    return {"panel": MEAN, **_entry(rule, means[0], place, means[1], status)}


def told(entry: pd.Series, level: float = LEVEL) -> str:
    """An entry of the summary in a few characters: 0.801, ≥ 0.801, 0.791 at 0.088, –.

    What is a lower bound is rounded down, never up.
    """
    status, divergence = entry["status"], entry["kl_output_verifier"]
    if status in (FARTHER, MIXED):
        return "–"
    if status == BETWEEN:
        return f"≥ {math.floor(1000 * entry['acceptance'] + 1e-6) / 1000:.3f}"
    if math.isclose(divergence, level, rel_tol=5e-3):
        return f"{entry['acceptance']:.3f}"
    return f"{entry['acceptance']:.3f} at {divergence if divergence > _LOSSLESS else 0:.2g}"


def summary_table(summary: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """The entries as `told`, one row per rule and one column per panel."""
    texts = summary.assign(told=[told(entry, level) for _, entry in summary.iterrows()])
    wide = texts.pivot(index="rule", columns="panel", values="told").fillna("–")
    rules, panels = summary["rule"].unique(), summary["panel"].unique()
    return wide.loc[rules, panels].rename_axis(columns=None)


def summary_text(summary: pd.DataFrame, level: float = LEVEL) -> str:
    """The summary for a terminal: a heading, the table, and what its marks mean."""
    heading = f"Acceptance at a mean KL(output‖verifier) of {level:g} nats"
    # rstrip: a column that is padded to its widest entry leaves blanks at the ends of lines.
    lines = (line.rstrip() for line in summary_table(summary, level).to_string().splitlines())
    return "\n".join([heading, "", *lines, "", *textwrap.wrap(MARKS, 100)])


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


def tradeoff_finding(summary: pd.DataFrame, level: float = LEVEL) -> str:
    """The summary in one sentence, with a line for each panel where these have no mean."""
    lead = f"At a mean KL of {level:g} nats from the verifier no rule can accept more than"
    panels = dict(list(summary.groupby("panel", sort=False)))
    if MEAN in panels or len(panels) == 1:
        best, rules = _headline(panels.get(MEAN, summary), level)
        average = ", on average over the panels" if MEAN in panels else ""
        return f"{lead} {best} of the drafts{average}:\n{rules}".rstrip(":\n")
    lines = (": ".join((name, "; ".join(_headline(entries, level)).rstrip("; ")))
             for name, entries in panels.items())  # fmt: skip
    return "\n".join([f"{lead} this share of the drafts", *lines])


def _headline(entries: pd.DataFrame, level: float) -> tuple[str, str]:
    """What is possible, and rules of the headline: those at the level, then the others."""
    entries = entries.set_index("rule")
    chosen = [(rule, entries.loc[rule]) for rule in _HEADLINE if rule in entries.index]
    at = [f"{rule} {told(entry, level)}" for rule, entry in chosen if entry["status"] in AT_LEVEL]
    near = [f"{rule} {told(entry, level)}" for rule, entry in chosen if entry["status"] == NEARER]
    parts = [", ".join(at), "nearer to it: " + ", ".join(near) + " nats" if near else ""]
    return told(entries.loc[FRONTIER], level), "; ".join(part for part in parts if part)


def amplification_finding(table: pd.DataFrame) -> str:
    """By how much the output exceeds the budget, in one sentence."""
    spent = table[(table["parameter"] == "delta") & (table["value"] > 0)]
    ratio = spent["kl_output_verifier"] / spent["value"]
    worst = {rule: ratio[spent["rule"] == rule].max() for rule in spent["rule"].unique()}
    couplings = [rule for rule in ("cactus", "cactus_exact") if rule in worst]
    if not couplings:
        return "Realised divergence against the budget δ"
    most = spent.loc[ratio[spent["rule"].isin(couplings)].idxmax()]
    text = (
        "The budget δ bounds each candidate's target, not what is emitted: "
        f"the output reaches {most['kl_output_verifier'] / most['value']:,.0f} × δ "
        f"({most['rule']}, δ = {most['value']:g})"
    )
    if "cactus_target_only" in worst:
        text += (
            ".\nAccepting with γ itself, whatever p is, makes it a bound: "
            f"at most {worst['cactus_target_only']:.2f} × δ here"
        )
    return text
