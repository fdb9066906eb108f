"""Figures of the closed form γ = q + √(2δq(1−q)): where it keeps its budget, what it costs."""

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from sim.checks import require_between
from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    PALETTE,
    RED,
    SHADE,
    Drawing,
    check_values,
    drawing,
)
from theory import DIVERGENCES, optimal_gamma, second_order_gamma

__all__ = ["closed_form", "overspending_envelope", "overspending_map", "true_cost"]


def true_cost(q: ArrayLike, budget: ArrayLike) -> np.ndarray:
    """KL(h⁽ⁿ⁾‖q) of the closed form's target, in nats; q in [0, 1] and budget ≥ 0 broadcast.

    Computed from 1 − γ as well as γ, so that it is exact close to certainty too.
    """
    q, budget = np.broadcast_arrays(np.asarray(q, dtype=np.float64), budget)
    gamma = second_order_gamma(q, budget)
    kl, difference = DIVERGENCES["kl"], gamma.value - q
    return kl.term(gamma.value, q, difference) + kl.term(gamma.complement, 1 - q, -difference)


def closed_form(budget: float) -> Drawing:
    """The closed form beside the exact γ*, and what its target really costs, against q.

    Raises ValueError for budget ≤ 0.
    """
    require_between("budget", budget, 0, np.inf, open_low=True)
    q = np.linspace(0, 1, 4001)[1:-1]
    cost, bound = true_cost(q, budget), np.log1p(2 * budget)
    over = q[cost > budget * (1 + 1e-9)]
    told = (
        f"keeps the budget δ = {budget:g} except for tokens between q = {over.min():.3f} and "
        f"{over.max():.3f}"
        if over.size
        else f"keeps the budget δ = {budget:g} everywhere"
    )
    figure, (left, right) = drawing(
        f"The closed form {told};\nits target never costs more than log(1 + 2δ) = {bound:.3g} nats",
        11,
        4.6,
        2,
        sharex=True,
    )
    left.plot(q, optimal_gamma(q, budget).value, color=BLUE, label="exact γ*")
    left.plot(q, second_order_gamma(q, budget).value, color=RED, linestyle="--",
              label="closed form q + √(2δq(1−q))")  # fmt: skip
    left.plot(q, q, color=GREY, linestyle=":", label="no boost, γ = q")
    left.set_ylabel("raised probability γ")
    left.legend(frameon=False)
    right.fill_between(q, budget, 1.15 * bound, color=SHADE, label="over budget")
    right.axhline(budget, color=BLACK, linewidth=1.2, label="budget δ")
    right.axhline(bound, color=BLACK, linestyle=":", label="log(1 + 2δ)")
    right.plot(q, cost, color=RED, label="closed form")
    right.set_ylim(0, 1.15 * bound)
    right.set_ylabel("KL(h‖q) of the candidate's target, nats")
    right.legend(frameon=False, fontsize=9, loc="lower left")
    for ax in (left, right):
        ax.set_xlabel("verifier probability q of the drafted token")
        ax.set_xlim(0, 1)
    return figure


def overspending_map() -> Drawing:
    """The closed form's cost in units of its budget, over every q and δ, with the exact border."""
    q, budget = np.linspace(0.001, 0.999, 700), np.geomspace(1e-4, 8, 600)
    ratio = true_cost(q[None, :], budget[:, None]) / budget[:, None]
    start = float(brentq(lambda x: -2 * x * np.log(x) - (1 - x), 0.1, 0.4))
    figure, (ax,) = drawing(
        f"The closed form overspends only in one wedge, between q = {start:.4f} and 1 and below "
        f"δ = −log q.\nAt worst it spends {ratio.max():.3f} times its budget, never twice",
        9.6,
        5.6,
    )
    image = ax.pcolormesh(q, budget, ratio, cmap="PuOr_r", shading="auto", rasterized=True,
                          norm=TwoSlopeNorm(1.0, 0.0, 2.0))  # fmt: skip
    # Along the upper edge the ratio is exactly 1, so the border is drawn a little above 1.
    ax.contour(q, budget, ratio, levels=[1.0 + 1e-6], colors=[BLACK], linewidths=1.4)
    ax.plot(q, -np.log(q), color=RED, linestyle="--", label="δ = −log q: certainty is affordable")
    ax.plot(q, (1 - q) / (2 * q), color=BLUE, linestyle=":",
            label="δ = (1−q)/(2q): the closed form reaches γ = 1")  # fmt: skip
    ax.axvline(0.5, color=GREY, linewidth=1, label="right of q = ½ every δ < −log q is overspent")
    ax.set(yscale="log", ylim=(budget[0], budget[-1]), xlim=(0, 1))
    ax.set_xlabel("verifier probability q of the drafted token")
    ax.set_ylabel("budget δ, nats")
    ax.legend(loc="lower left", fontsize=9, framealpha=0.95)
    figure.colorbar(image, label="KL(h‖q) / δ   (orange: over budget)")
    return figure


def overspending_envelope(probabilities: ArrayLike) -> Drawing:
    """The closed form's cost against δ, one curve per token, under the bound log(1 + 2δ).

    Raises ValueError for probabilities outside (0, 1).
    """
    tokens = check_values("probabilities", probabilities, 0, 1)
    budget = np.linspace(0, 2, 801)[1:]
    crossing = float(brentq(lambda x: np.log1p(2 * x) - x, 0.5, 2))
    figure, (ax,) = drawing(
        "No token's target costs more than log(1 + 2δ), and the token q = 1/(1 + 2δ) costs just "
        f"that;\nfrom δ = {crossing:.4f} on the bound is below δ and nothing is overspent",
        9,
        5.2,
    )
    ax.fill_between(budget, budget, 2, color=SHADE, label="over budget")
    ax.plot(budget, budget, color=BLACK, linewidth=1.2, label="budget δ")
    ax.plot(budget, np.log1p(2 * budget), color=BLACK, linestyle=":", linewidth=2,
            label="log(1 + 2δ)")  # fmt: skip
    for q, colour in zip(tokens, PALETTE * 9):
        ax.plot(budget, true_cost(q, budget), color=colour, label=f"closed form, q = {q:g}")
        touch = (1 - q) / (2 * q)
        if touch < budget[-1]:
            ax.plot(touch, -np.log(q), "o", color=colour, markeredgecolor="white", zorder=5)
    ax.axvline(crossing, color=GREY, linewidth=0.8, linestyle="--")
    ax.set(xlim=(0, 2), ylim=(0, 2))
    ax.set_xlabel("budget δ, nats")
    ax.set_ylabel("KL(h‖q) of the candidate's target, nats")
    ax.legend(framealpha=1, edgecolor="white", fontsize=9, loc="upper left")
    return figure
