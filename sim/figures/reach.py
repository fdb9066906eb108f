"""Figures of what a rule can do at all where draft or rows are not, or not wholly, known."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from sim.checks import require_between
from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    PALETTE,
    RED,
    Drawing,
    check_names,
    check_row,
    check_values,
    drawing,
    plain_labels,
    simplex_axes,
    simplex_grid,
    simplex_point,
)
from theory import certified_divergence, divergence, make_rule, optimal_gamma

__all__ = ["capped_simplex", "certified_curves", "certified_rows", "list_bounds"]

_REACH = "#f7dcc4"


def capped_simplex(q: ArrayLike, budget: float, names: Sequence[str] | None = None) -> Drawing:
    """Every law that some draft makes exact Cactus emit, beside the ball of the budget.

    A small region is shown enlarged. Raises ValueError where q is not a row of three tokens, or
    budget ≤ 0.
    """
    (q,) = check_row(q=q)
    names = check_names(names, 3)
    require_between("budget", budget, 0, np.inf, open_low=True)
    if q.size != 3:
        raise ValueError(f"q must hold three tokens, got {q.size}")
    caps = optimal_gamma(q, budget).value
    worst = certified_divergence(q, make_rule("cactus_exact", delta=budget))
    most = float(worst.lower)
    window = _window(q, caps)
    x, y, rows = simplex_grid(window)
    inside, filled = ~np.isnan(rows[..., 0]), np.nan_to_num(rows, nan=1 / 3)
    kl = divergence("kl", filled, np.broadcast_to(q, rows.shape), validate=False)
    over = np.max(filled - caps, axis=-1)
    figure, (ax,) = drawing(
        f"Emitted laws are bounded by the caps h ≤ γ and by nothing else:\nsome draft makes one "
        f"{most:.3g} nats from the verifier, {most / budget:.3g} times the budget",
        7,
        6.6,
    )
    reach, ball = (np.where(inside, values, np.nan) for values in (over, kl))
    ax.contourf(x, y, reach, levels=[-2, 0], colors=[_REACH])
    ax.contour(x, y, reach, levels=[0], colors=[RED], linewidths=1.4)
    ax.contour(x, y, ball, levels=[budget], colors=[BLUE], linewidths=2)
    simplex_axes(ax, names)
    if window[1] - window[0] < 1:
        ax.set(xlim=window[:2], ylim=window[2:])
        for text in list(ax.texts):
            text.remove()
        ax.plot([], [], color=BLACK, linewidth=1, label=f"edge: no {names[2]} at all")
    ax.fill([], [], facecolor=_REACH, edgecolor=RED, label="reachable: h ≤ γ for every token")
    ax.plot([], [], color=BLUE, linewidth=2, label=f"KL(h‖q) = δ = {budget:g} nats")
    simplex_point(ax, q, BLACK, "o", "the verifier q")
    simplex_point(ax, worst.draft, RED, "*", f"the worst output, {most:.3g} nats", 16)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def _window(q: np.ndarray, caps: np.ndarray) -> tuple[float, float, float, float]:
    """The part of the triangle that holds the reachable laws: all of it unless they are few."""
    lowest = np.maximum(1 - (caps.sum() - caps), 0)
    half = 1.1 * float(np.max(caps[:2] - lowest[:2]))
    if half > 0.4:
        return 0.0, 1.0, 0.0, 1.0
    return tuple(float(q[i] + side * half) for i in (0, 1) for side in (-1, 1))


def certified_curves(vocabularies: ArrayLike, told: float = 0.01) -> Drawing:
    """The largest emitted divergence of `cactus` against δ, for uniform verifiers of each size.

    `told` is the budget that the title speaks of. Raises ValueError for vocabularies below 2.
    """
    sizes = check_values("vocabularies", vocabularies, 1, np.inf).astype(int)
    require_between("told", told, 0, np.inf, open_low=True)
    budgets, last = np.geomspace(1e-6, 4, 90), int(sizes.max())
    worst = float(_uniform(last, [told])[0])
    figure, (ax,) = drawing(
        f"What a budget guarantees where the verifier is spread out: over {last:,} equal tokens\n"
        f"δ = {told:g} allows {worst:.2f} nats, {worst / told:.0f} times itself; "
        "in general about log(1 + √(2δV))",
        9,
        5.2,
    )
    for size, colour in zip(sizes, PALETTE * 9):
        ax.loglog(budgets, _uniform(size, budgets), color=colour, label=f"Γ, V = {size:,}")
        ax.loglog(budgets, np.log1p(np.sqrt(2 * budgets * size)), ":", color=BLACK, linewidth=1)
    ax.plot([], [], ":", color=BLACK, label="log(1 + √(2δV))")
    ax.loglog(budgets, budgets, color=GREY, label="δ itself")
    ax.plot(told, worst, "*", color=RED, markersize=15, markeredgecolor="white", zorder=5)
    ax.set_ylim(1e-6, 30)
    ax.set_xlabel("budget δ, nats")
    ax.set_ylabel("largest KL(output‖q) over all drafts, nats")
    ax.legend(frameon=False, loc="lower right")
    return figure


def _uniform(vocab: int, budgets: Sequence[float]) -> np.ndarray:
    """What `cactus` guarantees for a uniform row at each budget, in nats."""
    row = np.full((1, vocab), 1 / vocab)
    rules = [make_rule("cactus", delta=budget) for budget in budgets]
    return np.array([certified_divergence(row, rule).upper[0] for rule in rules])


def certified_rows(
    certified: ArrayLike, realised: ArrayLike, budget: float, where: str = "position"
) -> Drawing:
    """What each row guarantees at a budget beside what its draft really caused, [R] each, nats.

    Rows are in the order of the guarantee. Raises ValueError for unequal shapes, negative numbers,
    budget ≤ 0, and for a row that realises more than it guarantees.
    """
    require_between("budget", budget, 0, np.inf, open_low=True)
    bound = check_values("certified", certified, 0, np.inf, inside=False)
    real = check_values("realised", realised, 0, np.inf, inside=False)
    if bound.shape != real.shape:
        raise ValueError(f"certified and realised differ in shape: {bound.shape}, {real.shape}")
    if np.any(real > bound * (1 + 1e-9) + 1e-12):
        raise ValueError(f"a row realises more than it guarantees: {np.max(real - bound):g} nats")
    order = np.argsort(bound)
    place = np.arange(1, order.size + 1)
    figure, (ax,) = drawing(
        f"At δ = {budget:g} the verifier's rows guarantee no better than {bound.mean():.2g} nats "
        "on average;\n"
        f"this draft causes {real.mean():.2g}. The budget itself is a bound for "
        f"{np.mean(bound <= budget):.0%} of the rows and is kept at {np.mean(real <= budget):.0%}",
        9.5,
        4.8,
    )
    floor = np.clip(0.3 * np.min(real[real > 0], initial=np.inf), 1e-5, budget / 3)
    ax.semilogy(place, np.maximum(bound[order], floor), color=RED, linewidth=2,
                label="guaranteed: the worst over all drafts")  # fmt: skip
    ax.semilogy(place, np.maximum(real[order], floor), "o", color=BLUE, markersize=4,
                label="realised with this draft")  # fmt: skip
    ax.axhline(budget, color=BLACK, linestyle="--", label=f"budget δ = {budget:g}")
    ax.set_ylim(floor, 5 * max(float(bound.max()), budget))
    ax.set_xlabel(
        f"{where}, in the order of its guarantee (on the lower edge: {floor:.0e} or less)"
    )
    ax.set_ylabel("KL(output‖q), nats")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def list_bounds(table: pd.DataFrame) -> Drawing:
    """Bounds of acceptance and KL(output‖q) against the length of the lists, by rule.

    `table` has the columns rule, measure ("acceptance", "kl"), listed, lower, upper and exact, one
    row per rule, measure and length. An infinite upper bound reaches the edge of the picture; a
    divergence that is 0 throughout, as that of strict sampling, is not drawn.
    """
    widths = (table["upper"] - table["lower"])[table["measure"] == "acceptance"]
    by_length = widths.groupby(table["listed"]).max()
    figure, axes = drawing(
        f"With the {by_length.index[0]} likeliest tokens listed, acceptance is known to within "
        f"{by_length.iloc[0]:.2f}; with {by_length.index[-1]}, to within {by_length.iloc[-1]:.2f}",
        11,
        4.8,
        2,
    )
    shown = table[(table["measure"] == "acceptance") | (table["exact"] > 0)]
    finite = shown.loc[np.isfinite(shown["upper"]) & (shown["measure"] == "kl"), "upper"]
    tops = {"acceptance": 1.0, "kl": 3 * max(finite.max(), 1e-3) if len(finite) else 1.0}
    labels = {"acceptance": "acceptance", "kl": "KL(output‖q), nats"}
    for ax, (measure, label) in zip(axes, labels.items()):
        for rule, colour in zip(table["rule"].unique(), PALETTE):
            rows = shown[(shown["rule"] == rule) & (shown["measure"] == measure)]
            _band(ax, rows, colour, tops[measure])
        ax.set_xscale("log")
        plain_labels(ax, by_length.index, [f"{length}" for length in by_length.index])
        ax.minorticks_off()
        ax.set_xlabel("tokens that each list holds, K")
        ax.set_ylabel(label)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    axes[1].set_ylim(top=tops["kl"])
    axes[0].legend(frameon=False, loc="lower right", title="band: bounds, dashes: exact")
    return figure


def _band(ax: Axes, rows: pd.DataFrame, colour: str, top: float) -> None:
    """One rule's two bounds as a band, with the exact value as dashes inside."""
    if rows.empty:
        return
    upper = np.minimum(rows["upper"], top)
    ax.fill_between(rows["listed"], rows["lower"], upper, color=colour, alpha=0.15, linewidth=0)
    for bound in (rows["lower"], upper):
        ax.plot(rows["listed"], bound, color=colour, linewidth=1.5)
    ax.plot(rows["listed"], rows["exact"], "--", color=colour, label=rows["rule"].iloc[0])
