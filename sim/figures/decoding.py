"""Figures of decoding runs: accepted length, what it costs in divergence, and where time goes.

A table has one row per run, with the columns of `real_models.decoding.metrics.summary`, `draft`
(the draft that proposed) and the `parameters` that were chosen; rows of one rule and parameters
form a curve.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from sim.checks import shortest
from sim.drawing.style import BLACK, GREY, PALETTE, Drawing, drawing, fit_legend
from sim.rounds.metrics import expected_accepted

__all__ = [
    "accepted_lengths",
    "decoding_costs",
    "decoding_times",
    "equal_lengths",
    "rule_names",
]

_MARKERS = "os^DvPX"
_FAINT = "#cccccc"
_PARTS = {
    "draft": "draft model",
    "verify": "verifier",
    "distributions": "softmax and filters",
    "rule": "acceptance rule",
    "prefill": "reading the prompt",
}


def rule_names(table: pd.DataFrame) -> pd.Series:
    """`cactus 0.75`: the rule of each row and its parameters, as they were chosen."""
    names = [
        " ".join([rule, *map(_value, parameters.values())])
        for rule, parameters in zip(table["rule"], table["parameters"])
    ]
    return pd.Series(names, index=table.index, dtype=object)


def _value(value: float | str) -> str:
    """Never rounded: rules are told apart by it."""
    return value if isinstance(value, str) else shortest(value)


def accepted_lengths(table: pd.DataFrame) -> Drawing:
    """Accepted length against draft length, one panel per pair and sampling setting.

    Dotted: what a constant acceptance, the mean over the visited places, would give. Raises
    ValueError for an empty table.
    """
    figure, panels = _panels(
        table, "A laxer rule gains most where drafts are long and the draft model is good"
    )
    for (label, runs), ax in panels:
        for style, name, curve in _curves(runs):
            ax.errorbar(
                curve["draft_tokens"], curve["accepted_length"], curve["accepted_length_se"],
                label=name, capsize=2, **style,
            )  # fmt: skip
            if name == "sps":
                rate, lengths = curve["acceptance"].mean(), np.arange(1, 21)
                told = {"color": style["color"], "label": "sps, were all places alike"}
                ax.plot(lengths, expected_accepted(rate, lengths), ":", **told)
        ax.set_title(label, fontsize=10)
        ax.set_xlabel("drafts per round")
        ax.set_ylabel("accepted drafts per round, ± s.e.")
    _legend(figure, panels[0][1])
    return figure


def decoding_costs(table: pd.DataFrame, draft_tokens: int) -> Drawing:
    """Accepted length against the divergence of the run per token, at one draft length.

    Raises ValueError where no run has that draft length.
    """
    chosen = table[table["draft_tokens"] == draft_tokens]
    figure, panels = _panels(
        chosen,
        f"What {draft_tokens} drafts a round are worth, and how far from the verifier they lead",
    )
    for (label, runs), ax in panels:
        for style, name, run in _curves(runs):
            ax.errorbar(
                run["kl_per_token"], run["accepted_length"],
                run["accepted_length_se"], run["kl_per_token_se"], label=name, **style,
            )  # fmt: skip
        ax.set_title(label, fontsize=10)
        ax.set_xscale("symlog", linthresh=0.01)
        ax.set_xlim(left=-0.001)
        ax.set_xlabel("KL from the verifier, nats per token, ± s.e.")
        ax.set_ylabel("accepted drafts per round, ± s.e.")
    _legend(figure, panels[0][1])
    return figure


def equal_lengths(table: pd.DataFrame, named: int = 6) -> Drawing:
    """Accepted length against draft length where all rules are equally far from the verifier.

    The `named` rules that keep most and `sps` stand out, with bars of one standard error; the
    others are thin lines. Raises ValueError for a table without runs of `sps` and another rule.
    """
    means = table.groupby("rule")["accepted_length"].mean().sort_values(ascending=False)
    if "sps" not in means or len(means) < 2:
        raise ValueError("the table has no runs of sps and of a rule to compare it with")
    others = means.index.drop("sps")
    best = list(others[:named])
    figure, panels = _panels(table, _gain_in_words(table, best))
    lengths = sorted(table["draft_tokens"].unique())
    for (label, runs), ax in panels:
        curves = {rule: rows.sort_values("draft_tokens") for rule, rows in runs.groupby("rule")}
        for rule in others[named:].intersection(list(curves)):
            curve = curves[rule]
            ax.plot(curve["draft_tokens"], curve["accepted_length"], color=_FAINT, linewidth=0.8)
        for place, rule in enumerate(best):
            _with_bars(ax, curves[rule], 0.2 * (place - 2), PALETTE[place], _MARKERS[place + 1])
        _with_bars(ax, curves["sps"], 0.0, BLACK, "o", linestyle="--")
        ax.plot([], [], color=_FAINT, linewidth=0.8, label="other rules")
        ax.set_title(label, fontsize=10)
        ax.set_ylim(bottom=0)
        ax.set_xticks(lengths)
        ax.set_xlabel("drafts per round")
        ax.set_ylabel("accepted drafts per round, ± s.e.")
    _legend(figure, panels[0][1])
    return figure


def _with_bars(ax: Axes, curve: pd.DataFrame, aside: float, color: str, marker: str, **style: str):
    """A named curve; its points stand a little aside, so that bars do not hide each other."""
    ax.errorbar(
        curve["draft_tokens"] + aside, curve["accepted_length"], curve["accepted_length_se"],
        color=color, marker=marker, markersize=5, elinewidth=0.7, label=curve["rule"].iloc[0],
        **style,
    )  # fmt: skip


def _gain_in_words(table: pd.DataFrame, best: list[str]) -> str:
    """How many times as much as `sps` the best rules keep, by draft length; geometric means."""
    lengths = table.pivot_table("accepted_length", ["draft_tokens", "settings", "draft"], "rule")
    gain = np.log(lengths[best].mean(axis=1) / lengths["sps"]).groupby("draft_tokens").mean()
    told = ", ".join(f"{np.exp(mean):.1f} times with {m}" for m, mean in gain.items())
    return (
        "Equally far from the verifier, the rules that keep most keep more drafts than sps:\n"
        f"{told} drafts a round"
    )


def decoding_times(table: pd.DataFrame) -> Drawing:
    """Milliseconds per token by part, one bar per run, against the verifier alone.

    Raises ValueError where a run was not compared with the verifier alone.
    """
    if table.empty or table["speed_up"].isna().any():
        raise ValueError("every run needs a speed_up: decode with compare=True")
    best = table.loc[table["speed_up"].idxmax()]
    figure, (ax,) = drawing(
        f"The fastest run is {best['speed_up']:.2f} times as fast as the verifier alone, and the "
        f"slowest {table['speed_up'].min():.2f} times:\na draft pays where it costs little beside "
        "what the verifier saves",
        9.5,
        0.42 * len(table) + 2.1,
    )
    places = np.arange(len(table))[::-1]
    left = np.zeros(len(table))
    for colour, (part, label) in zip(PALETTE, _PARTS.items()):
        spent = [seconds[part] for seconds in table["seconds"]]
        width = 1000 * np.array(spent) / table["tokens"].to_numpy()
        ax.barh(places, width, left=left, height=0.66, color=colour, label=label)
        left += width
    alone = 1000 * table["alone_seconds_per_token"].to_numpy()
    ax.plot(alone, places, "|", color=BLACK, markersize=16, markeredgewidth=2,
            label="the verifier alone")  # fmt: skip
    for place, end, factor in zip(places, np.maximum(left, alone), table["speed_up"]):
        ax.text(end * 1.02, place, f"{factor:.2f}×", va="center", fontsize=9)
    ax.set_xlim(right=1.12 * max(left.max(), alone.max()))
    names = [
        f"{draft}, {settings}, m = {m}: {rule}"
        for draft, settings, m, rule in zip(
            table["draft"], table["settings"], table["draft_tokens"], rule_names(table)
        )
    ]
    ax.set_yticks(places, names, fontsize=9)
    ax.set_ylabel("draft, sampling, drafts per round: rule")
    ax.set_xlabel("milliseconds per token; right of the bar: speed-up over the verifier alone")
    ax.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _panels(
    table: pd.DataFrame, finding: str
) -> tuple[Drawing, list[tuple[tuple[str, pd.DataFrame], Axes]]]:
    """One panel per setting (rows) and pair (columns), with its title and runs."""
    if table.empty:
        raise ValueError("the table has no runs to draw")
    settings, drafts = table["settings"].unique(), table["draft"].unique()
    groups = []
    for setting in settings:
        for draft in drafts:
            runs = table[(table["settings"] == setting) & (table["draft"] == draft)]
            strict = runs["strict_acceptance"].mean()
            groups.append((f"{draft} (sps accepts {strict:.2f})\n{setting}", runs))
    figure, axes = drawing(
        finding, max(3.6 * len(drafts) + 0.4, 5.2), 3.2 * len(settings) + 0.9, len(groups),
        rows=len(settings),
    )  # fmt: skip
    return figure, list(zip(groups, axes))


def _curves(runs: pd.DataFrame):
    """Style, name and rows of every rule, in the order of the table."""
    names = rule_names(runs)
    for place, name in enumerate(names.unique()):
        colour = GREY if name == "sps" else PALETTE[place % len(PALETTE)]
        style = {"color": colour, "marker": _MARKERS[place % len(_MARKERS)], "markersize": 5}
        yield style, name, runs[names == name].sort_values("draft_tokens")


def _legend(figure: Drawing, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    fit_legend(figure, handles, labels, loc="outside lower center")
