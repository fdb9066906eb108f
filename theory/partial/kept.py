r"""Envelopes of rules that emit what they keep, and one fixed residual for what they reject.

π = kept + ρ·(q − p)₊ with kept(p, q) known token by token and one scale ρ = (1 − Σ kept)/TV(p, q)
of the row: what is unknown on A is ρ alone, and it is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from theory.arrays import quiet
from theory.partial.envelope import Between, Envelope
from theory.partial.rows import PartialRows

PIECES = 8
ROUNDING = 1e-14  # of a mass: a rest below it may be none


def pieces_of(low: Any, high: Any) -> tuple[Any, Any]:
    """Cut [low, high] [R] into pieces: their ends, [R, J] each; a point is one piece."""
    count = PIECES if np.any(high - low > 1e-12) else 1
    share = np.linspace(0.0, 1.0, count + 1)
    ends = low[:, None] + (high - low)[:, None] * share
    ends[:, -1] = high
    return ends[:, :-1], ends[:, 1:]


def pinned(rows: PartialRows, emitted: Any, ratio: Any, acceptance: Between) -> Envelope:
    """The envelope of a law that is known on A, with one ratio π/q outside."""
    box = emitted[:, None, :]
    at = np.broadcast_to(np.asarray(ratio, dtype=float), (len(emitted),))[:, None]
    return Envelope(rows, acceptance, box, box, (at, at))


def strict(rows: PartialRows) -> Envelope:
    """Strict sampling: the verifier is emitted, and TV(p, q) lies between split and merged."""
    inside = np.minimum(rows.core_p, rows.core_q).sum(axis=-1)
    shared = np.minimum(rows.p_outside, rows.q_outside)
    return pinned(rows, rows.core_q, 1.0, Between(inside, np.minimum(inside + shared, 1.0)))


def _column(values: Any, like: Any) -> Any:
    return np.broadcast_to(np.asarray(values, dtype=float), like.shape)[:, None]


@quiet()
def kept_and_residual(
    rows: PartialRows,
    kept: Callable[[Any, Any], Any],
    most: Any,
    *,
    overlap_share: float,
    largest_ratio: Any,
    least_ratio: float = 1.0,
) -> Envelope:
    """The envelope of kept(p, q) + ρ·(q − p)₊, kept ≤ p.

    ``most`` [R] bounds what is kept outside A; of what is kept, ``overlap_share`` at least is
    overlap, min(p, q) ≥ share·kept. ``largest_ratio`` bounds kept/q, and ``least_ratio`` does so
    from below where p ≥ q: at 1 the overlap is always kept, so that ρ ≤ 1.
    """
    p, q = rows.core_p, rows.core_q
    inside = kept(p, q)
    accepted = inside.sum(axis=-1)
    most = np.minimum(most, rows.p_outside)
    # From what is missing itself: 1 − Σ would leave few digits where the two rows are nearly equal.
    rejected = (p - inside).sum(axis=-1) + rows.p_outside
    distance = np.maximum(q - p, 0.0).sum(axis=-1) + rows.q_outside
    # ρ falls in the mass that is kept outside A, where the overlap is at least its share of that.
    # It is largest where nothing is kept there: neither is the overlap, or all of it is rejected.
    shared = 0.0 if least_ratio == 1.0 else np.minimum(rows.p_outside, rows.q_outside)
    ends = (rejected - most, distance - overlap_share * most), (rejected, distance - shared)
    limit = 1.0 if least_ratio == 1.0 else 1e300
    low, high = (np.where(d > 0, np.clip(r / d, 0.0, limit), limit) for r, d in ends)
    if least_ratio < 1.0:  # more may be rejected than TV, and ρ rise in what is kept outside
        low = np.minimum(low, np.where(distance > 0, rejected / distance, limit))
    low = np.where(rejected - most <= ROUNDING, 0.0, low)
    first, last = pieces_of(np.minimum(low, high), high)
    residual = np.maximum(q - p, 0.0)[:, None, :]
    return Envelope(
        rows,
        Between(accepted, np.minimum(accepted + most, 1.0)),
        inside[:, None, :] + first[..., None] * residual,
        inside[:, None, :] + last[..., None] * residual,
        (np.minimum(first, least_ratio), np.maximum(_column(largest_ratio, low), last)),
    )
