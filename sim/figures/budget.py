"""Figures of what a budget bounds: a candidate's target, not the emitted law, and a text."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from sim.checks import require_between
from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    PALETTE,
    RED,
    SHADE,
    Drawing,
    check_names,
    check_row,
    check_values,
    drawing,
    plain_labels,
)
from theory import (
    candidate_target,
    divergence,
    frontier_acceptance,
    make_rule,
    one_step,
    one_steps,
    optimal_gamma,
)
from theory.frontier import RoundMeans

__all__ = [
    "amplification",
    "candidate_and_emitted",
    "spent_by_place",
    "text_spending",
    "two_couplings",
]


def candidate_and_emitted(
    p: ArrayLike, q: ArrayLike, budget: float, names: Sequence[str] | None = None
) -> Drawing:
    """The target of each candidate beside what is emitted, by exact Cactus; KL of each from q.

    Raises ValueError where p and q are no distributions of equal size, or budget ≤ 0.
    """
    p, q = check_row(p=p, q=q)
    names = check_names(names, p.size)
    require_between("budget", budget, 0, np.inf, open_low=True)
    gamma = optimal_gamma(q, budget).value
    laws = [candidate_target(q, n, gamma[n]) for n in range(p.size)]
    laws.append(one_step(make_rule("cactus_exact", delta=budget), p, q).output)
    spent = [float(divergence("kl", law, q)) for law in laws]
    figure, (left, right) = drawing(
        f"Each candidate's target stays within the budget δ = {budget:g}; what is emitted is "
        f"{spent[-1]:.4g} nats away,\n{spent[-1] / budget:.3g} times the budget",
        11.5,
        4.5,
        2,
        width_ratios=[2, 1],
    )
    groups = [f"target if {name} is drafted" for name in names] + ["emitted"]
    width, place = 0.8 / p.size, np.arange(len(laws))
    for x, colour in zip(range(p.size), PALETTE * p.size):
        at = place + (x - (p.size - 1) / 2) * width
        left.bar(at, [law[x] for law in laws], 0.92 * width, color=colour, label=names[x])
        left.hlines([q[x]] * len(at), at - width / 2, at + width / 2, color=BLACK, linewidth=1.6)
    left.plot([], [], color=BLACK, linewidth=1.6, label="verifier q")
    plain_labels(left, place, groups)
    left.set_xlabel("law")
    left.set_ylabel("probability")
    left.set_ylim(0, 1.3 * max(law.max() for law in laws))
    left.legend(frameon=False, ncols=p.size + 1, loc="upper left")
    right.bar(place, spent, 0.6, color=[BLUE] * p.size + [RED])
    right.axhline(budget, color=BLACK, linestyle="--", label=f"budget δ = {budget:g}")
    for x, value in zip(place, spent):
        right.text(x, value, f"{value:.4g}", ha="center", va="bottom", fontsize=9)
    plain_labels(right, place, [*names, "emitted"])
    right.set_xlabel("target of each candidate, and emitted law")
    right.set_ylabel("KL from the verifier, nats")
    right.legend(frameon=False, loc="upper left")
    return figure


def amplification(vocabularies: ArrayLike) -> Drawing:
    """Budget and emitted divergence of the uniform verifier with a draft of 2/V on half of it.

    Raises ValueError for vocabularies that are odd or less than 4.
    """
    sizes = check_values("vocabularies", vocabularies, 3, np.inf)
    if np.any(sizes % 2):
        raise ValueError(f"vocabularies must be even, got {sizes[sizes % 2 > 0][0]:g}")
    budgets, emitted = [], []
    for size in sizes.astype(int):
        q, p = np.full(size, 1 / size), np.repeat([2 / size, 0.0], size // 2)
        # d_KL(2/V, 1/V), with a hair more so that γ reaches 2/V in floating point.
        budget = (2 * np.log(2) + (size - 2) * np.log((size - 2) / (size - 1))) / size
        budgets.append(budget * (1 + 1e-9))
        output = make_rule("cactus_exact", delta=budgets[-1]).output(p, q)
        emitted.append(float(divergence("kl", output, q)))
    ratio = np.array(emitted) / budgets
    figure, (ax,) = drawing(
        f"No budget bounds what is emitted: as the vocabulary grows the budget falls like "
        f"{budgets[-1] * sizes[-1]:.3f}/V,\nwhile the output stays log 2 nats away: "
        f"{ratio[0]:.3g} times the budget at V = {sizes[0]:,.0f}, "
        f"{ratio[-1]:,.0f} times at V = {sizes[-1]:,.0f}",
        9.5,
        5,
    )
    ax.loglog(sizes, emitted, "o-", color=RED, label="KL(output‖q), what is emitted")
    ax.loglog(sizes, budgets, "s-", color=BLUE, label="budget δ of each candidate")
    ax.fill_between(sizes, budgets, emitted, color=SHADE)
    for size, low, high, factor in zip(sizes[::2], budgets[::2], emitted[::2], ratio[::2]):
        ax.text(size, np.sqrt(low * high), f"× {factor:,.0f}", ha="center", color=BLACK,
                fontsize=9)  # fmt: skip
    ax.set_xlabel("vocabulary V (uniform verifier; the draft has 2/V on half of it)")
    ax.set_ylabel("nats")
    ax.legend(frameon=False)
    return figure


def two_couplings(p: ArrayLike, q: ArrayLike, longest: float = 1.0) -> Drawing:
    """The paper's coupling beside the target-only one, both with exact γ, on rows [V] or [R, V].

    Means over the rows, for budgets up to `longest`. Raises ValueError for invalid rows or longest.
    """
    p, q = np.atleast_2d(p), np.atleast_2d(q)
    require_between("longest", longest, 0, np.inf, open_low=True)
    budgets = np.geomspace(1e-5, 1, 90) * longest
    paper, own = (
        _curve(p, q, [make_rule(name, delta=b, **options) for b in budgets])
        for name, options in (("cactus_exact", {}), ("cactus_target_only", {"exact": True}))
    )
    level, ours, theirs = _widest_gap(own, paper)
    figure, (left, right) = drawing(
        f"Accepting with γ/p the output goes up to {np.max(paper[0] / budgets):.3g} times its "
        f"budget, accepting with γ itself up to {np.max(own[0] / budgets):.2g} times;\nat an equal "
        f"divergence of {level:.2g} nats the first accepts {theirs:.3f}, the second {ours:.3f}",
        11.5,
        4.8,
        2,
    )
    for label, colour, (spent, accepted) in (
        ("accepts with min(1, γ/p)", RED, paper),
        ("accepts with γ", BLUE, own),
    ):
        left.loglog(budgets, spent, color=colour, linewidth=2, label=label)
        right.semilogx(spent, accepted, color=colour, linewidth=2, label=label)
    left.loglog(budgets, budgets, color=BLACK, linewidth=1, label="budget δ")
    levels = np.geomspace(min(paper[0][0], own[0][0]), 1.5 * max(paper[0].max(), own[0].max()), 40)
    best = [float(np.mean(frontier_acceptance(p, q, value))) for value in levels]
    right.semilogx(levels, best, color=BLACK, linestyle="--", linewidth=1,
                   label="best of any rule" + (", row by row" if len(p) > 1 else ""))  # fmt: skip
    right.plot([level, level], [ours, theirs], color=GREY, linewidth=1.5, marker="o", markersize=4)
    left.set_xlabel("budget δ per candidate, nats")
    left.set_ylabel("realised KL(output‖q), nats")
    right.set_xlabel("realised KL(output‖q), nats")
    right.set_ylabel("acceptance")
    left.legend(frameon=False)
    right.legend(frameon=False, loc="upper left")
    return figure


def _curve(p: np.ndarray, q: np.ndarray, rules: list) -> tuple[np.ndarray, np.ndarray]:
    """Mean realised KL and mean acceptance of each rule over rows [R, V]."""
    laws = one_steps(rules, p, q)
    spent = np.array([np.mean(divergence("kl", law.output, q)) for law in laws])
    return np.maximum(spent, 1e-12), np.array([np.mean(law.acceptance) for law in laws])


def _widest_gap(
    own: tuple[np.ndarray, np.ndarray], paper: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float, float]:
    """Where the acceptances differ most, in the last two decades of both curves: level, both.

    The first curve's best lead counts if it ever leads by a hundredth.
    """
    low, high = max(own[0][0], paper[0][0]), min(own[0][-1], paper[0][-1])
    levels = np.geomspace(min(max(low, high / 100), high), high, 200)
    ours, theirs = (np.interp(np.log(levels), np.log(x), y) for x, y in (own, paper))
    lead = ours - theirs
    at = int(lead.argmax() if lead.max() > 0.01 else lead.argmin())
    return float(levels[at]), float(ours[at]), float(theirs[at])


def spent_by_place(ways: Mapping[str, RoundMeans]) -> Drawing:
    """What each place of a round spends, and how often it is reached, by way of spending.

    Raises ValueError for no way, and for ways whose rounds differ in length.
    """
    lengths = {name: len(means.spent) for name, means in ways.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"ways must have rounds of one length, got {lengths}")
    best = max(ways, key=lambda name: ways[name].tokens)
    told = ", ".join(f"{means.tokens:.3f} by {name}" for name, means in ways.items())
    costs = sorted({f"{means.cost_per_token:.3g}" for means in ways.values()}, key=float)
    spends = ", ".join(f"{nats:.3g}" for nats in ways[best].spent)
    figure, (spent, reached) = drawing(
        f"At {' to '.join(costs[:: max(1, len(costs) - 1)])} nats a token a round has {told};\n"
        f"most by {best}, whose places spend {spends}",
        10.5,
        4.6,
        panels=2,
    )
    places = np.arange(1, len(ways[best].spent) + 1)
    for colour, mark, (name, means) in zip(PALETTE, "osD^vPX", ways.items()):
        style = {"color": colour, "marker": mark, "label": name}
        spent.plot(places, means.spent, **style)
        reached.plot(places, means.reached[:-1], **style)
    for ax, label in ((spent, "KL(h‖q) there, nats"), (reached, "probability that it is reached")):
        ax.set_xlabel("place in the round")
        ax.set_xticks(places)
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    spent.legend(frameon=False, fontsize=9)
    return figure


def text_spending(own: Sequence[float], spent: Sequence[float]) -> Drawing:
    """The divergence of texts of 1, 2, 3 … tokens from the verifier's, and what their places spend.

    Raises ValueError for sequences of different length, of fewer than two texts, or with a text
    that diverges by more than is spent.
    """
    own, spent = np.asarray(own, dtype=float), np.asarray(spent, dtype=float)
    if own.shape != spent.shape or own.size < 2:
        raise ValueError(f"own and spent must be two or more each, got {own.size} and {spent.size}")
    if np.any(own > spent + 1e-12):
        raise ValueError(f"own exceeds spent at length {int(np.argmax(own - spent)) + 1}")
    lengths = np.arange(1, own.size + 1)
    figure, (ax,) = drawing(
        f"A text of {own.size} tokens is {own[-1]:.3g} nats from the verifier's, "
        f"{100 * own[-1] / spent[-1]:.0f} % of what its places spend",
        8.2,
        4.6,
    )
    ax.fill_between(lengths, own, spent, color=SHADE, label="hidden: where rounds begin")
    ax.plot(lengths, spent, color=RED, marker="s", label="spent by its places (a bound)")
    ax.plot(lengths, own, color=BLUE, marker="o", label="of the text itself")
    ax.set_xlabel("tokens of the text")
    ax.set_ylabel("KL from the verifier's texts, nats")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize=9)
    return figure
