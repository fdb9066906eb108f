r"""Envelopes of the accept-set rules: who is in the set, what is rejected, where that goes.

The verifier's listed tokens are its likeliest, so that ranks and maxima among them are those of the
whole row. An unlisted token may tie with the least listed one: rules that keep ties may keep it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import quiet
from theory.partial.envelope import Between, Envelope
from theory.partial.kept import pieces_of
from theory.partial.rows import PartialRows
from theory.rules.accept_set import TopK, Typical

TIE = 1e-12  # closer to a threshold than this, a token may be on either side


class Members(NamedTuple):
    """Who is accepted: columns that are for certain or may be [R, L], and whether others may."""

    sure: Any
    may: Any
    unlisted: Any  # [R]


def entropy(rows: PartialRows) -> Between:
    """Bounds of H(q): the rest is spread evenly, or fills as few tokens as its cap allows."""
    q, rest = rows.q, rows.q_rest
    listed = -np.sum(q * np.log(np.where(q > 0, q, 1.0)), axis=-1)
    places = rows.unlisted + np.count_nonzero(~rows.q_known, axis=-1)
    if np.any((rest > 0) & (rest > places * rows.q_cap * (1 + 1e-9))):
        row = int(np.argmax(rest - places * rows.q_cap))
        raise ValueError(f"verifier row {row} leaves {rest[row]:.9g}, more than others can hold")
    cap = np.where(rows.q_cap > 0, rows.q_cap, 1.0)
    full = np.floor(rest / cap)
    last = rest - full * cap
    least = -(full * cap * np.log(cap) + last * np.log(np.where(last > 0, last, 1.0)))
    even = np.where(rest > 0, rest / np.maximum(places, 1), 1.0)
    most = -rest * np.log(even)
    return Between(listed + np.minimum(least, most), listed + most)


@quiet()
def thresholds(rows: PartialRows, epsilon: float, alpha: float) -> tuple[Any, Any]:
    """Bounds of min(ε, α·e^{−H(q)}), [R, 1] each."""
    disorder = entropy(rows)
    low, high = (
        np.minimum(alpha * np.exp(-h), epsilon)[:, None] for h in (disorder.upper, disorder.lower)
    )
    return low * (1.0 - TIE), high * (1.0 + TIE)


def typical_members(rows: PartialRows, rule: Typical) -> Members:
    """q > min(ε, α·e^{−H}), H between its bounds."""
    low, high = thresholds(rows, rule.epsilon, rule.alpha)
    at_most = np.where(rows.q_known, rows.q, rows.q_cap[:, None])
    sure = rows.q_known & (rows.q > high)
    return Members(sure, at_most > low, rows.q_cap > low[:, 0])


def ranked_members(rows: PartialRows, count: int, least: Any = 0.0) -> Members:
    """The ``count`` largest of q, ties included, of at least ``least`` [R, 1]."""
    q = rows.q
    top = q >= np.maximum(rows.q_cap[:, None], 5e-324)
    ordered = -np.sort(-np.where(top, q, 0.0), axis=-1)
    rank = ordered[:, min(count, q.shape[-1]) - 1][:, None]
    cap = rows.q_cap[:, None]
    complete = np.count_nonzero(top, axis=-1)[:, None] >= count
    near = (q >= least) & (q > 0)
    sure = top & near & (q >= rank)
    # Others are among them where the list is too short, or where they tie with its last.
    beyond = (~complete | (cap >= rank * (1.0 - TIE))) & (cap >= least) & (rows.q_rest[:, None] > 0)
    listed_below = ~complete & near & ~top
    may = sure | listed_below | (beyond & ~rows.q_known)
    return Members(sure, may, beyond[:, 0])


def members(rows: PartialRows, rule: Any) -> Members:
    """Who the rule accepts."""
    if isinstance(rule, Typical):
        return typical_members(rows, rule)
    if isinstance(rule, TopK):
        return ranked_members(rows, rule.k)
    largest = rows.q_max[:, None]
    return ranked_members(rows, rule.n, largest - rule.delta)


@quiet()
def accept_set(rows: PartialRows, rule: Any) -> Envelope:
    """The envelope of p·1[S] + p(Sᶜ)·recovery."""
    found = members(rows, rule)
    p, known = rows.core_p, rows.known
    drafted = rows.p
    hidden = found.unlisted | np.any(found.may & ~rows.p_known, axis=-1)
    accepted = Between(
        np.sum(np.where(found.sure, drafted, 0.0), axis=-1),
        np.minimum(np.sum(np.where(found.may, drafted, 0.0), axis=-1) + hidden * rows.p_rest, 1.0),
    )
    # From what is rejected itself: 1 − Σ would leave rounding where nothing is.
    first, last = pieces_of(
        np.sum(np.where(found.may, 0.0, drafted), axis=-1) + np.where(hidden, 0.0, rows.p_rest),
        np.sum(np.where(found.sure, 0.0, drafted), axis=-1) + rows.p_rest,
    )
    recovery = _recovery(rows, rule, found)
    kept = np.where(found.sure & known, p, 0.0), np.where(found.may & known, p, 0.0)
    boxes = [
        np.where(known[:, None, :], k[:, None, :] + r[..., None] * g[:, None, :], 0.0)
        for k, r, g in zip(kept, (first, last), recovery)
    ]
    return Envelope(
        rows, accepted, boxes[0], boxes[1], _ratios(rows, rule, found, recovery, first, last)
    )


def _recovery(rows: PartialRows, rule: Any, found: Members) -> tuple[Any, Any]:
    """Bounds of the recovery at the listed tokens, [R, L]."""
    q = rows.q
    if isinstance(rule, TopK):
        weights = _weights(rows, rule, found, q)
        others = rows.q_rest if rule.recover_by == "verifier" else math.inf
        largest = weights[1].sum(axis=-1) + np.where(found.unlisted, others, 0.0)
        total = [np.maximum(v, 5e-324)[:, None] for v in (largest, weights[0].sum(axis=-1))]
        return weights[0] / total[0], np.minimum(weights[1] / total[1], 1.0)
    if isinstance(rule, Typical) and rule.recover_by == "verifier":
        return q, q
    return mode_of(rows)


def mode_of(rows: PartialRows) -> tuple[Any, Any]:
    """Bounds of the one-hot at the likeliest verifier token, the lowest index on ties, [R, L]."""
    tied = rows.q_known & (rows.q == rows.q_max[:, None]) & (rows.token >= 0)
    first = np.argmin(np.where(tied, rows.token, rows.vocabulary), axis=-1)
    mode = (np.arange(rows.q.shape[-1]) == first[:, None]).astype(np.float64)
    return np.where(mode_elsewhere(rows)[:, None], 0.0, mode), mode


def mode_elsewhere(rows: PartialRows) -> Any:
    """Whether an unlisted token may tie with the likeliest, [R]: all that are listed do then."""
    return (rows.q_rest > 0) & (rows.q_cap >= rows.q_max * (1.0 - TIE))


def _weights(rows: PartialRows, rule: TopK, found: Members, q: Any) -> tuple[Any, Any]:
    """Bounds of the weights that norm() is taken of: q, or (1 − p)₊, on the set."""
    if rule.recover_by == "verifier":
        return np.where(found.sure, q, 0.0), np.where(found.may, q, 0.0)
    most = np.where(rows.p_known, rows.p, rows.p_cap[:, None])
    return np.where(found.sure, 1.0 - most, 0.0), np.where(found.may, 1.0 - rows.p, 0.0)


def _ratios(
    rows: PartialRows, rule: Any, found: Members, recovery: Any, first: Any, last: Any
) -> tuple[Any, Any]:
    """Bounds of π/q outside A, [R, J]: of tokens that the verifier lists, and of all others."""
    listed = rows.q_known & ~rows.p_known & (rows.q > 0)
    safe = np.where(listed, rows.q, 1.0)
    own = np.where(listed & found.may, rows.p_cap[:, None], 0.0)[:, None, :]
    emitted = own + last[..., None] * recovery[1][:, None, :]
    ratio = np.where(listed[:, None, :], emitted / safe[:, None, :], 0.0)
    high = np.max(ratio, axis=-1)
    open_ended = found.unlisted | np.any(found.may & ~rows.q_known, axis=-1)
    if not (isinstance(rule, TopK) or getattr(rule, "recover_by", "") == "verifier"):
        open_ended = open_ended | mode_elsewhere(rows)
    follows = isinstance(rule, Typical) and rule.recover_by == "verifier"
    high = np.where(open_ended[:, None], math.inf, np.maximum(high, last if follows else 0.0))
    return (first if follows else np.zeros_like(first)), high
