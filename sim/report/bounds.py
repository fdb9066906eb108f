"""What a job leaves behind where only bounds are known: a table, a picture, a printed list."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from sim.report.bars import plot_bounds
from sim.report.page import Picture
from sim.tables.summary import LEVEL

__all__ = ["Written", "bounds_text", "write_bounds"]

_CAPTION = (
    "Where only the likeliest tokens are listed, what a rule does depends on how the others share "
    "the rest. Each cross holds for every way to spread it: its bars run from the lower to the "
    "upper bound of the mean acceptance and of the mean divergence. An arrow stands at the lower "
    "bound of a divergence that has no upper one: a token may be emitted that the verifier never "
    "emits. The dark band is the frontier between its bounds: no rule can be above it, whatever "
    "the rest."
)


@dataclass(frozen=True)
class Written:
    """Files by name, the pictures among them for a report, and the table of the bounds."""

    files: Mapping[str, Path] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    table: pd.DataFrame | None = None


def write_bounds(out: Path, table: pd.DataFrame, frontier: pd.DataFrame) -> Written:
    """Write the table of bounds, its frontiers and its picture to the folder `out`.

    `table` has the columns KEYS of `tables.tradeoff`, and of each measure `_lower` and `_upper`
    with `_se`; `frontier` those of `Tradeoff.frontier` and `bound`, "lower" or "upper".
    """
    names = ("bounds.parquet", "bounds_frontier.parquet", "bounds.png")
    files = {name: out / name for name in names}
    table.to_parquet(files["bounds.parquet"], index=False)
    frontier.to_parquet(files["bounds_frontier.parquet"], index=False)
    plot_bounds(table, frontier, files["bounds.png"], _finding(table))
    picture = Picture(files["bounds.png"], "Bounds where the rest is not listed", _CAPTION)
    return Written(files, (picture,), table)


def bounds_text(table: pd.DataFrame) -> str:
    """A line for each rule: at its laxest value whose mean KL is within LEVEL, or strictest."""
    lines = []
    for (pair, rule), rows in table.groupby(["pair", "rule"], sort=False):
        if not lines:
            lines.append(f"Bounds at {pair!r}, for every way to spread what is not listed:")
            lines.append(
                f"  {'rule':<20}{'value':>10}  acceptance      KL, nats         best of any"
            )
        row = _chosen(rows)
        value = f"{row['value']:.4g}" if row["parameter"] else ""
        told = (_span(row, name) for name in ("acceptance", "kl_output_verifier",
                                              "frontier_acceptance"))  # fmt: skip
        accepted, spent, best = told
        lines.append(f"  {rule:<20}{value:>10}  {accepted:<15}{spent:<17}{best}")
    return "\n".join(lines)


def _chosen(rows: pd.DataFrame) -> pd.Series:
    within = rows[rows["kl_output_verifier_upper"] <= LEVEL]
    if len(within):
        return within.loc[within["acceptance_lower"].idxmax()]
    return rows.loc[rows["kl_output_verifier_lower"].idxmin()]


def _span(row: pd.Series, name: str) -> str:
    low, high = row[f"{name}_lower"], row[f"{name}_upper"]
    places = 4 if name.startswith("kl") else 3
    end = "∞" if np.isinf(high) else f"{high:.{places}f}"
    return f"{low:.{places}f} – {end}"


def _finding(table: pd.DataFrame) -> str:
    """What the picture shows in one sentence."""
    width = table["acceptance_upper"] - table["acceptance_lower"]
    positions = table["positions"].iloc[0]
    return (
        f"What the listed tokens leave open: acceptance is known within {width.median():.3f} "
        f"(median over {len(table)} settings, {positions} positions)"
    )
