"""Figures of speculative sampling as a coupling: what is kept, what moves, what it is worth."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from sim.checks import require_between, require_count
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
    plain_labels,
)
from sim.figures.tradeoff import KIND_COLOURS, KIND_TITLES
from sim.rounds.metrics import expected_accepted, speed_up
from sim.tables.grid import KINDS, Setting, kind_of, settings
from theory import divergence, one_steps
from theory.blocks import round_law

__all__ = ["accepted_length", "coupling_table", "overlap", "round_lengths", "yin_plane"]

_ON_THE_LINE = 1e-9
_WORTH_A_NUMBER = 0.01


def overlap(p: ArrayLike, q: ArrayLike, names: Sequence[str] | None = None) -> Drawing:
    """The mass that draft p and verifier q share, and the excess that strict sampling moves.

    p, q: one row each, [V]. Raises ValueError where they are no distributions of equal size.
    """
    p, q = check_row(p=p, q=q)
    names, place = check_names(names, p.size), np.arange(p.size)
    common = np.minimum(p, q)
    figure, (ax,) = drawing(
        f"Draft and verifier share {common.sum():.3g} of their mass: that much is accepted.\n"
        f"The {1 - common.sum():.3g} that the draft has too much moves to where it has too little",
        max(7.5, 0.95 * p.size),
        4.3,
    )
    ax.bar(place - 0.2, common, 0.38, color=BLUE, label="shared by both: accepted")
    ax.bar(place + 0.2, common, 0.38, color=BLUE)
    excess = {"width": 0.38, "edgecolor": "white", "hatch": "///"}
    ax.bar(place - 0.2, p - common, bottom=common, color=RED, label="draft above verifier: "
           "rejected", **excess)  # fmt: skip
    ax.bar(place + 0.2, q - common, bottom=common, color=ORANGE, label="verifier above draft: "
           "filled by the recovery", **(excess | {"hatch": ".."}))  # fmt: skip
    for x, values in ((place - 0.2, p), (place + 0.2, q)):
        for at, value in zip(x, values):
            if value >= _WORTH_A_NUMBER:
                ax.text(at, value, f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    plain_labels(ax, place, names)
    ax.set_xlabel("token (left bar: draft p, right bar: verifier q)")
    ax.set_ylabel("probability")
    ax.legend(frameon=False, fontsize=9)
    return figure


def coupling_table(p: ArrayLike, target: ArrayLike, names: Sequence[str] | None = None) -> Drawing:
    """The joint law of drafted and emitted token, when `target` [V] is emitted by Theorem 1.

    Raises ValueError where p and target are no distributions of equal size.
    """
    p, target = check_row(p=p, target=target)
    names = check_names(names, p.size)
    kept = np.minimum(p, target)
    residual = target - kept
    rejected = p - kept
    moved = np.outer(rejected, residual) / max(residual.sum(), 1e-300)
    joint = np.diag(kept) + moved
    figure, (ax,) = drawing(
        f"The diagonal, where the draft survives, holds {kept.sum():.3g} = 1 − TV(draft, target).\n"
        "No joint law with these row and column sums holds more",
        6.6,
        5.0,
    )
    ax.grid(False)
    image = ax.imshow(joint, cmap="Blues", vmin=0, vmax=max(joint.max(), 1e-9))
    for n in range(p.size):
        for x in range(p.size):
            dark = joint[n, x] > 0.6 * joint.max()
            ax.text(x, n, f"{joint[n, x]:.3g}", ha="center", va="center",
                    color="white" if dark else BLACK,
                    weight="bold" if n == x else "normal")  # fmt: skip
    ax.set_xticks(range(p.size), [f"{name}\n({h:.3g})" for name, h in zip(names, target)])
    ax.set_yticks(range(p.size), [f"{name} ({d:.3g})" for name, d in zip(names, p)])
    ax.set_xlabel("emitted token (column sum: the target)")
    ax.set_ylabel("drafted token (row sum: the draft)")
    figure.colorbar(image, label="probability of drafting the one and emitting the other")
    return figure


def yin_plane(p: ArrayLike, q: ArrayLike, chosen: Sequence[Setting] | None = None) -> Drawing:
    """Rejection against TV(output, q) for rules (all of them by default) on one pair of rows.

    Raises ValueError where p and q are no distributions of equal size.
    """
    p, q = check_row(p=p, q=q)
    chosen = settings() if chosen is None else tuple(chosen)
    laws = one_steps([setting.build() for setting in chosen], p, q)
    x = np.array([divergence("total_variation", law.output, q) for law in laws])
    y = np.array([1 - law.acceptance for law in laws])
    distance = float(divergence("total_variation", p, q))
    above = {s.rule for s, e in zip(chosen, x + y - distance) if e > _ON_THE_LINE}
    rules = list(dict.fromkeys(setting.rule for setting in chosen))
    figure, (ax,) = drawing(
        f"Rejection + distance is never below TV(p, q) = {distance:.3g}: "
        f"accepting more means emitting something else.\n"
        f"{len(rules) - len(above)} of {len(rules)} rules stay on that line here, "
        f"{len(above)} leave it",
        9.5,
        5.6,
    )
    ax.fill_between([0, distance], [distance, 0], color=SHADE, label="impossible")
    ax.plot([0, distance], [distance, 0], color=BLACK, label="rejection + TV = TV(p, q)")
    _mark_rules(ax, chosen, x, y)
    ax.set_xlim(-0.02, 1.3 * max(float(x.max()), distance))
    ax.set_ylim(-0.02, 1.15 * max(float(y.max()), distance))
    ax.set_xlabel("TV(output, verifier)")
    ax.set_ylabel("rejection probability")
    ax.legend(frameon=False, fontsize=9, loc="upper right")
    ax.text(0.98, 0.42, "off the line:\n" + "\n".join(sorted(above)), ha="right", va="top",
            transform=ax.transAxes, fontsize=8.5, color=GREY)  # fmt: skip
    return figure


def _mark_rules(ax: Axes, chosen: Sequence[Setting], x: np.ndarray, y: np.ndarray) -> None:
    """One mark per setting, coloured by how its rule chooses what to accept."""
    kinds = np.array([kind_of(setting.rule) for setting in chosen])
    for kind, marker in zip(KINDS, "opDs^vPX"):
        if np.any(kinds == kind):
            ax.plot(x[kinds == kind], y[kinds == kind], marker, color=KIND_COLOURS[kind],
                    markersize=5.5, markeredgecolor="white", markeredgewidth=0.5, alpha=0.9,
                    label=KIND_TITLES[kind], clip_on=False)  # fmt: skip


def round_lengths(p: ArrayLike, q: ArrayLike, drafts: int = 6) -> Drawing:
    """P(τ ≥ i) of rounds on rows that know no context: token by token, in blocks, and the bound.

    p, q are one pair of rows [V]. The bound is the overlap of the joint laws of the first i tokens:
    no lossless test accepts i drafts more often. Raises ValueError for invalid rows, and for too
    many prefixes.
    """
    p, q = check_row(p=p, q=q)
    laws = {
        way: round_law(lambda v: p, lambda v: q, drafts, way, bonus=lambda v: q)
        for way in ("token", "block")
    }
    joint_p, joint_q, bound = np.ones(1), np.ones(1), []
    for _ in range(drafts):
        joint_p, joint_q = np.outer(joint_p, p).ravel(), np.outer(joint_q, q).ravel()
        bound.append(float(np.minimum(joint_p, joint_q).sum()))
    places = np.arange(1, drafts + 1)
    means = {way: law.accepted_length for way, law in laws.items()}
    figure, (ax,) = drawing(
        f"A block accepts {means['block']:.3f} of {drafts} drafts, token by token "
        f"{means['token']:.3f};\nno prefix of any length is accepted less often",
        8.2,
        4.8,
    )
    ax.plot(places, bound, ":", color=GREY, label="overlap of the joint laws: no test can do more")
    ax.plot(places, laws["block"].reached[1:], "o-", color=BLUE, label="in blocks")
    ax.plot(places, laws["token"].reached[1:], "s-", color=RED, label="token by token")
    ax.set_xlabel("drafts")
    ax.set_ylabel("probability that at least so many are accepted")
    ax.set_xticks(places)
    ax.set_ylim(0, 1)
    ax.legend(frameon=False)
    return figure


def accepted_length(acceptances: ArrayLike, longest: int, cost_ratio: float) -> Drawing:
    """Expected accepted drafts, and speed-up, against the number of drafts in a round.

    `acceptances` [N] in (0, 1), one curve each; `cost_ratio` is the cost of a draft step in
    verifier steps. Raises ValueError for values out of range.
    """
    acceptances = check_values("acceptances", acceptances, 0, 1)
    require_count("longest", longest, 2)
    require_between("cost_ratio", cost_ratio, 0, np.inf)
    m = np.arange(1, longest + 1)
    gains = np.array([speed_up(a, m, cost_ratio) for a in acceptances])
    best = m[gains.argmax(axis=1)]
    top = int(acceptances.argmax())
    figure, (left, right) = drawing(
        f"The accepted length saturates at α/(1 − α), so long drafts only cost: at α = "
        f"{acceptances[top]:g} and {cost_ratio:g} verifier steps\nper draft step, {best[top]} "
        f"drafts a round are best and give {gains[top].max():.2f} times the speed",
        11,
        4.6,
        2,
    )
    for a, gain, length, colour in zip(acceptances, gains, best, PALETTE * 9):
        left.plot(m, expected_accepted(a, m), "o-", markersize=3, color=colour, label=f"α = {a:g}")
        if a / (1 - a) <= longest:
            left.axhline(a / (1 - a), color=colour, linestyle=":", linewidth=1)
        right.plot(m, gain, "o-", markersize=3, color=colour)
        right.plot(length, gain.max(), "*", markersize=14, color=colour, markeredgecolor="white")
    left.set_ylabel("expected accepted drafts per round")
    left.legend(frameon=False, title="acceptance of one draft\n(dotted: the limit)")
    right.axhline(1, color=GREY, linewidth=1)
    right.set_ylabel("speed-up over the verifier alone (star: best)")
    for ax in (left, right):
        ax.set_xlabel("drafted tokens per round, m")
        ax.set_xlim(1, longest)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
