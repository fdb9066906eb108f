"""Figures of a table of results: every rule against the frontier, and what reading rows costs."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from sim.checks import require_between, require_count
from sim.drawing.logaxis import LogAxis
from sim.drawing.style import (
    BLACK,
    GREY,
    PALETTE,
    SHADE,
    Drawing,
    check_values,
    drawing,
)
from sim.figures.tradeoff import KIND_COLOURS, KIND_TITLES, rule_markers
from sim.tables.findings import tradeoff_finding
from sim.tables.grid import KINDS, kind_of
from sim.tables.summary import BETWEEN, FARTHER, NEARER, summarise

__all__ = ["gaps", "reads", "reads_per_token", "tradeoff"]


def tradeoff(table: pd.DataFrame, frontier: pd.DataFrame, level: float = 0.1) -> Drawing:
    """Acceptance against mean realised KL of every rule of a table of one source and pair.

    `table` and `frontier` as in sim.tables.tradeoff; the title tells what `level` nats buy. Raises
    ValueError where the table is of several pairs or empty.
    """
    require_between("level", level, 0, np.inf, open_low=True)
    _check_one_panel(table)
    finding = tradeoff_finding(summarise(table, frontier, level), level)
    figure, (ax,) = drawing(finding, 11, 6)
    scale = LogAxis.of(table["kl_output_verifier"], decades=4)
    rules = sorted(dict.fromkeys(table["rule"]), key=lambda rule: KINDS.index(kind_of(rule)))
    markers = rule_markers(rules)
    for rule in rules:
        points = table[table["rule"] == rule]
        x, _ = scale.place(points["kl_output_verifier"])
        colour = BLACK if rule == "sps" else KIND_COLOURS[kind_of(rule)]
        ax.plot(x, points["acceptance"], marker=markers[rule], color=colour, linestyle="none",
                markersize=13 if rule == "sps" else 6, markeredgecolor="white", clip_on=False,
                label=rule, zorder=5 if rule == "sps" else 4)  # fmt: skip
    scale.apply(ax)
    x = np.geomspace(scale.low, scale.high, 400)
    y = np.interp(x, frontier["level"], frontier["acceptance"])
    ax.fill_between(x, y, 1.02, color=SHADE, label="impossible")
    ax.plot(x, y, color=BLACK, linewidth=1.6, label="corpus frontier")
    ax.axvline(level, color=GREY, linewidth=0.8, linestyle="--")
    ax.set_ylim(min(0.98 * float(table["acceptance"].min()), 0.9), 1.02)
    ax.set_xlabel("mean realised KL(output‖verifier), nats")
    ax.set_ylabel("acceptance (mean over positions)")
    figure.legend(loc="outside right", frameon=False, fontsize=8.5)
    return figure


def gaps(table: pd.DataFrame, frontier: pd.DataFrame, level: float = 0.1) -> Drawing:
    """How much acceptance each rule leaves on the table at `level` nats of mean KL.

    Between two measured values the shortfall is interpolated, and a whisker goes to the most that
    it can be. Hollow bars, below the others, are rules whose values end nearer to the verifier:
    what they fall short of is the best at `level`, and how far they would come there is not known.
    `table` and `frontier` as in sim.tables.tradeoff, of one source and pair. Raises ValueError
    where no rule stays within, or the table is of several pairs.
    """
    require_between("level", level, 0, np.inf, open_low=True)
    _check_one_panel(table)
    summary = summarise(table, frontier, level).set_index("rule")
    top, rules = summary["acceptance"].iloc[0], summary.iloc[1:]
    shown = rules.dropna(subset=["acceptance"])
    if shown.empty:
        raise ValueError(f"no rule stays within {level:g} nats")
    shown = shown.assign(
        gap=(top - shown["interpolated_acceptance"]).clip(lower=0),
        most=(top - shown["acceptance"]).clip(lower=0),
        apart=shown["status"] == NEARER,
    )
    order = shown.sort_values(["apart", "gap"], ascending=False)
    finding = _gaps_finding(order, top, level, sorted(rules.index[rules["status"] == FARTHER]))
    figure, (ax,) = drawing(finding, 9.5, 0.27 * len(order) + 2.2)
    _draw_gaps(ax, order)
    ax.set_xlabel(f"acceptance below the corpus frontier at a mean KL of {level:g} nats")
    ax.set_ylabel("rule at its best value")
    ax.legend(frameon=False, fontsize=9)
    return figure


def _draw_gaps(ax: Axes, order: pd.DataFrame) -> None:
    """A bar for each rule, with what it may be at most, and the legend's handles."""
    colours = [BLACK if rule == "sps" else KIND_COLOURS[kind_of(rule)] for rule in order.index]
    faces = ["none" if hollow else colour for colour, hollow in zip(colours, order["apart"])]
    ax.barh(order.index, order["gap"], color=faces, edgecolor=colours)
    between = order[order["status"] == BETWEEN]
    ax.hlines(between.index, between["gap"], between["most"], color=GREY, linewidth=1.5)
    ends = ax.barh(order.index, order["most"], color="none")
    ax.bar_label(ends, labels=[_gap_label(row) for _, row in order.iterrows()], fontsize=8)
    ax.margins(x=0.12)
    first, kinds = order.index[0], {kind_of(rule) for rule in order.index if rule != "sps"}
    for kind in (kind for kind in KINDS if kind in kinds):
        ax.barh([first], [0], color=KIND_COLOURS[kind], label=KIND_TITLES[kind])
    if len(between):
        ax.plot([], [], color=GREY, linewidth=1.5, label="at most: between measured values")
    if order["apart"].any():
        ax.barh([first], [0], color="none", edgecolor=GREY, label="hollow: at a smaller KL")


def _gaps_finding(order: pd.DataFrame, top: float, level: float, beyond: list[str]) -> str:
    """The rules that may be the closest at the level, and which rules are not there."""
    text = f"At {level:g} nats the frontier accepts {top:.3f}"
    at, near = order[~order["apart"]].iloc[::-1], order[order["apart"]]
    if len(at):
        # What is known of a shortfall is where it lies: several may be the smallest.
        closest = at[at["gap"] <= at["most"].min()]
        verb, most = "is" if len(closest) == 1 else "are", closest["most"].max()
        text += f"; closest {verb} {' or '.join(closest.index)} (at most {most:.4f} short)"
    if "sps" in near.index:
        text += f", strict sampling, at 0 nats, is {near.loc['sps', 'gap']:.3f} short"
    others = [rule for rule in near.index if rule != "sps"]
    if others:
        text += f"; known only nearer to the verifier: {', '.join(sorted(others))}"
    return text + (f"; never that close to the verifier: {', '.join(beyond)}" if beyond else "")


def _gap_label(row: pd.Series) -> str:
    if row["status"] == NEARER:
        return f" {row['gap']:.4f}, at {_plain(row['kl_output_verifier'])} nats"
    if row["most"] - row["gap"] < 5e-5:
        return f" {row['gap']:.4f}"
    return f" {row['gap']:.4f} to {row['most']:.4f}"


def _plain(divergence: float) -> str:
    """In two digits; what is rounding is 0."""
    return f"{divergence if divergence > 1e-12 else 0:.2g}"


def _check_one_panel(table: pd.DataFrame) -> None:
    panels = table.groupby(["source", "pair", "vocab"]).ngroups
    if panels != 1:
        raise ValueError(f"the table must be of one source and pair, not of {panels}")


def reads_per_token(acceptance: ArrayLike, drafts: int, vocab: int) -> np.ndarray:
    """Probabilities that verification reads per emitted token, in rounds of `drafts` tokens.

    Each tested draft reads p_n and q_n; a rejection reads both rows, the bonus token the verifier's
    row. Drafts are accepted with probability `acceptance` in [0, 1] independently of each other.
    """
    a = np.asarray(acceptance, dtype=np.float64)
    powers = a[..., None] ** np.arange(drafts + 1)
    tested, full = powers[..., :-1].sum(axis=-1), powers[..., -1]
    return (2 * tested + (1 - full) * 2 * vocab + full * vocab) / powers.sum(axis=-1)


def reads(drafts: ArrayLike, vocab: int) -> Drawing:
    """Probabilities read per emitted token against acceptance: by need, and whole rows always.

    `drafts` are the numbers of drafted tokens of a round, one curve each. Raises ValueError for a
    number below 1 or fewer than two tokens.
    """
    lengths = check_values("drafts", drafts, 0, np.inf).astype(int)
    require_count("vocab", vocab, 2)
    a, longest = np.linspace(0, 1, 201), int(lengths.max())
    whole = (2 * longest + 1) * vocab / np.sum(0.8 ** np.arange(longest + 1))
    saving = float(whole / reads_per_token(0.8, longest, vocab))
    figure, (ax,) = drawing(
        f"Accepting reads two numbers, rejecting reads two rows of {vocab:,}: at acceptance 0.8\n"
        f"and {longest} drafts a round, reading by need takes {saving:.1f} times fewer "
        "probabilities per emitted token",
        9,
        5,
    )
    for m, colour in zip(lengths, PALETTE * 9):
        emitted = np.sum(a[:, None] ** np.arange(m + 1), axis=-1)
        ax.semilogy(a, reads_per_token(a, m, vocab), color=colour, linewidth=2,
                    label=f"m = {m} drafts, rows read by need")  # fmt: skip
        ax.semilogy(a, (2 * m + 1) * vocab / emitted, color=colour, linestyle=":",
                    label=f"m = {m} drafts, all rows read")  # fmt: skip
    ax.plot([0.8, 0.8], [whole, whole / saving], color=GREY, marker="o", markersize=4)
    ax.set_xlim(0, 1)
    ax.set_xlabel("acceptance of one draft")
    ax.set_ylabel("probabilities read per emitted token")
    ax.legend(frameon=False, fontsize=9)
    return figure
