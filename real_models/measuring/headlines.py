"""What a measurement tells first: strict acceptance, and what a small budget buys and costs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["HEADLINE_BUDGET", "headlines", "sentences"]

HEADLINE_BUDGET = 0.01  # nats; the budget of `cactus` that is told about


def headlines(table: pd.DataFrame) -> list[dict[str, Any]]:
    """What to say of each sampling setting first, where the table has it.

    The acceptance of `sps`, at a KL of 0; of `cactus` at the budget nearest to HEADLINE_BUDGET the
    acceptance, the realised KL, how often that is the budget, and the most that any rule accepts
    at that KL.
    """
    told = []
    for label, rows in table.groupby("pair", sort=False):
        facts: dict[str, Any] = {"pair": label}
        strict = rows[rows["rule"] == "sps"]
        if len(strict):
            facts["sps"] = _facts(strict.iloc[0], ("acceptance", "kl_output_verifier"))
        spent = rows[(rows["rule"] == "cactus") & (rows["value"] > 0)]
        if len(spent):
            nearest = (np.log(spent["value"] / HEADLINE_BUDGET)).abs().to_numpy().argmin()
            row = spent.iloc[nearest]
            names = ("acceptance", "kl_output_verifier", "frontier_acceptance", "frontier_gap")
            facts["cactus"] = {"delta": float(row["value"]), **_facts(row, names)}
            facts["cactus"]["times_budget"] = row["kl_output_verifier"] / row["value"]
        told.append(facts)
    return told


def _facts(row: pd.Series, names: Sequence[str]) -> dict[str, float]:
    """Means of a row of the table with their standard errors."""
    return {column: float(row[column]) for name in names for column in (name, f"{name}_se")}


def sentences(facts: dict[str, Any]) -> list[str]:
    """The headline of one sampling setting, line by line."""
    lines = [facts["pair"]]
    if "sps" in facts:
        strict = facts["sps"]
        lines.append(
            f"  sps accepts {_with_error(strict, 'acceptance')}"
            f" at {strict['kl_output_verifier'] + 0.0:.2g} nats from the verifier"
        )
    if "cactus" in facts:
        cactus = facts["cactus"]
        lines += [
            f"  cactus with δ = {cactus['delta']:g} accepts {_with_error(cactus, 'acceptance')}",
            f"    and emits KL(output‖verifier) = {_with_error(cactus, 'kl_output_verifier')} nats,"
            f" {cactus['times_budget']:.3g} times its budget;",
            f"    the best rule accepts {_with_error(cactus, 'frontier_acceptance')} there",
        ]
    return lines


def _with_error(facts: dict[str, float], name: str) -> str:
    error = facts[f"{name}_se"]
    return f"{facts[name]:.4f}" + (f" ± {error:.4f}" if math.isfinite(error) else "")
