r"""Envelopes of the engines' baselines: the verifier cut to a set, and acceptance at a given rate.

A cut law q·1[S]/q(S) is as far from q as d_f(1, q(S)), which falls with q(S): bounds of that one
mass bound every divergence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.arrays import quiet
from theory.divergences.kinds import Divergence
from theory.partial.accepted import (
    TIE,
    Members,
    mode_elsewhere,
    mode_of,
    ranked_members,
    thresholds,
)
from theory.partial.envelope import Between, Envelope
from theory.partial.kept import ROUNDING as TINY
from theory.partial.kept import pieces_of, strict
from theory.partial.rows import PartialRows
from theory.partial.targets import mixture
from theory.rules.fixed_rate import Synthetic
from theory.rules.truncated import ROUNDING, TruncatedTopK, TruncatedTypical


@quiet()
def truncated(rows: PartialRows, rule: Any) -> Envelope:
    """The envelope of q·1[S]/q(S)."""
    found, least = _members(rows, rule)
    q = rows.q
    mode = rows.q_known & (q == rows.q_max[:, None])
    # The likeliest is always kept, with what ties with it.
    tied = mode_elsewhere(rows)
    found = found._replace(unlisted=found.unlisted | tied)
    sure, may = found.sure | mode, found.may | mode | (tied[:, None] & ~rows.q_known)
    # The mass that is cut, from what is cut, so that a cut of nothing is 0 to the last digit.
    cut = Between(
        np.sum(np.where(may, 0.0, q), axis=-1) + np.where(found.unlisted, 0.0, rows.q_rest),
        np.minimum(np.sum(np.where(sure, 0.0, q), axis=-1) + rows.q_rest, 1.0 - least),
    )
    cut = Between(cut.lower, np.maximum(cut.upper, cut.lower))
    core = rows.core_q
    boxes = [
        np.where(member, core, 0.0) / (1.0 - mass[:, None])
        for member, mass in ((sure, cut.lower), (may, cut.upper))
    ]
    return _cut_envelope(rows, boxes, cut, sure, may, found.unlisted)


def _cut_envelope(
    rows: PartialRows, boxes: list[Any], cut: Between, sure: Any, may: Any, unlisted: Any
) -> Envelope:
    """The envelope from the box on A, the mass that is cut and who outside A may be kept."""
    outside = ~rows.known & rows.q_known & (rows.q > 0)
    any_kept = unlisted | np.any(outside & may, axis=-1)
    all_kept = np.all(sure | ~outside, axis=-1) & (rows.q_rest == 0)
    high = np.where(any_kept, 1.0 / (1.0 - cut.upper), 0.0)
    low = np.where(all_kept & any_kept, 1.0 / (1.0 - cut.lower), 0.0)
    inside = [np.sum(np.minimum(rows.core_p, box), axis=-1) for box in boxes]
    most = np.minimum(rows.p_outside, high * rows.q_outside)

    def known(kind: Divergence) -> Between:
        """d_f(1, q(S)) grows with what is cut."""
        one = np.ones_like(cut.lower)
        ends = (kind.term(one, 1.0 - c) + kind.term(0.0 * one, c) for c in cut)
        return Between(*ends)

    return Envelope(
        rows,
        Between(inside[0], np.minimum(inside[1] + most, 1.0)),
        boxes[0][:, None, :],
        boxes[1][:, None, :],
        (low[:, None], high[:, None]),
        known=known,
    )


def _members(rows: PartialRows, rule: Any) -> tuple[Members, Any]:
    """Who is kept, and a mass that the set has at least."""
    if isinstance(rule, TruncatedTypical):
        low, high = thresholds(rows, rule.epsilon, rule.alpha)
        at_most = np.where(rows.q_known, rows.q, rows.q_cap[:, None])
        sure = rows.q_known & (rows.q >= high)
        return Members(sure, at_most >= low, rows.q_cap >= low[:, 0]), 0.0
    if isinstance(rule, TruncatedTopK):
        return ranked_members(rows, rule.k), 0.0
    return _nucleus(rows, rule.top_p), rule.top_p - (ROUNDING if rule.top_p < 1.0 else 0.0)


def _nucleus(rows: PartialRows, top_p: float) -> Members:
    """The likeliest tokens before which less than top_p comes; others where all listed are in."""
    q = rows.q
    top = (q >= np.maximum(rows.q_cap[:, None], 5e-324)) & (q > 0)
    ordered = -np.sort(-np.where(top, q, 0.0), axis=-1)
    before = np.cumsum(ordered, axis=-1) - ordered
    kept = (before < top_p - ROUNDING) & (ordered > 0)
    lowest = np.min(np.where(kept, ordered, 1.0), axis=-1)[:, None]
    sure = top & ((q >= lowest) | (top_p == 1.0))
    reached = np.sum(np.where(sure, q, 0.0), axis=-1) >= top_p - 2 * ROUNDING
    # Others are in where the list does not reach, or where they tie with the last that is.
    ties = rows.q_cap >= lowest[:, 0] * (1.0 - TIE)
    open_ended = (~reached | ties) & (rows.q_rest > 0)
    rest = np.where(rows.q_known, ~reached[:, None] & (q > 0), open_ended[:, None])
    return Members(sure, sure | rest, open_ended)


@quiet()
def synthetic(rows: PartialRows, rule: Synthetic) -> Envelope:
    """The envelope of rate·p + (1 − rate)·recovery."""
    rate = float(rule.rate)
    acceptance = Between(*(np.full(len(rows.p), rate) for _ in range(2)))
    if rule.recover_by == "verifier":
        found = mixture(rows, rate) if rate > 0 else strict(rows)
        return Envelope(rows, acceptance, found.low, found.high, found.ratio)
    if rule.recover_by == "argmax":
        boxes = [
            (rate * rows.core_p + (1.0 - rate) * mode * rows.known)[:, None, :]
            for mode in mode_of(rows)
        ]
        ends = np.zeros((len(rows.p), 1)), np.full((len(rows.p), 1), math.inf)
        return Envelope(rows, acceptance, boxes[0], boxes[1], ends)
    return _synthetic_residual(rows, rate, acceptance)


def _synthetic_residual(rows: PartialRows, rate: float, acceptance: Between) -> Envelope:
    """rate·p + ρ(q − p)₊ with ρ = (1 − rate)/TV(p, q), TV between merged and split."""
    distance = [  # by the residual itself, which is what is normalised
        np.sum(np.maximum(pair.q - pair.p, 0.0), axis=-1) for pair in (rows.split, rows.merged)
    ]
    none = distance[1] <= TINY  # p = q leaves no residual: the verifier is emitted in its place
    first, last = pieces_of(*((1.0 - rate) / np.where(d > TINY, d, 1.0) for d in distance))
    first, last = np.where(none[:, None], 0.0, first), np.where(none[:, None], 1e300, last)
    residual = np.maximum(rows.core_q - rows.core_p, 0.0)[:, None, :]
    kept = rate * rows.core_p[:, None, :]
    top = np.full_like(last, math.inf) if rate > 0 else last
    boxes = [kept + np.minimum(scale[..., None] * residual, 1.0) for scale in (first, last)]
    low = np.minimum(first, rate) if rate > 0 else np.zeros_like(first)
    boxes[1] = np.where(none[:, None, None], 1.0, boxes[1])
    return Envelope(rows, acceptance, boxes[0], boxes[1], (low, top))
