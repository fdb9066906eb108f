"""Logits to probabilities, and the sampling filters: the one rule for which tokens are kept.

Top-k keeps the k likeliest tokens and all that tie with the last of them. Top-p keeps the smallest
set of the likeliest tokens whose mass reaches p; of equal tokens at its edge it keeps those of
higher index, as transformers does where its sort is stable. The mass is that of the tokens which
top-k left, summed in double precision, and counts as reached within 1e-14.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sim.checks import require_between, require_count
from theory.arrays import kth_largest, namespace, refuse_unfit, scatter_rows, take_rows

__all__ = ["filter_probabilities", "nucleus", "softmax"]

_ROUNDING = 1e-14


def softmax(logits: ArrayLike) -> np.ndarray:
    """exp(logits) / Σ exp(logits) over the last axis; a logit of −∞ gives probability 0.

    An empty batch gives an empty array. Raises ValueError naming the row without a finite largest
    logit: one that holds NaN or +∞, or −∞ alone.
    """
    refuse_unfit("logits", logits)
    logits = np.asarray(logits)
    highest = np.max(logits, axis=-1, keepdims=True)
    _require_rows(np.isfinite(highest[..., 0]), "logits", "has the largest value", highest[..., 0])
    with np.errstate(over="ignore"):  # a difference beyond float64 is −∞
        weights = np.exp(logits - highest)
    return weights / np.sum(weights, axis=-1, keepdims=True)


def filter_probabilities(
    probabilities: ArrayLike, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Keep what top-k, then top-p keep; shapes [..., V] to [..., V].

    top_k = 0 and top_p = 1 keep every token of positive probability. The kept entries are divided
    by their sum, which is what the sampler draws from. Raises ValueError for a count below 0, for
    top_p outside (0, 1], and for rows that are no masses, naming the value.
    """
    require_count("top_k", top_k, 0)
    require_between("top_p", top_p, 0, 1, open_low=True)
    rows = _masses(probabilities)
    flat = rows.reshape(-1, rows.shape[-1])
    if 0 < top_k < flat.shape[-1]:
        flat = np.where(flat >= kth_largest(np, flat, int(top_k))[:, None], flat, 0)
    if top_p < 1:
        flat = np.where(nucleus(flat, float(top_p)), flat, 0)
    total = np.sum(flat, axis=-1, keepdims=True, dtype=np.float64)
    return (flat / total).astype(rows.dtype, copy=False).reshape(rows.shape)


def nucleus(probabilities: Any, top_p: float) -> Any:
    """The tokens that top-p keeps of rows [R, V], as a mask: numpy arrays or torch tensors.

    A token is cut where it and all below it, in ascending order, hold no more than 1 − top_p.
    """
    xp = namespace(probabilities)
    order = xp.argsort(probabilities, axis=-1, stable=True)
    ordered = xp.astype(take_rows(xp, probabilities, order), xp.float64)
    mass = xp.cumulative_sum(ordered, axis=-1)
    kept = mass > (1 - top_p + _ROUNDING) * mass[:, -1:]
    kept[:, -1] = True
    return scatter_rows(xp, xp.astype(kept, xp.int8), order, probabilities.shape[-1]) > 0


def _masses(probabilities: ArrayLike) -> np.ndarray:
    refuse_unfit("probabilities", probabilities)
    rows = np.asarray(probabilities)
    rows = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
    lowest, total = np.min(rows, axis=-1), np.sum(rows, axis=-1, dtype=np.float64)
    _require_rows(lowest >= 0, "probabilities", "has the smallest entry", lowest)
    _require_rows((total > 0) & np.isfinite(total), "probabilities", "has no mass but", total)
    return rows


def _require_rows(holds: np.ndarray, argument: str, fault: str, values: np.ndarray) -> None:
    if not np.all(holds):
        where = np.argwhere(~holds)[0].tolist()
        row = where[0] if len(where) == 1 else where or 0
        raise ValueError(f"{argument} row {row} {fault} {values[~holds].flat[0]}")
