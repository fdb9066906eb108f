"""The summary of a table in words: entries, tables for a terminal, titles of pictures."""

import math
import textwrap

import pandas as pd

from sim.tables.summary import AT_LEVEL, BETWEEN, FARTHER, FRONTIER, LEVEL, MEAN, MIXED, NEARER

__all__ = [
    "MARKS",
    "amplification_finding",
    "summary_table",
    "summary_text",
    "told",
    "tradeoff_finding",
]

MARKS = (
    "≥: at least, between two measured values; 'at': at that smaller divergence, where the "
    "measured values end or accept most; –: all of them are farther away, or the panels of a mean "
    "at different divergences."
)
_HEADLINE = ("lenience", "cactus", "interpolation", "sps")
_LOSSLESS = 1e-12  # nats; a divergence below it is rounding


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
