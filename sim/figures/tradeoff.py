"""Two pictures of a table: acceptance against divergence, and realised divergence against budget.

Drawn on bare `Figure` objects, without pyplot and its global state, so that they work in any
process and without a display. Colours are those of Okabe and Ito, which stay apart for colour-blind
eyes; markers differ too, so that nothing rests on colour alone.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sim.drawing.logaxis import LogAxis
from sim.drawing.style import fit_legend, fit_text
from sim.tables.grid import KINDS, kind_of
from sim.tables.summary import LEVEL

__all__ = ["plot_amplification", "plot_tradeoff"]

PANEL = ["source", "pair", "vocab"]
SHADE = "#e6e6e6"
KIND_COLOURS = {
    "target": "#0072B2",
    "truncated": "#56B4E9",
    "cascade": "#CC79A7",
    "candidate": "#D55E00",
    "target only": "#E69F00",
    "accept set": "#009E73",
    "fixed rate": "#8C6D1F",
    "other": "#888888",
}
KIND_TITLES = {
    "target": "one target π(p, q)",
    "truncated": "the verifier, cut to likely tokens",
    "cascade": "draft or verifier, by confidence",
    "candidate": "a target for each candidate n",
    "target only": "the same, accepted with γ itself",
    "accept set": "a set of accepted tokens",
    "fixed rate": "a given rate",
    "other": "others",
}
SOURCE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_AT_LEVEL = {"color": "#555555", "linewidth": 0.9, "linestyle": (0, (5, 2))}
BUDGET_RULES = {
    "cactus": "cactus\nclosed-form γ, accepts with γ/p",
    "cactus_exact": "cactus_exact\nexact γ, accepts with γ/p",
    "cactus_target_only": "cactus_target_only\nclosed-form γ, accepts with γ",
}


def plot_tradeoff(table: pd.DataFrame, frontier: pd.DataFrame, path: Path, title: str) -> None:
    """Acceptance against realised KL(output‖verifier), one panel per source and pair.

    `table` as in sim.tables.tradeoff, `frontier` the corpus frontiers (source, pair, vocab, level,
    acceptance). No rule can be in the shaded region above the frontier. The ends of the axis hold
    the points at a divergence of zero and of infinity. Writes a PNG to `path`.
    """
    panels = list(table.groupby(PANEL, sort=False))
    columns = min(len(panels), 4)
    floors = -(-len(panels) // columns)
    width = max(4.1 * columns, 15.5)
    letters = int(8.2 * (0.93 * width / columns - 0.4))  # of a bold name as wide as its panel
    lines = max(len(_wrapped(pair)) for (_, pair, _), _ in panels)
    named = max(len(_panel_name(key, letters)) for key, _ in panels)
    figure = Figure(figsize=(width, 1), layout="none")
    title = fit_text(figure, title, 0.955, 13)
    head = 0.42 + 0.22 * (title.count("\n") + 1) + 0.15 * lines + 0.19 * named
    rules = list(dict.fromkeys(table["rule"]))
    foot = 2.15 + 0.2 * max(0, max(Counter(map(kind_of, rules)).values()) - 6)
    floor = 3.6 if columns > 2 else 5.4
    height = head + floor * floors + foot - 0.9
    figure.set_size_inches(width, height)
    axes = figure.subplots(floors, columns, squeeze=False)
    for (key, rows), ax in zip(panels, axes.flat):
        chosen = (frontier[PANEL] == list(key)).all(axis=1)
        _tradeoff_panel(ax, rows, frontier[chosen])
        _name_panel(ax, key, lines, letters)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("acceptance (mean over positions)")
    for column in range(columns):
        last = axes.flat[column + columns * ((len(panels) - 1 - column) // columns)]
        last.set_xlabel("realised KL(output‖verifier), nats")
    figure.suptitle(title, x=0.03, y=1 - 0.25 / height, ha="left", va="top", fontsize=13)
    figure.subplots_adjust(left=0.055, right=0.985, top=1 - head / height, bottom=foot / height)
    figure.subplots_adjust(hspace=0.3 + 0.06 * lines + 0.05 * named)
    _legend_by_kind(figure, rules, (foot - 0.6) / height)
    figure.savefig(path, dpi=130)


def plot_amplification(table: pd.DataFrame, path: Path, title: str) -> None:
    """Realised KL(output‖verifier) against the budget δ, log axes, one panel per coupling.

    Above the diagonal the output exceeds its budget. For the closed-form γ the second line is
    log(1 + 2δ), which bounds each candidate's target. Writes a PNG to `path`; raises ValueError
    where the table has no rule with a budget.
    """
    rules = [rule for rule in BUDGET_RULES if (table["rule"] == rule).any()]
    if not rules:
        raise ValueError(f"the table has none of the rules {', '.join(BUDGET_RULES)}")
    rows = table[table["rule"].isin(rules)]
    width = max(4.6 * len(rules), 9)
    figure = Figure(figsize=(width, 1), layout="none")
    axes = figure.subplots(1, len(rules), sharex=True, sharey=True, squeeze=False)[0]
    positive = rows[rows["value"] > 0]
    scales = LogAxis.of(positive["value"]), LogAxis.of(positive["kl_output_verifier"])
    for ax, rule in zip(axes, rules):
        _budget_panel(ax, positive[positive["rule"] == rule], *scales)
        ax.set_title(BUDGET_RULES[rule], fontsize=10, loc="left")
        ax.set_xlabel("budget δ per candidate, nats")
    axes[0].set_ylabel("realised KL(output‖verifier), nats")
    title = fit_text(figure, title, 0.955, 13)
    handles, labels = axes[0].get_legend_handles_labels()
    listed = fit_legend(figure, handles, labels, loc="lower center", fontsize=9)
    head, foot = 0.87 + 0.22 * (title.count("\n") + 1), 0.75 + 0.19 * listed
    height = head + 3.6 + foot
    figure.set_size_inches(width, height)
    figure.suptitle(title, x=0.03, y=1 - 0.19 / height, ha="left", va="top", fontsize=13)
    edges = {"top": 1 - head / height, "bottom": foot / height}
    figure.subplots_adjust(left=0.97 / width, right=0.985, wspace=0.06, **edges)
    figure.savefig(path, dpi=130)


def _tradeoff_panel(ax: Axes, rows: pd.DataFrame, frontier: pd.DataFrame) -> None:
    # Past the level where the frontier ends there is nothing to gain: a decade of that will do.
    exhausted = 10 * float(frontier["level"].max())
    scale = LogAxis.of(rows["kl_output_verifier"], decades=4, limit=exhausted)
    markers = rule_markers(list(dict.fromkeys(rows["rule"])))
    bottom, top = _acceptance_range(rows, frontier)
    for rule, points in rows.sort_values("value").groupby("rule", sort=False):
        x, inside = scale.place(points["kl_output_verifier"])
        y = points["acceptance"].to_numpy()
        style = {"color": _colour(rule), "zorder": 5 if rule == "sps" else 4}
        ax.plot(*_joined(x, y, inside & (y >= bottom)), linewidth=0.9, alpha=0.6, **style)
        style |= {"marker": markers[rule], "markeredgecolor": "white", "markeredgewidth": 0.4}
        size = 12 if rule == "sps" else 5
        ax.plot(x, np.maximum(y, bottom), linestyle="none", markersize=size, clip_on=False, **style)
    scale.apply(ax)
    if scale.low < LEVEL < scale.high:
        ax.axvline(LEVEL, **_AT_LEVEL)
    _draw_bound(ax, frontier, scale, top)
    ax.set_ylim(bottom, top)
    ax.grid(color="#eeeeee", zorder=0)
    _tell_below(ax, int((rows["acceptance"] < bottom).sum()))


def _joined(x: np.ndarray, y: np.ndarray, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A path through the points, broken where one is not shown.

    Between two points it is what tossing a coin between the two settings gives at most: straight in
    the divergence itself, so that it cannot seem to cross the frontier on the logarithmic axis.
    """
    share = np.append(np.linspace(0, 1, 25), np.nan)
    both = shown[:-1] & shown[1:]
    paths = [(v[:-1, None] + share * np.diff(v)[:, None])[both].ravel() for v in (x, y)]
    return paths[0], paths[1]


def _tell_below(ax: Axes, settings: int) -> None:
    if settings:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        text = f"on the lower edge: {settings} settings that accept less"
        place = {"transform": ax.transAxes, "ha": "right", "va": "bottom", "zorder": 6}
        ax.text(0.985, 0.035, text, fontsize=7.5, color="#444444", bbox=box, **place)


def _acceptance_range(rows: pd.DataFrame, frontier: pd.DataFrame) -> tuple[float, float]:
    """From a little below the best lossless acceptance, or all where little is below it, to 1."""
    lossless = float(frontier["acceptance"].min())
    room = max(1 - lossless, 1e-9)
    lowest = float(rows["acceptance"].min())
    bottom = max(lossless - 0.4 * room, lowest - 0.04 * room, 0.0)
    return bottom, 1 + 0.04 * (1 - bottom)


def _draw_bound(ax: Axes, frontier: pd.DataFrame, scale: LogAxis, top: float) -> None:
    """The frontier across the panel, level before its first and after its last point."""
    known = frontier.sort_values("level")
    x = np.geomspace(scale.low, scale.high, 400)
    y = np.interp(x, known["level"], known["acceptance"])
    ax.fill_between(x, y, top, color=SHADE, zorder=1)
    ax.plot(x, y, color="black", linewidth=1.6, zorder=2)


def _budget_panel(ax: Axes, rows: pd.DataFrame, across: LogAxis, up: LogAxis) -> None:
    budget = np.geomspace(across.low, across.high, 300)
    ax.fill_between(budget, budget, up.high, color=SHADE, zorder=0, label="over its budget")
    ax.plot(budget, budget, color="black", linewidth=1.2, label="realised = δ", zorder=2)
    bound = np.log1p(2 * budget)
    ax.plot(budget, bound, color="black", linestyle=":", label="log(1 + 2δ), closed form", zorder=2)
    for index, (key, points) in enumerate(rows.groupby(PANEL, sort=False)):
        points = points.sort_values("value")
        y, _ = up.place(points["kl_output_verifier"])
        ax.plot(
            points["value"],
            y,
            clip_on=False,
            color=SOURCE_COLOURS[index % len(SOURCE_COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4.5,
            linewidth=1,
            label=_label(key, rows),
            zorder=3,
        )
    across.apply(ax)
    up.apply(ax, "y")
    ax.grid(color="#eeeeee", zorder=0)


def _label(key: tuple[str, str, int], rows: pd.DataFrame) -> str:
    """Name a source; with its pair where the source alone would name several lines."""
    source, pair, vocab = key
    alone = rows.loc[rows["source"] == source, "pair"].nunique() == 1
    return f"{source}, V = {vocab:,}" if alone else f"{source}, {pair}"


def _panel_name(key: tuple[str, str, int], letters: int) -> list[str]:
    source, _, vocab = key
    return textwrap.wrap(f"{source}, V = {vocab:,}", letters)


def _name_panel(ax: Axes, key: tuple[str, str, int], lines: int, letters: int) -> None:
    """Name and, below it in at most `lines` lines, the parameters of a panel."""
    pair = key[1]
    size = 10 if lines == 1 and len(pair) <= 40 else 7  # a sampling setting, or many parameters
    name, pad = "\n".join(_panel_name(key, letters)), 9 + 1.45 * size * lines
    ax.set_title(name, fontsize=11, loc="left", pad=pad, weight="bold")
    place = {"xytext": (0, 8), "xycoords": "axes fraction", "textcoords": "offset points"}
    ax.annotate(
        "\n".join(_wrapped(pair)), (0, 1), fontsize=size, color="#444444", va="bottom", **place
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 64) or [""]


def _legend_by_kind(figure: Figure, rules: Sequence[str], top: float) -> None:
    markers = rule_markers(rules)
    bounds = [
        Line2D([], [], color="black", linewidth=1.6, label="corpus frontier: best of any rule"),
        Patch(color=SHADE, label="impossible"),
        Line2D([], [], **_AT_LEVEL, label=f"{LEVEL:g} nats, as told in the title"),
        Line2D(
            [], [], color="#999999", linestyle=(0, (2, 2)), label="end of the scale: 0, less or ∞"
        ),
    ]
    columns = [("what bounds every rule", bounds)]
    for kind in KINDS:
        columns.append((KIND_TITLES[kind], _handles(rules, kind, markers)))
    shown = [column for column in columns if column[1]]
    step = 0.165 if len(shown) < 7 else 0.0
    renderer, left = FigureCanvasAgg(figure).get_renderer(), 0.025
    for name, handles in shown:
        legend = figure.legend(
            handles=handles,
            title=name,
            loc="upper left",
            bbox_to_anchor=(left, top),
            frameon=False,
            fontsize=8.5,
            title_fontsize=9,
            alignment="left",
        )
        left += max(step, legend.get_window_extent(renderer).width / figure.bbox.width)


def _colour(rule: str) -> str:
    return "black" if rule == "sps" else KIND_COLOURS[kind_of(rule)]


def _handles(rules: Sequence[str], kind: str, markers: dict[str, str]) -> list[Line2D]:
    return [
        Line2D([], [], color=_colour(rule), marker=markers[rule], linestyle="none", label=rule)
        for rule in rules
        if kind_of(rule) == kind
    ]


def rule_markers(rules: Sequence[str]) -> dict[str, str]:
    """A marker for each rule; `sps`, the reference, is the star.

    They are distinct among the first eight rules of a kind.
    """
    markers: dict[str, str] = {}
    for kind in KINDS:
        alike = [rule for rule in rules if kind_of(rule) == kind and rule != "sps"]
        markers.update(zip(alike, cycle(MARKERS)))
    return {**markers, "sps": "*"}
