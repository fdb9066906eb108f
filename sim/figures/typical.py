"""Figures of typical acceptance: what it rewards, and when it accepts more or less."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from numpy.typing import ArrayLike

from sim.checks import require_count
from sim.drawing.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    RED,
    SHADE,
    Drawing,
    check_names,
    check_row,
    check_values,
    drawing,
)
from sim.figures.tradeoff import KIND_COLOURS, rule_markers
from sim.pairs.families import Gaussian, generators
from sim.tables.grid import kind_of
from theory import candidate_target, divergence, make_rule, one_steps
from theory.pair import Pair

__all__ = ["collapse_path", "entropy_by_acceptance", "typical_map"]


def collapse_path(q: ArrayLike, n: int, names: Sequence[str] | None = None) -> Drawing:
    """KL, entropy and cross-entropy as the target of token n goes from q to certainty, in nats.

    Raises ValueError where q is no distribution or n no token of it.
    """
    (q,) = check_row(q=q)
    names = check_names(names, q.size)
    if n not in range(q.size) or not 0 < q[n] < 1:
        raise ValueError(f"n must be a token with 0 < q < 1, got {n!r}")
    gamma = np.linspace(q[n], 1, 301)
    rows = np.stack([candidate_target(q, n, g) for g in gamma])
    spent = divergence("kl", rows, np.broadcast_to(q, rows.shape), validate=False)
    entropy = -np.sum(rows * np.log(np.where(rows > 0, rows, 1)), axis=-1)
    cross = spent + entropy
    change = cross[-1] - cross[0]
    figure, (ax,) = drawing(
        f"Making {names[n]} certain costs {spent[-1]:.3g} nats of KL and destroys "
        f"{entropy[0]:.3g} nats of entropy: their sum, which\ntypical acceptance budgets, "
        f"{'falls' if change < 0 else 'rises'} by only {abs(change):.3g} nats",
        8.8,
        4.8,
    )
    ax.fill_between(gamma, spent, spent + entropy, color=SHADE)
    ax.plot(gamma, cross, color=RED, linewidth=2, label="cross-entropy H(h, q) = KL + entropy")
    ax.plot(gamma, spent, color=BLUE, linewidth=2, label="KL(h‖q)")
    ax.plot(gamma, entropy, color=ORANGE, linewidth=2, linestyle="--", label="entropy H(h)")
    ax.set_xlim(q[n], 1)
    ax.set_ylim(0, 1.45 * float(cross.max()))
    ax.set_xlabel(f"probability of {names[n]} under the target h (left end: the verifier)")
    ax.set_ylabel("nats")
    ax.legend(frameon=False, loc="upper left", ncols=3, fontsize=9)
    return figure


def typical_map(
    scales: ArrayLike,
    correlations: ArrayLike,
    *,
    vocab: int = 512,
    rows: int = 24,
    delta: float = 0.01,
    seed: int = 0,
) -> Drawing:
    """Acceptance of `typical` minus that of `sps` and of `cactus` over Gaussian-logit verifiers.

    scales: standard deviations of the logits (small: spread out). correlations of the draft's
    logits with them. Raises ValueError for values out of range.
    """
    scales = check_values("scales", scales, 0, np.inf)
    correlations = check_values("correlations", correlations, -1, 1, inside=False)
    require_count("rows", rows, 1)
    rules = [make_rule("typical"), make_rule("sps"), make_rule("cactus", delta=delta)]
    entropy = np.zeros(scales.size)
    gain = np.zeros((2, correlations.size, scales.size))
    streams = generators(seed, gain[0].size)
    for i, correlation in enumerate(correlations):
        for j, scale in enumerate(scales):
            batch = Gaussian(scale, correlation).sample(rows, vocab, next(streams))
            laws = one_steps(rules, batch.p, batch.q)
            typical, *others = (float(np.mean(law.acceptance)) for law in laws)
            gain[:, i, j] = typical - np.array(others)
            pair = Pair.prepare(batch.p, batch.q, sort=False)
            entropy[j] += float(np.mean(pair.verifier_entropy)) / correlations.size
    less = [np.mean(values < -1e-3) for values in gain]
    figure, axes = drawing(
        f"Typical acceptance accepts less than strict sampling on {less[0]:.0%} of this map, and "
        f"less than cactus (δ = {delta:g}) on {less[1]:.0%}:\nalways where the draft is perfect "
        "(correlation 1), since it turns down the verifier's own rare tokens",
        12,
        5,
        2,
        sharey=True,
    )
    x, y = np.arange(scales.size), np.arange(correlations.size)
    norm = TwoSlopeNorm(0.0, -float(np.abs(gain).max()), float(np.abs(gain).max()))
    for ax, values, other in zip(axes, gain, ("sps", f"cactus, δ = {delta:g}")):
        ax.grid(False)
        image = ax.pcolormesh(x, y, values, cmap="PuOr", norm=norm, shading="nearest")
        for i, j in np.ndindex(values.shape):
            ax.text(j, i, f"{values[i, j]:+.2f}", ha="center", va="center", fontsize=7)
        ax.set_xticks(x, [f"{value:.1f}" for value in entropy])
        ax.set_yticks(y, [f"{value:g}" for value in correlations])
        ax.set_xlabel("mean entropy of the verifier, nats")
        ax.set_title(f"typical compared with {other}", fontsize=10, loc="left")
    axes[0].set_ylabel("correlation of draft and verifier logits")
    label = "difference in acceptance (orange: typical accepts less)"
    figure.colorbar(image, ax=axes, label=label)
    return figure


def entropy_by_acceptance(table: pd.DataFrame, rules: Sequence[str]) -> Drawing:
    """Entropy of what is emitted against acceptance, for some rules of a table of one source.

    `table` as in sim.tables.tradeoff. Raises ValueError where it lacks one of the rules or `sps`.
    """
    missing = {*rules, "sps"} - set(table["rule"])
    if missing:
        raise ValueError(f"the table has no rows of {', '.join(sorted(missing))}")
    strict = table[table["rule"] == "sps"].iloc[0]
    told = 0.5 * (1 + strict["acceptance"])
    curves = {
        rule: table[table["rule"] == rule].sort_values(["acceptance", "value"]) for rule in rules
    }
    entropies = [_entropy_at(curve, told) for curve in curves.values()]
    figure, (ax,) = drawing(
        f"Entropy of what is emitted, in nats per token, where {told:.2f} of the drafts are "
        f"accepted\n(the verifier's: {strict['entropy_verifier']:.2f}): "
        + ", ".join(f"{rule} {text}" for rule, text in zip(rules, entropies)),
        9,
        5.2,
    )
    markers = rule_markers(list(rules))
    shades = dict(zip(rules, (RED, BLUE, "#009E73", "#CC79A7", ORANGE, "#56B4E9")))
    for rule, points in curves.items():
        ax.plot(points["acceptance"], points["entropy_output"], marker=markers[rule], markersize=5,
                color=shades.get(rule, KIND_COLOURS[kind_of(rule)]), label=rule)  # fmt: skip
    ax.axvline(told, color=GREY, linewidth=0.8)
    ax.axhline(strict["entropy_verifier"], color=GREY, linestyle="--", label="the verifier")
    ax.plot(strict["acceptance"], strict["entropy_output"], "*", color=BLACK, markersize=14,
            label="sps, strict")  # fmt: skip
    ax.set_xlabel("acceptance (mean over rows)")
    ax.set_ylabel("entropy of the emitted law, nats")
    ax.legend(frameon=False, fontsize=9)
    return figure


def _entropy_at(curve: pd.DataFrame, acceptance: float) -> str:
    """On the line through the measured points; a rule that was not measured there has none."""
    accepted = curve["acceptance"].to_numpy()
    if not accepted[0] <= acceptance <= accepted[-1]:
        return f"(only measured from {accepted[0]:.2f} to {accepted[-1]:.2f})"
    return f"{np.interp(acceptance, accepted, curve['entropy_output']):.2f}"
