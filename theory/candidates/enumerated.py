r"""The effective draft of any joint law of candidates, over a few tokens: by all sets of them.

With draws from different drafts the nested order of claim 26 is lost: u is then the lexicographic
base of F over all sets. The densest set T, with the largest F(T)/q(T), has u/q = F(T)/q(T) on all
of it; given that, the next densest, and so on (Fujishige).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.arrays import Array, check_distribution, coerce, to_numpy

__all__ = ["effective_draft_of"]

MOST = 14  # tokens that any of the rows has: all sets of them are gone through


def effective_draft_of(drafts: Array, q: Array) -> Any:
    r"""Return u ``[V]`` of one candidate from each of K different drafts, drawn independently.

    F(T) = Π_k p_k(T). With equal drafts it is ``effective_draft(p, q, K)``.

    Parameters
    ----------
    drafts : array [K, V]
        The drafts, K ≥ 1; a one-hot row is a candidate that is certain.
    q : array [V]
        The verifier's row.

    Returns
    -------
    numpy array [V]
        float64, exact up to rounding, in O(V·2^V).

    Raises
    ------
    ValueError
        For invalid distributions, shapes that do not match, and more than 14 tokens with mass.

    Notes
    -----
    Source: claim 26 of the ledger.
    """
    drafts, q = coerce(drafts, q, names=("drafts", "q"))
    if drafts.ndim != 2 or q.ndim != 1 or drafts.shape[0] < 1 or drafts.shape[1:] != q.shape:
        shapes = tuple(drafts.shape), tuple(q.shape)
        raise ValueError(f"drafts must be [K, V] beside q [V], got {shapes[0]} and {shapes[1]}")
    check_distribution("drafts", drafts)
    check_distribution("q", q)
    rows, row = (np.asarray(to_numpy(side), dtype=np.float64) for side in (drafts, q))
    known = np.flatnonzero((rows > 0).any(axis=0) | (row > 0))
    if len(known) > MOST:
        raise ValueError(f"{len(known)} tokens have mass; all sets of at most {MOST} can be tried")
    u = np.zeros(len(row))
    u[known] = _lexicographic(_inside(rows[:, known]), row[known])
    return u


def _inside(drafts: Any) -> Any:
    """F of every set of tokens, as a bit mask."""
    held = np.zeros((len(drafts), 1))
    for mass in drafts.T:
        held = np.concatenate([held, held + mass[:, None]], axis=-1)
    return np.prod(held, axis=0)


def _lexicographic(held: Any, q: Any) -> Any:
    """The base that is nearest to q: the densest set first."""
    sets = np.arange(len(held))
    members = (sets[:, None] >> np.arange(len(q))) & 1
    mass = members @ q
    u, done = np.zeros(len(q)), 0
    for token in np.flatnonzero(q == 0):  # what lies there is lost to every law of finite KL
        u[token] = held[done | (1 << token)] - held[done]
        done |= 1 << int(token)
    while done != len(held) - 1:
        more = (sets & done == done) & (mass > mass[done])
        density = np.where(more, (held - held[done]) / np.where(more, mass - mass[done], 1.0), -1)
        near = density >= density.max() * (1 - 1e-12)
        best = int(sets[near][np.argmax(mass[near])])  # the largest of the densest
        new = members[best].astype(bool) & ~members[done].astype(bool)
        u[new] = q[new] * density[best]
        done = best
    return u
