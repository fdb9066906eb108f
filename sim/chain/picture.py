"""The picture of a Markov pair: tokens a round against the divergence by token."""

import numpy as np
import pandas as pd

from sim.drawing.style import BLACK, PALETTE, Drawing, drawing

__all__ = ["chain_picture"]

_MARKS = {"token": ("-", "o"), "block": ("--", "s"), "scaled": (":", "^")}


def chain_picture(table: pd.DataFrame, best: pd.DataFrame) -> Drawing:
    """Each rule by every verification, and the best there is token by token.

    The tables are those of the command: rule, value, verification, kl_per_token and tokens; and
    price, kl_per_token and tokens. Points of endless divergence are not drawn.
    """
    finite = table[np.isfinite(table["kl_per_token"])]
    figure, (ax,) = drawing(_finding(table), 8.5, 5.2)
    ax.plot(best["kl_per_token"], best["tokens"], color=BLACK, linewidth=2.5,
            label="best token by token")  # fmt: skip
    for (rule, verification), rows in finite.groupby(["rule", "verification"], sort=False):
        colour = PALETTE[list(table["rule"].unique()).index(rule) % (len(PALETTE) - 1)]
        line, mark = _MARKS[verification]
        rows = rows.sort_values("kl_per_token")
        ax.plot(rows["kl_per_token"], rows["tokens"], line, marker=mark, color=colour,
                markersize=4, linewidth=1.2, label=f"{rule}, {verification}")  # fmt: skip
    farthest = float(finite["kl_per_token"].max()) if len(finite) else 0.0
    end = float(best["kl_per_token"].max())
    ax.set_xlim(-0.02 * end, 1.05 * max(end, min(farthest, 2 * end)))
    ax.set_xlabel("KL by emitted token, nats (bounds that of a text)")
    ax.set_ylabel("tokens a round")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _finding(table: pd.DataFrame) -> str:
    """What blocks give, on the average of rules and values."""
    plain = table[table["verification"].isin(["token", "block"])]
    wide = plain.pivot_table(
        index=["rule", "value"], columns="verification", values="tokens", dropna=False
    ).dropna()
    if not {"token", "block"} <= set(wide.columns) or wide.empty:
        return "Tokens a round and what they cost"
    gain = 100 * float((wide["block"] / wide["token"] - 1).mean())
    return f"In blocks a round has {gain:.1f} % more tokens, on the average of rules and values"
