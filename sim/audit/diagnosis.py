"""In words: which part of a sampler is wrong, where, in which direction, and what it looks like."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sim.audit.evidence.claim import FLOOR, ClaimEvidence
from sim.audit.evidence.learned import Learned

__all__ = ["budget_lines", "cells_of", "claim_lines", "nearest_fault"]

_ALIKE, _NEAR = 0.8, 0.6  # shares of the evidence that a known fault explains
_NOTHING = 1e-5  # of a share: what rounding may add is told as 0
_SHOWN = 3.0  # standard errors from which a cell is worth a word


def cells_of(evidence: ClaimEvidence, names: Sequence[str]) -> pd.DataFrame:
    """Every cell that was visited, with how often its outcome was to be expected and was seen.

    part; block, place, drafted and token (−1 where there is none); rounds; law and seen, shares of
    the rounds; z, the difference in standard errors, inf where the law has no such outcome.
    """
    places, vocab = evidence.places, evidence.vocab
    learned, tables = evidence.learned, []
    for part, level, outcomes in (
        ("accepted drafts", "block", slice(None)),
        ("acceptance", "token", slice(1, 2)),
        ("recovery", "block", slice(None)),
        ("bonus", "block", slice(None)),
    ):
        cell, outcome, counts = _visited(learned[part][level], outcomes)
        block, place, drafted = cell, np.full_like(cell, -1), np.full_like(cell, -1)
        if part == "acceptance":
            block, place, drafted = cell // (places * vocab), cell // vocab % places, cell % vocab
            outcome = drafted
        elif part == "recovery":
            block, place = cell // places, cell % places
        elif part == "bonus":
            place = np.full_like(cell, places)
        columns = {"part": part, "block": np.asarray(names)[block], "place": place}
        tables.append(pd.DataFrame(columns | {"drafted": drafted, "token": outcome} | counts))
    return pd.concat(tables, ignore_index=True)


def _visited(
    cells: Learned, outcomes: slice
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The cells and outcomes that were to be expected or seen, and what is to be said of them."""
    seen, law = cells.observed[:, outcomes], cells.expected[:, outcomes]
    rounds = cells.observed.sum(axis=-1)
    cell, outcome = np.nonzero((seen > 0) | (law > 1e-3 * (rounds > 0)[:, None]))
    n, observed, expected = rounds[cell], seen[cell, outcome], law[cell, outcome]
    error = np.sqrt(np.maximum(expected * (1 - np.minimum(expected / n, 1)), 0) + 1e-12)
    with np.errstate(divide="ignore"):
        z = np.where(np.isclose(observed, expected, atol=1e-2), 0, (observed - expected) / error)
    counts = {"rounds": n.astype(np.int64), "law": expected / n, "seen": observed / n, "z": z}
    return cell, outcome, counts


def nearest_fault(evidence: ClaimEvidence) -> tuple[str, float]:
    """The known fault that makes the outcomes likeliest, and its share of the evidence.

    The share is its gain in log-likelihood over the claim, of the most that was gained: by itself,
    or by what was learned of every part, impossible rounds included.
    """
    if not evidence.explanations:
        return "", 0.0
    gains = evidence.likelihood[1:] - evidence.likelihood[0]
    best = int(np.argmax(gains))
    learned = sum(
        max(0.0, *(log_e for cells in levels.values() for log_e in cells.log_es))
        for part, levels in evidence.learned.items()
        if part != "accepted drafts"  # which are the acceptances once more
    )
    most = learned - np.log(FLOOR) * sum(evidence.impossible.values())
    share = float(gains[best] / max(most, gains[best], 1e-300))
    return evidence.explanations[best].name, max(share, 0.0)


def claim_lines(
    evidence: ClaimEvidence, cells: pd.DataFrame, nearest: tuple[str, float], level: float
) -> list[str]:
    """A line for each part that is wrong by its own evidence, then what it looks like."""
    log_es = evidence.log_e_of_parts()
    told = {
        "accepted drafts": _accepted_drafts,
        "acceptance": _acceptance,
        "recovery": _tokens,
        "bonus": _tokens,
    }
    lines = [
        f"{part}: {tell(cells[cells['part'] == part])}"
        for part, tell in told.items()
        if log_es[part] >= -np.log(level)
    ]
    # Another law repeats itself more often too; dependent rows do so far beyond what it explains.
    if log_es["independence"] >= max(-np.log(level), *(2 * log_es[part] for part in told)):
        lines.append("independence: outcomes repeat those of the row before; do rows of a batch "
                     "share a uniform number?")  # fmt: skip
    name, share = nearest
    if share >= _NEAR:
        how = "it looks as if" if share >= _ALIKE else "nearest known fault:"
        lines.append(f"{how} {name} ({share:.0%} of the evidence)")
    if not lines and evidence.log_e() >= -np.log(level):
        return ["the parts together are wrong; none is by itself at this level yet"]
    return lines


def _accepted_drafts(cells: pd.DataFrame) -> str:
    rounds = cells.drop_duplicates("block")["rounds"].sum()
    seen, law = (
        float((cells["token"] * cells[side] * cells["rounds"]).sum()) / rounds
        for side in ("seen", "law")
    )
    alike = abs(seen - law) < 0.02 * max(law, 0.05)
    told = f"{seen:.4g} drafts of a round are accepted, {law:.4g} by the law"
    return told + _spread(cells) if alike else told


def _spread(cells: pd.DataFrame) -> str:
    row = _worst(cells)
    return (
        f", but their number is spread otherwise, most in block {row['block']!r}: "
        f"{row['token']} in {_rate(row)}"
    )


def _acceptance(cells: pd.DataFrame) -> str:
    weight = cells["rounds"] / cells["rounds"].sum()
    seen, law = (float((cells[side] * weight).sum()) for side in ("seen", "law"))
    high, low = ((sign * cells["z"] > _SHOWN).any() for sign in (1, -1))
    way = "too high in places and too low in others" if high and low else (
        "too high" if seen > law else "too low")  # fmt: skip
    row = _worst(cells)
    return (
        f"{way}: {seen:.4g} of the tests pass, {law:.4g} by the law; most in block "
        f"{row['block']!r}, place {row['place']}, drafted token {row['drafted']}: {_rate(row)}"
    )


def _tokens(cells: pd.DataFrame) -> str:
    row = _worst(cells)
    return (
        f"drawn from another law, most in block {row['block']!r}, place {row['place']}: token "
        f"{row['token']} in {_rate(row)}"
    )


def _rate(row: pd.Series) -> str:
    """ "0.98 of 1,524, 0.31 by the law"; what rounding may add to nothing is nothing."""
    law = f"{row['law']:.4g}" if row["law"] > _NOTHING else "0"
    return f"{row['seen']:.4g} of {row['rounds']:,}, {law} by the law"


def _worst(cells: pd.DataFrame) -> pd.Series:
    """The cell with the largest share of the evidence: n·KL of what was seen from the law."""
    law, seen = (np.clip(cells[side], 1e-9, 1 - 1e-9) for side in ("law", "seen"))
    spent = seen * np.log(seen / law) + (1 - seen) * np.log((1 - seen) / (1 - law))
    return cells.loc[(cells["rounds"] * spent).idxmax()]


def budget_lines(cells: pd.DataFrame, level: float) -> list[str]:
    """The places with the most evidence against the budget."""
    worst = cells.sort_values("log_e", ascending=False)
    lines = [
        f"block {row['block']!r}, place {row['place']}: about {row['divergence']:.3g} nats over "
        f"{row['rounds']:,} rounds, e-value 10^{row['log_e'] / np.log(10):.1f}"
        for _, row in worst[worst["log_e"] > 0].head(5).iterrows()
    ]
    beyond = int((cells["log_e"] >= -np.log(level)).sum())
    told = f"{beyond} of {len(cells)} places are beyond the budget by their own evidence"
    return [*lines[:1], told, *lines[1:]]
