"""What the figures of the notebooks share: bare figures that show themselves, colours, checks."""

import io
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import ArrayLike

from theory.arrays import check_distribution, check_same_place

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PALETTE",
    "PINK",
    "RED",
    "SHADE",
    "Drawing",
    "check_names",
    "check_row",
    "check_values",
    "drawing",
    "fit_legend",
    "fit_text",
    "give_finding",
    "plain_labels",
    "simplex_axes",
    "simplex_grid",
    "simplex_point",
]

# The palette of Okabe and Ito, which stays apart for colour-blind eyes.
BLUE, RED, GREEN, PINK, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
BLACK, GREY, SHADE = "#000000", "#777777", "#e6e6e6"
PALETTE = (BLUE, RED, GREEN, PINK, ORANGE, "#56B4E9", BLACK)

_DOTS_PER_INCH = 100


class Drawing(Figure):
    """A figure that a notebook displays by itself, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
        return buffer.getvalue()


def drawing(
    finding: str, width: float, height: float, panels: int = 1, **subplots: Any
) -> tuple[Drawing, list[Axes]]:
    """A figure titled with its finding, and its `panels` side by side; inches.

    `subplots` goes to `Figure.subplots`, `rows` of it is the number of rows of panels.
    """
    rows = subplots.pop("rows", 1)
    figure = Drawing(figsize=(width, height), layout="constrained")
    give_finding(figure, finding)
    axes = figure.subplots(rows, -(-panels // rows), squeeze=False, **subplots)
    for ax in axes.flat:
        ax.grid(color="#eeeeee")
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def give_finding(figure: Figure, finding: str) -> None:
    """Write the finding over a figure, in as many lines as its width needs."""
    figure.suptitle(fit_text(figure, finding, 0.98, 12), x=0.01, ha="left", fontsize=12)


def fit_text(figure: Figure, text: str, share: float, fontsize: float) -> str:
    """The text with line breaks such that no line is wider than a share of the figure.

    Widths are measured, not guessed from the number of letters; breaks that are there stay.
    """
    renderer, widest = FigureCanvasAgg(figure).get_renderer(), share * figure.bbox.width
    probe = Text(0, 0, "", fontsize=fontsize, figure=figure)

    def fits(line: str) -> bool:
        probe.set_text(line)
        return probe.get_window_extent(renderer).width <= widest

    lines: list[str] = []
    for paragraph in text.split("\n"):
        lines.append("")
        for word in paragraph.split(" "):
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            lines[-1:] = [longer] if not lines[-1] or fits(longer) else [lines[-1], word]
    return "\n".join(lines)


def fit_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], **style: Any) -> int:
    """A legend of the figure in as many columns as its width holds; returns its lines."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(len(labels), 0, -1):
        legend = figure.legend(handles, labels, ncols=columns, frameon=False, **style)
        if columns == 1 or legend.get_window_extent(renderer).width <= 0.98 * figure.bbox.width:
            break
        legend.remove()
    return -(-len(labels) // columns)


def check_row(**rows: ArrayLike) -> list[np.ndarray]:
    """The named rows as float64 arrays [V]. Raises ValueError unless they are distributions."""
    arrays = [np.asarray(row, dtype=np.float64) for row in rows.values()]
    for name, row in zip(rows, arrays):
        if row.ndim != 1:
            raise ValueError(f"{name} must be one row [V], got shape {row.shape}")
        check_distribution(name, row)
    check_same_place(tuple(rows), tuple(arrays))
    return arrays


def check_names(names: Sequence[str] | None, vocab: int) -> list[str]:
    """Names of the tokens, A, B, C, … by default. Raises ValueError unless there are `vocab`."""
    if names is None:
        letters = string.ascii_uppercase
        names = letters[:vocab] if vocab <= len(letters) else [str(i) for i in range(vocab)]
    if len(names) != vocab:
        raise ValueError(f"names must hold one name for each of the {vocab} tokens: {names!r}")
    return list(names)


def check_values(
    name: str, values: ArrayLike, low: float, high: float, *, inside: bool = True
) -> np.ndarray:
    """One number or several as a float64 array [N], N ≥ 1.

    Raises ValueError for none, and for one that is not in (low, high), or [low, high] where
    `inside` is False.
    """
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be one number or a list of them, got {values!r}")
    good = (array > low) & (array < high) if inside else (array >= low) & (array <= high)
    if not np.all(good):
        ends = f"({low:g}, {high:g})" if inside else f"[{low:g}, {high:g}]"
        raise ValueError(f"{name} must lie in {ends}, got {array[~good][0]:g}")
    return array


def plain_labels(ax: Axes, places: ArrayLike, names: Sequence[str], **style: Any) -> None:
    """Set the ticks of the x axis; a name is shown as it stands, dollar signs included."""
    ax.set_xticks(places, names, **style)
    for label in ax.get_xticklabels():
        label.set_parse_math(False)


def simplex_grid(
    window: tuple[float, float, float, float] = (0, 1, 0, 1), points: int = 320
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [N], y [N] and all distributions (x, y, 1−x−y) of three tokens [N, N, 3], nan outside.

    The `window` of the grid is (left, right, bottom, top).
    """
    across, up = np.linspace(*window[:2], points), np.linspace(*window[2:], points)
    x, y = np.meshgrid(across, up)
    rest = 1 - x - y
    rows = np.stack([x, y, np.maximum(rest, 0)], axis=-1)
    rows[rest < -1e-12] = np.nan
    return across, up, rows


def simplex_axes(ax: Axes, names: Sequence[str]) -> None:
    """The triangle of all distributions of three tokens: the third has what the two leave."""
    a, b, c = names
    ax.plot([0, 1, 0, 0], [0, 0, 1, 0], color=BLACK, linewidth=1)
    ax.set(xlim=(-0.03, 1.06), ylim=(-0.03, 1.06), aspect="equal")
    ax.set_xlabel(f"probability of {a}")
    ax.set_ylabel(f"probability of {b}")
    for x, y, text in ((0.015, 0.015, f"all {c}"), (1, 0.02, f"all {a}"), (0.02, 1, f"all {b}")):
        ax.text(x, y, text, ha="left", va="bottom", fontsize=9, color=GREY)


def simplex_point(
    ax: Axes, row: np.ndarray, colour: str, marker: str, label: str, size: float = 9
) -> None:
    """Mark one distribution of three tokens in its triangle."""
    style = {"markeredgecolor": "white", "linestyle": "none", "zorder": 6, "clip_on": False}
    ax.plot(row[0], row[1], marker=marker, markersize=size, color=colour, label=label, **style)
