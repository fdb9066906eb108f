r"""Envelopes of the candidate rules, whose target depends on the drafted token.

A donor n of A is rejected with (p_n − γ_n)₊, which is known; where that goes depends on
F(c_n) = Σ(c_n q − p)₊, of which only the part of A is known. With φ the part of F(1) that lies
outside A, that of F(c) is between (φ − (1−c)Q)₊ and cφ: φ is cut into pieces.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.arrays import quiet, quotient
from theory.divergences.kinds import Divergence, resolve_divergence
from theory.partial.envelope import Between, Envelope, Excess
from theory.partial.kept import pieces_of
from theory.partial.rows import PartialRows
from theory.rules.candidate import (
    Cactus,
    CactusExact,
    CactusTargetOnly,
    CandidateRule,
    TargetOnly,
    TargetOnlyRule,
)

LARGE = 1e12  # a ratio π/q beyond it is as good as none
_CHUNK = 1 << 22  # entries of the arrays [R, L, L] that are alive at once


@quiet()
def candidate(rows: PartialRows, rule: CandidateRule) -> Envelope:
    """The envelope of min(p, γ) + Σ_n w_n (c_n q − p)₊, w_n = (p_n − γ_n)₊/F(c_n)."""
    p, q = rows.core_p, rows.core_q
    value, complement = rule.gamma(q)
    kept = np.minimum(p, value)
    scale = quotient(np, complement, 1.0 - q, 0.0)
    rejected = np.maximum(p - value, 0.0)
    most = _most_kept(rows, rule)
    received, weight = _received(rows, rejected, scale, most, rule)
    accepted = kept.sum(axis=-1)
    low, high = (kept[:, None, :] + part for part in received)
    return Envelope(
        rows,
        Between(accepted, np.minimum(accepted + most, 1.0)),
        low,
        high,
        (_least_ratio(rejected, scale, weight[0]), np.full(low.shape[:2], math.inf)),
        excess=_excess(rows, rule, most, 1.0 - accepted, *weight),
    )


def _most_kept(rows: PartialRows, rule: Any) -> Any:
    """The most that is kept outside A: γ at the cap where q is not listed, all of it elsewhere."""
    at_cap = rule.gamma(rows.q_cap).value[:, None]
    alone = np.where(rows.p_known & ~rows.q_known, np.minimum(rows.p, at_cap), 0.0)
    return alone.sum(axis=-1) + rows.p_rest


def _received(
    rows: PartialRows, rejected: Any, scale: Any, most: Any, rule: Any
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Bounds of Σ_n w_n(c_n q − p)₊ on A, [R, J, L], and of Σ_n w_n c_n, [R, J]."""
    first, last = pieces_of(np.maximum(rows.q_outside - rows.p_outside, 0.0), rows.q_outside)
    inside, far = _residual(rows, scale), _least_scale(rows, rule)
    pieces: list[tuple[Any, ...]] = []
    for phi in zip(first.T, last.T):
        weights = _weights(rows, rejected, scale, inside, phi)
        share, given = _from_outside(rows, most, far, phi)
        low, high = (_spread(rows, weight, scale) + part for weight, part in zip(weights, given))
        least, largest = (np.sum(weight * scale, axis=-1) for weight in weights)
        pieces.append((low, high, least, largest + share))
    low, high, least, largest = (np.stack(part, axis=1) for part in zip(*pieces))
    return (low, high), (least, largest)


def _weights(
    rows: PartialRows, rejected: Any, scale: Any, inside: Any, phi: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Bounds of w_n = (p_n − γ_n)₊/F(c_n) at every n of A, [R, L]; each is at most 1."""
    lost = (1.0 - scale) * rows.q_outside[:, None]
    bottom = inside + np.maximum(phi[0][:, None] - lost, 0.0)
    top = inside + scale * phi[1][:, None]
    donates = rejected > 0
    return (
        np.where(donates, rejected / top, 0.0),
        np.where(donates, rejected / np.maximum(bottom, rejected), 0.0),
    )


def _from_outside(
    rows: PartialRows, most: Any, far: Any, phi: tuple[Any, Any]
) -> tuple[Any, tuple[Any, Any]]:
    """What donors outside A give: an upper bound of their Σ w [R], bounds of their part [R, L].

    At most P − Q + φ is rejected there, at scales between ``far`` and 1.
    """
    p_out, q_out = rows.p_outside, rows.q_outside
    donors = np.maximum(p_out - most, 0.0), np.minimum(p_out, p_out - q_out + phi[1])
    distance = np.maximum(rows.core_q - rows.core_p, 0.0)
    near = np.maximum(far[:, None] * rows.core_q - rows.core_p, 0.0)
    widest = distance.sum(axis=-1) + phi[1]
    nearest = near.sum(axis=-1) + np.maximum(phi[0] - (1.0 - far) * q_out, 0.0)
    least = donors[0] / np.where(widest > 0, widest, 1.0)
    share = np.where(donors[1] > 0, donors[1] / nearest, 0.0)
    bound = np.where(distance > 0, share[:, None] * distance, 0.0)
    return share, (least[:, None] * near, np.minimum(bound, donors[1][:, None]))


def _least_scale(rows: PartialRows, rule: Any) -> Any:
    """c at the largest q that a donor outside A can have: c falls with q (claim 38)."""
    largest = np.minimum(np.maximum(rows.q_cap, rows.p_cap), 1.0)
    return quotient(np, rule.gamma(largest).complement, 1.0 - largest, 0.0)


def _blocks(rows: PartialRows) -> list[slice]:
    count, width = rows.p.shape
    step = max(1, _CHUNK // (width * width))
    return [slice(start, start + step) for start in range(0, count, step)]


def _residual(rows: PartialRows, scale: Any) -> Any:
    """Σ_A (c_n q − p)₊ at every n of A, [R, L]."""
    parts = [
        np.maximum(scale[b, :, None] * rows.core_q[b, None, :] - rows.core_p[b, None, :], 0).sum(-1)
        for b in _blocks(rows)
    ]
    return np.concatenate(parts)


def _spread(rows: PartialRows, weight: Any, scale: Any) -> Any:
    """Σ_n w_n (c_n q_x − p_x)₊ at every x of A, [R, L]."""
    parts = []
    for b in _blocks(rows):
        share = np.maximum(
            scale[b, :, None] * rows.core_q[b, None, :] - rows.core_p[b, None, :], 0.0
        )
        parts.append(np.einsum("rn,rnx->rx", weight[b], share))
    return np.concatenate(parts)


def _least_ratio(rejected: Any, scale: Any, weight: Any) -> Any:
    """The least π/q outside A: min(t, 1) + Σ w(c − t)₊ is Σwc at t = 0, and ≥ t from min c on."""
    donors = np.min(np.where(rejected > 0, scale, 1.0), axis=-1, keepdims=True)
    return np.minimum(weight, donors)


def _excess(
    rows: PartialRows, rule: Any, kept: Any, refused: Any, least: Any, largest: Any
) -> Excess:
    """What all outside A can cost: receivers within two ratios, donors by what γ allows."""
    count = rows.outside

    def most(kind: Divergence) -> Any:
        low, high = np.min(np.minimum(least, 1.0), axis=-1), np.max(np.maximum(largest, 1), axis=-1)
        known = high < LARGE
        top = np.where(known, kind.value(np.where(known, high, 1.0)), math.inf)
        # By the two ratios, or by what is received there: all that is rejected at most.
        by_mass = kind.value(low) * rows.q_outside + _recession(kind, refused)
        received = np.minimum(rows.q_outside * np.maximum(kind.value(low), top), by_mass)
        received = np.where(rows.q_outside > 0, received, 0.0)
        donated = np.minimum(_recession(kind, kept), _by_token(kind, rule, count))
        return received + np.minimum(donated, _spread_kl(kind, rule, kept, count))

    return most


def _recession(kind: Divergence, kept: Any) -> Any:
    return np.where(kept > 0, kept * kind.recession, 0.0)


def _by_token(kind: Divergence, rule: Any, count: Any) -> Any:
    """Each token costs at most what its candidate's target may (Theorem 2)."""
    delta = np.where(count > 0, float(rule.delta), 0.0)  # 0·inf would be NaN
    if isinstance(rule, CactusExact) and resolve_divergence(rule.divergence) == kind:
        return count * delta
    if isinstance(rule, Cactus) and kind.name == "kl":
        return count * np.log1p(2.0 * delta)
    if isinstance(rule, Cactus) and kind.name == "pearson_chi2":
        return count * 2.0 * delta
    return np.full(np.shape(count), math.inf)


def _spread_kl(kind: Divergence, rule: Any, kept: Any, count: Any) -> Any:
    """KL of kept mass u ≤ q + √(2δq): at most u·max(log 2, log(8δ/u)) a token, which is concave."""
    second_order = isinstance(rule, Cactus) or (
        isinstance(rule, CactusTargetOnly) and not rule.exact
    )
    if kind.name != "kl" or not second_order:
        return np.full(np.shape(count), math.inf)
    scale = 8.0 * np.where(count > 0, rule.delta, 0.0) * count
    mass = np.minimum(kept, scale / math.e)
    spread = np.where(mass > 0, mass * np.log(np.where(mass > 0, scale / mass, 1.0)), 0.0)
    return np.maximum(spread, 0.0) + kept * math.log(2.0)


@quiet()
def target_only(rows: PartialRows, rule: TargetOnlyRule) -> Envelope:
    """The envelope of p_x γ_x + q_x Σ_{n≠x} p_n c_n: outside A only the sum is unknown."""
    p, q = rows.core_p, rows.core_q
    value, complement = rule.gamma(q)
    share = quotient(np, p * complement, 1.0 - q, 0.0)
    total = share.sum(axis=-1, keepdims=True)
    alone = np.where(rows.p_known & ~rows.q_known, rows.p, 0.0)
    listed = np.max(np.where(rows.q_known & ~rows.p_known, rows.q, 0.0), axis=-1)
    caps = rows.q_cap, np.maximum(rows.q_cap, listed)
    masses = alone.sum(axis=-1), rows.p_rest
    least, most = np.zeros(len(p)), np.zeros(len(p))
    for cap, mass in zip(caps, masses):
        gamma = rule.gamma(cap)
        least += mass * quotient(np, gamma.complement, 1.0 - cap, 0.0)
        most += mass * gamma.value
    boxes = [
        (p * value + q * np.maximum(total - share + part[:, None], 0.0))[:, None, :]
        for part in (least, rows.p_outside)
    ]
    largest = np.maximum(np.max(alone, axis=-1), rows.p_cap)
    low = np.maximum(total[:, 0] + least - largest, 0.0)
    high = total[:, 0] + rows.p_outside
    accepted = np.sum(p * value, axis=-1)
    gives = (most > 0) & (largest > 0)
    steepest = np.where(gives, np.where(gives, largest, 1.0) * _slope(rule), 0.0)
    return Envelope(
        rows,
        Between(accepted, np.minimum(accepted + most, 1.0)),
        boxes[0],
        boxes[1],
        (low[:, None], (high + steepest)[:, None]),
        excess=_mixed_excess(rows, rule, most, low, high),
    )


def _slope(rule: TargetOnlyRule) -> float:
    """The most that γ/q can be."""
    if isinstance(rule, TargetOnly):
        return 1.0 / min(rule.threshold_acc, rule.threshold_single)
    return 1.0 if getattr(rule, "delta", math.inf) == 0 else math.inf


def _mixed_excess(rows: PartialRows, rule: Any, kept: Any, low: Any, high: Any) -> Excess:
    """KL of u + sq with u ≤ γ(q): f(x + s) ≤ ½f(2x) + ½f(2s), f(t) = t log t."""
    count = rows.outside

    def most(kind: Divergence) -> Any:
        if math.isfinite(kind.recession):
            sides = np.maximum(kind.value(low), kind.value(high))
            return np.where(rows.q_outside > 0, rows.q_outside * sides, 0.0) + kept * kind.recession
        apart = _spread_kl(kind, rule, kept, count) + kept * math.log(2.0)
        # f̃ = f − (t − 1), of which t ≥ low: what is taken away is no more than q(1 − low).
        own = rows.q_outside * (high * np.log(2.0 * np.maximum(high, 0.5)) + 1.0 - low)
        return apart + own

    return most
