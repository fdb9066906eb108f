"""Figures of the optimum of one candidate: where it lies, what budgets buy, where it ends."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sim.checks import require_between
from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    RED,
    SHADE,
    Drawing,
    check_names,
    check_row,
    check_values,
    drawing,
    simplex_axes,
    simplex_grid,
    simplex_point,
)
from theory import DIVERGENCES, candidate_target, divergence, make_rule, one_steps, optimal_gamma
from theory.divergences.kinds import Divergence, resolve_divergence

__all__ = ["certainty", "gamma_curves", "output_path", "simplex_ball"]

KIND_LABELS = {
    "kl": "KL(h‖q)",
    "reverse_kl": "KL(q‖h)",
    "pearson_chi2": "χ²(h‖q)",
    "total_variation": "TV",
    "squared_hellinger": "squared Hellinger",
    "jensen_shannon": "Jensen–Shannon",
}


def simplex_ball(
    q: ArrayLike,
    n: int,
    budget: float,
    kind: str | Divergence = "kl",
    names: Sequence[str] | None = None,
) -> Drawing:
    """All distributions h of three tokens, those within the budget, and the best for token n.

    Raises ValueError where q is not a row of three tokens, n no token of it, or budget ≤ 0.
    """
    (q,) = check_row(q=q)
    names, kind = check_names(names, 3), resolve_divergence(kind)
    require_between("budget", budget, 0, np.inf, open_low=True)
    if q.size != 3 or n not in (0, 1, 2):
        raise ValueError(f"q must hold three tokens and n be one of them, got {q.size} and {n}")
    gamma = float(optimal_gamma(q[n], budget, kind).value)
    best, certain = candidate_target(q, n, gamma), np.eye(3)[n]
    x, y, rows = simplex_grid()
    spent = kind.between(np.where(np.isnan(rows), 1 / 3, rows), np.broadcast_to(q, rows.shape))
    spent = np.where(np.isnan(rows[..., 0]), np.nan, spent)
    figure, (ax,) = drawing(
        f"The best target for a drafted {names[n]} lies on the line from the verifier\n"
        f"to certainty, where it leaves the budget: {names[n]} goes from {q[n]:.3g} to {gamma:.4g}",
        6.6,
        6.2,
    )
    ax.contourf(x, y, spent, levels=[0, budget], colors=["#cfe3f1"])
    ax.contour(x, y, spent, levels=[budget], colors=[BLUE], linewidths=1.6)
    lines = ax.contour(x, y, spent, levels=[2 * budget, 4 * budget], colors=[GREY], linewidths=0.7)
    ax.clabel(lines, fmt=lambda level: f"{level:.2g} nats", fontsize=8)
    ax.plot(*np.stack([q, certain])[:, :2].T, color=RED, linestyle="--", linewidth=1.2,
            label="q and certainty mixed")  # fmt: skip
    ax.fill([], [], color="#cfe3f1", label=f"{_label(kind)} ≤ {budget:g} nats")
    simplex_point(ax, q, BLACK, "o", "the verifier q")
    simplex_point(ax, best, RED, "*", "the best target", 16)
    simplex_axes(ax, names)
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    return figure


def gamma_curves(budget: float, at: float = 0.1) -> Drawing:
    """The raised probability γ* against the verifier's q, one curve per divergence.

    `at` is the q whose values the title tells. Raises ValueError for budget ≤ 0 and `at` outside
    (0, 1).
    """
    require_between("budget", budget, 0, np.inf, open_low=True)
    check_values("at", at, 0, 1)
    told = {kind: float(optimal_gamma(at, budget, kind).value) for kind in DIVERGENCES}
    low, high = min(told, key=told.get), max(told, key=told.get)
    figure, (ax,) = drawing(
        f"{budget:g} of one divergence is not {budget:g} of another: a token of q = {at:g} is "
        f"raised to {told[low]:.2f} ({KIND_LABELS[low]})\nor to {told[high]:.2f} "
        f"({KIND_LABELS[high]}) by the same number",
        8.6,
        5.2,
    )
    q = np.linspace(0, 1, 1001)
    for (kind, label), colour in zip(KIND_LABELS.items(), PALETTE):
        ax.plot(q, optimal_gamma(q, budget, kind).value, color=colour, label=label)
    ax.plot(q, q, color=GREY, linestyle=":", label="no boost, γ = q")
    ax.axvline(at, color=GREY, linewidth=0.7)
    ax.set_xlabel("verifier probability q of the drafted token")
    ax.set_ylabel(f"raised probability γ* at budget {budget:g}")
    ax.legend(frameon=False, title="budget on")
    return figure


def certainty(probabilities: ArrayLike) -> Drawing:
    """γ*(q, δ) under KL against the budget δ, one curve per token; stars where γ* reaches 1.

    Raises ValueError for probabilities outside (0, 1).
    """
    tokens = check_values("probabilities", probabilities, 0, 1)
    budget = np.geomspace(1e-4, 1.5 * float(-np.log(tokens.min())), 400)
    figure, (ax,) = drawing(
        "A token becomes certain at δ = −log q, its own surprise: the budget of a rare token "
        "buys little\nat first, that of a frequent one is soon used up",
        8.6,
        4.8,
    )
    for q, colour in zip(tokens, PALETTE * 9):
        cost = -np.log(q)
        label = f"q = {q:g}: certain at {cost:.2g} nats"
        ax.semilogx(budget, optimal_gamma(q, budget).value, color=colour, label=label)
        ax.plot(cost, 1, "*", color=colour, markersize=13, markeredgecolor="white", zorder=5)
    ax.set_xlabel("budget δ on KL(h‖q), nats")
    ax.set_ylabel("raised probability γ*")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.01, 0.45))
    return figure


def output_path(
    p: ArrayLike, q: ArrayLike, longest: float, names: Sequence[str] | None = None
) -> Drawing:
    """What exact Cactus emits as δ grows to `longest`, and how far that is from q (KL, nats).

    Raises ValueError where p and q are no distributions of equal size, or longest ≤ 0.
    """
    p, q = check_row(p=p, q=q)
    names = check_names(names, p.size)
    require_between("longest", longest, 0, np.inf, open_low=True)
    budgets = np.linspace(0, longest, 241)
    laws = one_steps([make_rule("cactus_exact", delta=b) for b in budgets], p, q)
    output = np.stack([law.output for law in laws])
    spent, whole = (
        divergence("kl", output, np.broadcast_to(q, output.shape)),
        divergence("kl", p, q),
    )
    figure, (left, right) = drawing(
        "As the budget grows the output moves from the verifier to the draft, never past either:\n"
        f"its divergence cannot exceed KL(p‖q) = {whole:.3g} nats",
        11,
        4.6,
        2,
    )
    for x, colour in zip(range(p.size), PALETTE * p.size):
        left.plot(budgets, output[:, x], color=colour, label=f"output of {names[x]}")
        left.plot([0, longest], [p[x], p[x]], color=colour, linestyle=":", linewidth=1)
        left.plot(0, q[x], "o", color=colour, clip_on=False)
    left.plot([], [], color=GREY, linestyle=":", label="its draft probability")
    left.plot([], [], "o", color=GREY, label="its verifier probability")
    left.set_ylabel("probability")
    left.legend(frameon=False, fontsize=9)
    right.fill_between(budgets, np.maximum(budgets, 0), max(whole, longest), color=SHADE,
                       label="over budget")  # fmt: skip
    right.plot(budgets, budgets, color=BLACK, linewidth=1, label="δ itself")
    right.axhline(whole, color=ORANGE, linestyle="--", label="KL(p‖q)")
    right.plot(budgets, spent, color=BLUE, linewidth=2, label="KL(output‖q)")
    right.set_ylim(0, 1.25 * float(whole) + 1e-12)
    right.set_ylabel("divergence from the verifier, nats")
    right.legend(frameon=False, fontsize=9, loc="lower right")
    for ax in (left, right):
        ax.set_xlabel("budget δ per candidate, nats")
        ax.set_xlim(0, longest)
    return figure


def _label(kind: Divergence) -> str:
    return KIND_LABELS.get(kind.name, kind.name)
