"""The figure of rules at equal divergence: what each takes of the acceptance that can be gained."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from sim.drawing.style import BLACK, GREY, PALETTE, Drawing, drawing, fit_legend
from sim.tables.calibration import MISSED

__all__ = ["gain_shares", "round_gains"]

_MARKERS = "os^DvPX"
_LEFT = -40.0  # per cent; what lies further left is written at the edge


def gain_shares(table: pd.DataFrame) -> Drawing:
    """Share of the possible gain over strict sampling, one panel per setting, one row per rule.

    The share is (acceptance − strict)/(best − strict), best being the most that any rule accepts at
    the same divergence. `table` has one row per draft, setting and rule, with the columns draft,
    settings, rule, share, status, js and kl_output_verifier. Filled: calibrated to one divergence;
    hollow: a rule with no value that near to the verifier, at its nearest one. Rules are in the
    order of their mean share where they were calibrated; those that nowhere come near stand at the
    bottom. Raises ValueError for a table without any share.
    """
    table = table.dropna(subset=["share"])
    if table.empty:
        raise ValueError("the table has no share to draw")
    rules = _order(table)
    settings, drafts = table["settings"].unique(), table["draft"].unique()
    width = 5.2 * len(settings) + 1.6
    figure, axes = drawing(_finding(table), width, 0.3 * len(rules) + 2.3, len(settings))
    for ax, setting in zip(axes, settings):
        rows = table[table["settings"] == setting]
        for place, draft in enumerate(drafts):
            _dots(ax, rows[rows["draft"] == draft], rules, place)
        _off_the_picture(ax, rows, rules)
        _dress(ax, setting, rows, rules)
    handles = _legend(drafts)
    labels = [str(handle.get_label()) for handle in handles]
    fit_legend(figure, handles, labels, loc="outside lower center", fontsize=9)
    return figure


def _order(table: pd.DataFrame) -> list[str]:
    """Rules from the bottom upwards."""
    near = table["share"].where(table["status"] != MISSED)
    means = near.groupby(table["rule"]).mean()
    return list(means.sort_values(na_position="first").index)


def _finding(table: pd.DataFrame) -> str:
    """The best rules, and those that accept less than strict sampling, in words."""
    near = table[table["status"] != MISSED]
    shares = near.groupby("rule")["share"].agg(["min", "max", "mean"]).sort_values("mean")
    best = shares.iloc[::-1].query("min > 0.85")
    lost = shares.query("min < 0")
    level = f"At an equal divergence, a mean JS of {near['js'].max():.3g} nats,"
    text = f"{level} the choice of the rule decides how much is gained"
    if len(best):
        text = (
            f"{level} {', '.join(best.index)} take {100 * best['min'].min():.0f} to "
            f"{100 * best['max'].max():.0f} % of the possible gain"
        )
    return text + (f"; {', '.join(lost.index)} can accept less than sps" if len(lost) else "")


def _dots(ax: Axes, rows: pd.DataFrame, rules: Sequence[str], place: int) -> None:
    """The shares of one draft; those left of the picture stand at its edge."""
    colour, marker = PALETTE[place % len(PALETTE)], _MARKERS[place % len(_MARKERS)]
    lines = {rule: line for line, rule in enumerate(rules)}
    for _, row in rows.iterrows():
        share, line = 100 * row["share"], lines[row["rule"]] + 0.22 * (1 - place)
        face = "none" if row["status"] == MISSED else colour
        ax.plot(max(share, _LEFT), line, marker, color=colour, markerfacecolor=face, markersize=6)


def _off_the_picture(ax: Axes, rows: pd.DataFrame, rules: Sequence[str]) -> None:
    """Write the shares that lie left of the picture beside its edge."""
    for line, rule in enumerate(rules):
        shares = 100 * rows.loc[rows["rule"] == rule, "share"]
        told = ", ".join(f"{share:.0f}".replace("-", "−") for share in shares[shares < _LEFT])
        if told:
            ax.text(_LEFT + 3, line, f"← {told} %", fontsize=8, va="center")


def _dress(ax: Axes, setting: str, rows: pd.DataFrame, rules: Sequence[str]) -> None:
    for share, text in ((0, "sps"), (100, "best possible")):
        ax.axvline(share, color=BLACK, linewidth=1)
        ax.text(share, len(rules) - 0.4, text, ha="center", va="bottom", fontsize=9)
    ax.set_title(setting, fontsize=10, pad=18)
    ax.set_xlim(_LEFT - 4, 106)
    ax.set_ylim(-0.6, len(rules) - 0.4)
    leaks = set(rows.loc[np.isinf(rows["kl_output_verifier"]), "rule"])
    names = [f"{rule} (KL = ∞)" if rule in leaks else rule for rule in rules]
    ax.set_yticks(range(len(rules)), names, fontsize=9)
    ax.set_xlabel("share of the acceptance that can be gained over sps, %")
    ax.set_ylabel("rule")


def _legend(drafts: Sequence[str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=PALETTE[k % len(PALETTE)], marker=_MARKERS[k % len(_MARKERS)],
               linestyle="none", label=draft)
        for k, draft in enumerate(drafts)
    ]  # fmt: skip
    hollow = Line2D(
        [],
        [],
        color=GREY,
        marker="o",
        markerfacecolor="none",
        linestyle="none",
        label="hollow: never that near to the verifier; share where it is nearest",
    )
    return [*handles, hollow]


def round_gains(table: pd.DataFrame) -> Drawing:
    """More tokens a round at the same divergence: one panel per setting, one row per way.

    `table` has the columns draft, settings, target, way, gain and error (shares). Filled: at the
    largest target; hollow: at the smallest. Bars are one standard error. Raises ValueError for a
    table without rows.
    """
    if table.empty:
        raise ValueError("the table has no gain to draw")
    ways = list(dict.fromkeys(table["way"]))[::-1]
    settings, drafts = list(table["settings"].unique()), list(table["draft"].unique())
    low, high = table["target"].min(), table["target"].max()
    title = _gain_finding(table, high)
    figure, axes = drawing(title, 5.2 * len(settings) + 1.6, 0.42 * len(ways) + 2.6, len(settings))
    for ax, setting in zip(axes, settings):
        rows = table[table["settings"] == setting]
        for place, draft in enumerate(drafts):
            _gain_dots(ax, rows[rows["draft"] == draft], ways, place, high)
        ax.axvline(0, color=BLACK, linewidth=1)
        ax.set_title(setting, fontsize=10)
        ax.set_yticks(range(len(ways)), ways, fontsize=9)
        ax.set_ylim(-0.6, len(ways) - 0.4)
        ax.set_xlabel("more tokens a round, %")
        ax.grid(axis="x", color="#eeeeee", zorder=0)
    axes[0].set_ylabel("way")
    handles = [
        *_legend(drafts)[:-1],
        Line2D([], [], color=GREY, marker="o", linestyle="none", label=f"at {high:g} nats a token"),
        Line2D([], [], color=GREY, marker="o", markerfacecolor="none", linestyle="none",
               label="without loss" if low == 0 else f"at {low:g} nats a token"),
    ]  # fmt: skip
    fit_legend(figure, handles, [str(h.get_label()) for h in handles], loc="outside lower center",
               fontsize=9)  # fmt: skip
    return figure


def _gain_finding(table: pd.DataFrame, target: float) -> str:
    """What blocks and candidates bring at the largest target, in words."""
    near = table[table["target"] == target]
    told = []
    for way, verb in (("blocks", "blocks bring"), ("2 candidates", "two candidates")):
        shares = 100 * near.loc[near["way"] == way, "gain"]
        if len(shares):
            told.append(f"{verb} {shares.min():.0f} to {shares.max():.0f} %")
    if not told:
        return f"More tokens a round at {target:g} nats a token"
    return (
        f"At {target:g} nats a token {', '.join(told)} more tokens a round\n"
        "than one candidate, token by token"
    )


def _gain_dots(
    ax: Axes, rows: pd.DataFrame, ways: Sequence[str], place: int, target: float
) -> None:
    colour, marker = PALETTE[place % len(PALETTE)], _MARKERS[place % len(_MARKERS)]
    for _, row in rows.iterrows():
        line = ways.index(row["way"]) + 0.22 * (1 - place)
        face = colour if row["target"] == target else "none"
        ax.errorbar(100 * row["gain"], line, xerr=100 * row["error"], color=colour, marker=marker,
                    markerfacecolor=face, markersize=6, linestyle="none", linewidth=1)  # fmt: skip
