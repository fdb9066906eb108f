"""Figures of the frontier: the one family behind it, and how far below it the rules are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    PALETTE,
    RED,
    Drawing,
    check_row,
    check_values,
    drawing,
    give_finding,
)
from sim.figures.optimum import KIND_LABELS
from sim.tables.grid import Setting
from theory import (
    RULES,
    CorpusFrontier,
    Pair,
    divergence,
    effective_draft,
    frontier_acceptance,
    frontier_step,
    make_rule,
    one_step,
    one_steps,
)
from theory.candidates import k_seq, lowest_ratio, one_by_one

__all__ = ["candidates_frontier", "clip_picture", "corpus_frontier", "every_divergence"]


def clip_picture(p: ArrayLike, q: ArrayLike, rule: str, value: float) -> Drawing:
    """output/verifier against draft/verifier, token by token: a rule and the optimum at its KL.

    Raises ValueError for invalid rows, an unknown rule or value, and a rule that emits what the
    verifier cannot.
    """
    p, q = check_row(p=p, q=q)
    law = one_step(make_rule(rule, **{RULES[rule].parameter: value}), p, q)
    level = float(divergence("kl", law.output, q))
    if not 0 < level < np.inf:
        raise ValueError(f"{rule} at {value:g} realises a KL of {level:g}; nothing to compare")
    best = frontier_step(p, q, level)
    seen = (p > 0) & (q > 0)
    ratio = p[seen] / q[seen]
    order = np.argsort(ratio)
    figure, (ax,) = drawing(
        f"The optimum clips the ratio draft/verifier from both sides; {rule} bends it otherwise\n"
        f"and accepts {law.acceptance:.4f} where {best.acceptance:.4f} is possible at the same "
        f"{level:.3g} nats",
        8.2,
        5.6,
    )
    ax.loglog(ratio[order], ratio[order], color=GREY, linestyle=":", label="emit the draft: h = p")
    ax.axhline(1, color=GREY, linewidth=0.8, linestyle="--", label="emit the verifier: h = q")
    for output, colour, style, label in (
        (best.output, BLACK, "-", "optimum clip(p, bq, aq)"),
        (law.output, RED, "", f"{rule}, {RULES[rule].parameter} = {value:g}"),
    ):
        lift = (output[seen] / q[seen])[order]
        ax.plot(ratio[order], lift, color=colour, linestyle=style or "none",
                marker="" if style else "o", markersize=4.5, label=label)  # fmt: skip
    ax.set_xlabel("p/q of the token (right of 1: the draft overrates it)")
    ax.set_ylabel("emitted/q of the token")
    ax.legend(frameon=False, loc="lower right")
    return figure


def every_divergence(p: ArrayLike, q: ArrayLike, chosen: Sequence[Setting]) -> Drawing:
    """Six panels, one per divergence: the frontier and the rules of `chosen` on one pair of rows.

    Raises ValueError for invalid rows or settings.
    """
    p, q = check_row(p=p, q=q)
    laws = one_steps([setting.build() for setting in chosen], p, q)
    accepted = np.array([law.acceptance for law in laws])
    rules = list(dict.fromkeys(setting.rule for setting in chosen))
    figure, axes = drawing("", 12.5, 7.2, 6, rows=2, sharey=True)
    worst = dict.fromkeys(rules, 0.0)
    for ax, (kind, label) in zip(axes, KIND_LABELS.items()):
        spent = np.array([divergence(kind, law.output, q) for law in laws])
        best = _best(p, q, spent, kind)
        levels = np.linspace(0, 1.05 * float(divergence(kind, p, q)), 150)
        ax.plot(levels, _best(p, q, levels, kind), color=BLACK,
                linewidth=1.6, label="frontier")  # fmt: skip
        for rule, colour in zip(rules, PALETTE * 9):
            mine = np.array([setting.rule == rule for setting in chosen])
            worst[rule] = max(worst[rule], float(np.max(best[mine] - accepted[mine])))
            ax.plot(spent[mine], accepted[mine], "o", color=colour, markersize=4.5, label=rule)
        ax.set_xlabel(f"{label} of the output")
    for ax in axes[::3]:
        ax.set_ylabel("acceptance")
    axes[0].legend(frameon=False, fontsize=9)
    on = [rule for rule in rules if worst[rule] < 1e-8]
    off = ", ".join(f"{rule} {gap:.4f}" for rule, gap in worst.items() if gap >= 1e-8)
    give_finding(
        figure,
        f"One family is optimal for every divergence: {', '.join(on) or 'no rule here'} lies on "
        f"all six frontiers;\nthe others fall short by up to: {off or 'nothing'}",
    )
    return figure


def candidates_frontier(p: ArrayLike, q: ArrayLike, counts: Sequence[int] = (1, 2, 4)) -> Drawing:
    """What K independent candidates can accept at most by the KL that is spent, and what is in use.

    p, q are one pair of rows [V]. A line for each count: the frontier of the effective draft. Marks
    at 0: lossless ways in use. Raises ValueError for invalid rows and counts.
    """
    p, q = check_row(p=p, q=q)
    most = float(divergence("kl", p, q))
    levels = np.concatenate([[0.0], np.geomspace(1e-4, 1.05, 120)]) * most
    figure, (ax,) = drawing("", 9.0, 5.4)
    told = []
    for count, colour in zip(counts, PALETTE):
        best = _best(effective_draft(p, q, count), q, levels, "kl")
        told.append(f"{best[0]:.3f}")
        name = "candidate" if count == 1 else "candidates"
        ax.plot(levels, best, color=colour, linewidth=1.8, label=f"{count} {name}, at most")
        for (way, law), marker in zip(_IN_USE.items(), "osv"):
            if count > 1:
                ax.plot(0.0, law(p, q, count), marker, color=colour, markersize=7, clip_on=False,
                        label=way if count == counts[-1] else None)  # fmt: skip
    ax.set_xlabel("KL of the output from the verifier, nats")
    ax.set_ylabel("acceptance of a place")
    ax.set_xlim(0, levels[-1])
    ax.legend(frameon=False, loc="lower right")
    ways = ", ".join(map(str, counts))
    give_finding(
        figure,
        f"Without any loss {ways} candidates accept up to {', '.join(told)};\nthe marks at 0 are "
        "lossless ways in use, the rest of a line is what lossy rules can add",
    )
    return figure


_IN_USE = {
    "one by one": one_by_one,
    "K-SEQ": k_seq,
    "the lowest p/q, once": lowest_ratio,
}


def _best(p: np.ndarray, q: np.ndarray, levels: np.ndarray, kind: str) -> np.ndarray:
    """The frontier of one pair of rows at each level."""
    shape = (levels.size, p.size)
    return frontier_acceptance(np.broadcast_to(p, shape), np.broadcast_to(q, shape), levels, kind)


def corpus_frontier(p: ArrayLike, q: ArrayLike, levels: ArrayLike) -> Drawing:
    """Three ways to spend a mean KL over many positions [T, V]: one price, equal shares, lenience.

    Raises ValueError for invalid rows, and for levels that are not positive.
    """
    levels = check_values("levels", levels, 0, np.inf)
    corpus = CorpusFrontier("kl")
    corpus.add(Pair.prepare(p, q))
    shared = np.array([corpus.acceptance(level) for level in levels])
    equal = np.array([np.mean(frontier_acceptance(p, q, level)) for level in levels])
    factors = np.exp(-np.append(0.0, np.geomspace(1e-4, 7, 160)))
    laws = one_steps([make_rule("lenience", l=factor) for factor in factors], p, q)
    spent = [float(np.mean(divergence("kl", law.output, q))) for law in laws]
    lenient = np.interp(levels, spent, [float(np.mean(law.acceptance)) for law in laws])
    lead = shared - equal
    at = int(lead.argmax())
    figure, (ax,) = drawing(
        f"A mean budget is best spent at one price for all positions: at {levels[at]:.2g} nats it "
        f"accepts {shared[at]:.3f},\nequal budgets {equal[at]:.3f}, constant lenience "
        f"{lenient[at]:.3f}",
        8.8,
        5,
    )
    ax.semilogx(levels, shared, color=BLACK, linewidth=2, label="one price: the corpus frontier")
    ax.semilogx(levels, lenient, color=RED, label="lenience with one l")
    ax.semilogx(levels, equal, color=BLUE, linestyle="--", label="the same budget at each position")
    ax.plot([levels[at]] * 2, [shared[at], equal[at]], color=GREY, marker="o", markersize=4)
    ax.set_xlabel("mean KL(output‖verifier), nats")
    ax.set_ylabel("mean acceptance")
    ax.legend(frameon=False)
    return figure
