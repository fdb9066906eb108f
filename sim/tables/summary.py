"""A table in a few numbers and sentences: what each rule accepts within a given divergence."""

import numpy as np
import pandas as pd

__all__ = ["FRONTIER", "LEVEL", "MEAN", "amplification_finding", "summarise", "tradeoff_finding"]

LEVEL = 0.1  # nats, mean KL(output‖verifier)
FRONTIER = "best possible"
MEAN = "mean"
_PANEL = ["source", "pair", "vocab"]
_HEADLINE = ("lenience", "cactus", "interpolation", "sps")


def summarise(table: pd.DataFrame, frontier: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """The best mean acceptance of each rule within a mean KL(output‖verifier) of `level` nats.

    One row per rule, the frontier first, one column per panel. Panels of several sources, or one
    panel, have a column with their mean; sampling settings of one source are not averaged. Between
    two values of its parameter a rule is credited with the line that joins them: tossing a coin
    between the two at each position accepts that much and, KL being convex, diverges no more. nan
    where every value of the rule diverges more.
    """
    columns, names = {}, _panel_names(table)
    for key, rows in table.groupby(_PANEL, sort=False):
        curve = frontier[(frontier[_PANEL] == list(key)).all(axis=1)]
        # In √level the frontier is nearly straight, so that its chords do not fall below it.
        best = {FRONTIER: _within(curve["level"] ** 0.5, curve["acceptance"], level**0.5)}
        for rule, points in rows.groupby("rule", sort=False):
            best[rule] = _within(points["kl_output_verifier"], points["acceptance"], level)
        columns[names[key]] = pd.Series(best)
    summary = pd.DataFrame(columns)
    if len(columns) == 1 or table["source"].nunique() > 1:
        summary[MEAN] = summary.mean(axis=1, skipna=False)
    return summary.rename_axis(index="rule")


def _panel_names(table: pd.DataFrame) -> dict[tuple[str, str, int], str]:
    """A name for each panel, made of what tells it from the others; the source if nothing does."""
    one = table["source"].nunique() == 1
    varied = table.groupby("source")[["pair", "vocab"]].nunique().max() > 1
    names = {}
    for key in table[_PANEL].drop_duplicates().itertuples(index=False, name=None):
        source, pair, vocab = key
        parts = {"pair": pair, "vocab": f"V={vocab}"}
        told = ", ".join(part for column, part in parts.items() if varied[column])
        names[key] = source if not told else told if one else f"{source} ({told})"
    return names


def tradeoff_finding(summary: pd.DataFrame, level: float = LEVEL) -> str:
    """The summary in one sentence, with a line for each panel where these have no mean."""
    within = f"Within {level:g} nats of the verifier no rule can accept more than"
    if MEAN not in summary:
        lines = (_most(best, f"{name}: {{:.3f}}; ") for name, best in summary.items())
        return "\n".join([f"{within} this share of the drafts", *lines])
    average = ", on average over the panels" if summary.shape[1] > 2 else ""
    return _most(summary[MEAN], f"{within} {{:.3f}} of the drafts{average}:\n")


def _most(best: pd.Series, lead: str) -> str:
    """The frontier in its place in `lead`, and behind it the rules of the headline, if any."""
    told = [rule for rule in _HEADLINE if rule in best.index and np.isfinite(best[rule])]
    rules = ", ".join(f"{rule} {best[rule]:.3f}" for rule in told)
    return (lead.format(best[FRONTIER]) + rules).rstrip(":; \n")


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


def _within(divergence: pd.Series, acceptance: pd.Series, level: float) -> float:
    """Acceptance at `level` on the broken line through the points; nan left of all of them."""
    order = np.argsort(divergence.to_numpy(), kind="stable")
    x, y = divergence.to_numpy()[order], acceptance.to_numpy()[order]
    finite = np.isfinite(x)
    # A rule that accepts less at a larger divergence is used at the smaller one.
    x, y = x[finite], np.maximum.accumulate(y[finite])
    if x.size == 0 or level < x[0]:
        return float("nan")
    return float(np.interp(level, x, y))
