"""The picture of bounds: a cross for each setting, between a frontier from below and from above."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.drawing.logaxis import LogAxis
from sim.drawing.style import PALETTE, SHADE, fit_text
from sim.figures.tradeoff import KIND_TITLES
from sim.tables.grid import KINDS, kind_of

__all__ = ["plot_bounds"]

_COLUMNS = 4
_BAND = "#bdbdbd"


def plot_bounds(table: pd.DataFrame, frontier: pd.DataFrame, path: Path, title: str) -> None:
    """Acceptance against KL(output‖verifier) as crosses of bounds, one panel per kind of rule.

    `table` and `frontier` as in `sim.report.bounds`. Writes a PNG to `path`.
    """
    kinds = [kind for kind in KINDS if any(kind_of(rule) == kind for rule in table["rule"])]
    columns = min(len(kinds), _COLUMNS)
    floors = -(-len(kinds) // columns)
    width, height = max(4.2 * columns, 8), 5.0 * floors + 0.6
    figure = Figure(figsize=(width, height), layout="none")
    axes = figure.subplots(floors, columns, squeeze=False, sharey=True)
    scale = _scale(table, 10.0 * float(frontier["level"].max()))
    for kind, ax in zip(kinds, axes.flat):
        _draw_frontier(ax, frontier, scale)
        rows = table[[kind_of(rule) == kind for rule in table["rule"]]]
        _draw_crosses(ax, rows, list(dict.fromkeys(rows["rule"])), scale)
        scale.apply(ax)
        ax.set_title(KIND_TITLES[kind], fontsize=10, loc="left")
        ax.set_ylim(max(0.0, float(table["acceptance_lower"].min()) - 0.05), 1.02)
        ax.grid(color="#eeeeee", zorder=0)
    for ax in axes.flat[len(kinds) :]:
        ax.set_axis_off()
    for ax in axes[:, 0]:
        ax.set_ylabel("acceptance")
    for column in range(columns):
        last = axes.flat[column + columns * ((len(kinds) - 1 - column) // columns)]
        last.set_xlabel("KL(output‖verifier), nats", loc="right", labelpad=1)
    figure.suptitle(fit_text(figure, title, 0.96, 12), x=0.6 / width, ha="left", fontsize=12)
    figure.subplots_adjust(left=0.6 / width, right=1 - 0.15 / width, wspace=0.06, hspace=0.45)
    figure.subplots_adjust(top=1 - 0.75 / height, bottom=1.5 / height)
    figure.savefig(path, dpi=130)


def _scale(table: pd.DataFrame, limit: float) -> LogAxis:
    """The axis of all bounds, as far as the frontier goes; almost nothing is drawn as 0."""
    ends = [table["kl_output_verifier_lower"], table["kl_output_verifier_upper"]]
    return LogAxis.of(np.concatenate(ends), decades=4, limit=limit)


def _draw_frontier(ax: Axes, frontier: pd.DataFrame, scale: LogAxis) -> None:
    x = np.geomspace(scale.low, scale.high, 300)
    curves = {}
    for bound, points in frontier.groupby("bound"):
        points = points.sort_values("level")
        curves[bound] = np.interp(x, points["level"], points["acceptance"])
    ax.fill_between(x, curves["upper"], 1.02, color=SHADE, zorder=1, label="impossible")
    ax.fill_between(
        x, curves["lower"], curves["upper"], color=_BAND, zorder=1, label="frontier, bounds"
    )


def _draw_crosses(ax: Axes, rows: pd.DataFrame, rules: Sequence[str], scale: LogAxis) -> None:
    """Bars from the lower to the upper bound; an arrow where a divergence has no upper one."""
    for index, rule in enumerate(rules):
        points = rows[rows["rule"] == rule]
        low, _ = scale.place(points["kl_output_verifier_lower"])
        high, _ = scale.place(points["kl_output_verifier_upper"])
        open_ended = np.isinf(points["kl_output_verifier_upper"].to_numpy())
        high = np.where(open_ended, low, high)
        down, up = (points[f"acceptance_{side}"].to_numpy() for side in ("lower", "upper"))
        place, middle = np.exp((np.log(low) + np.log(high)) / 2), (down + up) / 2
        style = {"color": PALETTE[index % len(PALETTE)], "alpha": 0.85, "zorder": 3}
        ax.hlines(middle, low, high, linewidth=1.1, label=rule, **style)
        ax.vlines(place, down, up, linewidth=1.1, clip_on=False, **style)
        ax.plot(
            place[open_ended], middle[open_ended], linestyle="none", marker=">", markersize=4,
            clip_on=False, **style,
        )  # fmt: skip
    ax.legend(fontsize=7.5, loc="upper left", bbox_to_anchor=(0, -0.115), ncols=2, frameon=False)
