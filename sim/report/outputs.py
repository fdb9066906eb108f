"""The files of a finished job: table, frontier, pictures, report and manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sim.figures.tradeoff import BUDGET_RULES, plot_amplification, plot_tradeoff
from sim.jobs.files import write_json
from sim.report.page import Picture, write_report
from sim.tables.findings import amplification_finding, tradeoff_finding
from sim.tables.summary import summarise

__all__ = ["write_outputs"]

_TRADEOFF = (
    "Each mark is one rule at one value of its parameter, measured exactly on the same rows: how "
    "often a drafted token is accepted, against how far the emitted law is from the verifier. The "
    "black line is the corpus frontier, clip(p, b·q, a·q) with one multiplier shared by all "
    "positions; no rule can be above it. The distance down from the line is acceptance left on the "
    "table. The ends of an axis hold divergences of zero (lossless) and of infinity (a token is "
    "emitted that the verifier would never emit)."
)
_AMPLIFICATION = (
    "The budget δ bounds KL(h⁽ⁿ⁾‖q) of the target that belongs to each candidate n, by δ with the "
    "exact γ and by log(1 + 2δ) with the closed form. What is emitted mixes these targets, and its "
    "own divergence can be far above (grey). Where a candidate is accepted with probability γ "
    "itself, the emitted law is the mixture of the targets and the budget does bound it."
)


def write_outputs(
    out: Path,
    table: pd.DataFrame,
    frontier: pd.DataFrame,
    manifest: Mapping[str, Any],
    title: str,
    more: Sequence[Picture] = (),
) -> tuple[dict[str, Path], pd.DataFrame]:
    """Write the files of a job to the folder `out`; return their paths, and the summary.

    `table` has the columns of `tables.tradeoff`, `frontier` those of `Tradeoff.frontier`. The
    picture of budgets is left out where the table has no rule with a budget; `more` pictures stand
    in the report behind the others. The manifest is written last: a folder with one is complete.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = ("tradeoff.parquet", "frontier.parquet", "tradeoff.png", "amplification.png")
    files = {name: out / name for name in (*names, "report.html", "manifest.json")}
    summary = summarise(table, frontier)
    table.to_parquet(files["tradeoff.parquet"], index=False)
    frontier.to_parquet(files["frontier.parquet"], index=False)
    finding = tradeoff_finding(summary)
    plot_tradeoff(table, frontier, files["tradeoff.png"], finding)
    pictures = [Picture(files["tradeoff.png"], "Acceptance against divergence", _TRADEOFF)]
    if table["rule"].isin(BUDGET_RULES).any():
        plot_amplification(table, files["amplification.png"], amplification_finding(table))
        pictures.append(Picture(files["amplification.png"], "What a budget bounds", _AMPLIFICATION))
    else:
        files.pop("amplification.png").unlink(missing_ok=True)
    pictures += more
    write_report(
        files["report.html"],
        title=title,
        finding=finding,
        pictures=pictures,
        summary=summary,
        table=table,
        manifest=manifest,
    )
    write_json(files["manifest.json"], dict(manifest))
    return files, summary
