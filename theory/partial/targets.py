"""Envelopes of the target rules that switch between p and q, mix them, or clip p between two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.arrays import UNIT, quiet
from theory.divergences.kinds import Divergence
from theory.frontier.clipped import ClippedFamily, clipped
from theory.partial.envelope import Between, Envelope
from theory.partial.kept import ROUNDING, pieces_of, strict
from theory.partial.rows import PartialRows

HALVINGS = 60
NOWHERE = 2.0**-50  # as near as halving comes to 0
FAR = 1e6  # a ratio; f′ has lost as many digits there


def mixture(rows: PartialRows, share: float) -> Envelope:
    """αp + (1−α)q: known on A; acceptance 1 − (1−α)·TV(p, q), and the divergence of p̄ from q.

    D_f(αp + (1−α)q‖q) is a divergence of p from q, and merging cannot increase it.
    """
    overlap = strict(rows).acceptance
    acceptance = Between(*(1.0 - (1.0 - share) * (1.0 - value) for value in overlap))
    box = (share * rows.core_p + (1.0 - share) * rows.core_q)[:, None, :]
    nothing = np.zeros((len(box), 1))
    ratio = nothing + 1.0 - share, nothing + (math.inf if share > 0 else 1.0)
    return Envelope(rows, acceptance, box, box, ratio)


def switch(rows: PartialRows, sure: Any, may: Any) -> Envelope:
    """p on the rows of ``sure``, q on those outside ``may``, either on the others, [R]."""
    overlap = strict(rows).acceptance
    draft, verifier = mixture(rows, 1.0), strict(rows)
    return Envelope(
        rows,
        Between(np.where(sure, 1.0, overlap.lower), np.where(may, 1.0, overlap.upper)),
        np.concatenate([draft.low, verifier.low], axis=1),
        np.concatenate([draft.high, verifier.high], axis=1),
        (
            np.concatenate([draft.ratio[0], verifier.ratio[0]], axis=1),
            np.concatenate([draft.ratio[1], verifier.ratio[1]], axis=1),
        ),
        possible=np.stack([may, ~sure], axis=-1),
    )


def divergence_between(rows: PartialRows, kind: Divergence) -> Between:
    """Bounds of D_f(p‖q): its values on the merged and on the split row."""
    return Between(*(kind.between(pair.p, pair.q) for pair in (rows.merged, rows.split)))


@quiet()
def frontier(
    rows: PartialRows, level: float, kind: Divergence, *, on_support: bool = False
) -> Envelope:
    """clip(p, bq, aq) at a level of a divergence.

    The best acceptance at a level grows where tokens are merged, so that it lies between that of
    the split and that of the merged row. So do Σ(p − aq)₊ and Σ(bq − p)₊ with fixed factors, the
    other way round: with the rejected mass they bound a and b.
    """
    if level == 0:
        return strict(rows)
    if math.isinf(level) and not on_support:
        return mixture(rows, 1.0)  # everything is accepted, whatever it costs
    merged, split = (ClippedFamily.of(pair, kind) for pair in (rows.merged, rows.split))
    wanted = np.full(len(rows.p), float(level))
    least, most = (f.solve(wanted, on_support=on_support) for f in (merged, split))
    first, last = pieces_of(least, np.maximum(least, most))
    above = merged.factors(last)[0], split.factors(first)[0]
    # Where no token with q > 0 need be rejected, nothing bounds a from above.
    above = above[0], np.where(first <= split.outside[:, None], math.inf, above[1])
    below = split.factors(first)[1], merged.factors(last)[1]
    leaks = not (on_support or math.isinf(kind.recession))
    shares = _leaked(first, last, merged.outside, split.outside) if leaks else (0.0, 0.0)
    boxes = [_clip(rows, b, a, share) for a, b, share in zip(above, below, shares)]
    ratio = below[0] / UNIT, above[1] / UNIT
    steepest = ratio[1]
    if leaks:
        ratio = ratio[0], np.where(first < split.outside[:, None], math.inf, ratio[1])
    else:  # where q has nothing outside A, nothing is emitted there
        ratio = ratio[0], np.where(rows.q_outside[:, None] > 0, ratio[1], 1.0)
    return Envelope(
        rows,
        Between(*(np.clip(1.0 - mass, 0.0, 1.0) for mass in (np.maximum(least, most), least))),
        boxes[0],
        boxes[1],
        ratio,
        known=lambda asked: _spent(rows, wanted, steepest) if asked == kind else None,
    )


@quiet()
def priced(rows: PartialRows, multiplier: float, kind: Divergence) -> Envelope:
    """clip(p, bq, aq) with f′(a) − f′(b) = μ.

    Σ h = 1 where Σ(p − aq)₊ = Σ(bq − p)₊, of which the first falls and the second rises in b. Both
    are least on the merged row and largest on the split one: b is least where the one is merged and
    the other split, and largest the other way round.
    """
    if multiplier == 0:
        return strict(rows)
    if multiplier >= kind.recession - float(kind.slope(np.zeros(1))[0]):
        return mixture(rows, 1.0)  # no token costs more
    ends = [
        _factors_at(kind, multiplier, *pairs)
        for pairs in ((rows.merged, rows.split), (rows.split, rows.merged))
    ]
    (b_low, a_low), (b_high, a_high) = ends
    b_low = np.where(b_low <= NOWHERE, 0.0, b_low)  # no token need be raised at all
    ends = [(b_low, a_low), (b_high, a_high)]
    low, high = _recovered(rows.merged, b_low), _recovered(rows.split, b_high)
    leaks = not math.isinf(kind.recession)
    if not leaks:  # what is rejected is what is recovered, and bounded by both
        low = np.maximum(low, _rejected(rows.merged, a_high))
        high = np.maximum(np.minimum(high, _rejected(rows.split, a_low)), low)
    first, last = low[:, None], high[:, None]
    outside = [_rejected(pair, np.full(len(b_low), math.inf)) for pair in (rows.merged, rows.split)]
    shares = _leaked(first, last, *outside) if leaks else (0.0, 0.0)
    # Where a is finite, and not by rounding alone, no token with q = 0 is worth its price.
    worth = np.isinf(_above(kind, multiplier, np.minimum(b_high * (1.0 + 1e-9), 1.0)))
    boxes = [
        _clip(rows, b[:, None] * UNIT, a[:, None] * UNIT, share * worth[:, None, None])
        for (b, a), share in zip(ends, shares)
    ]
    # So far out slopes say little of a: such a token may be kept in part, as where q = 0.
    faint = (rows.core_q > 0) & (rows.core_q * FAR < rows.core_p) & (a_high > FAR)[:, None]
    for side, kept in zip(boxes, (b_low[:, None] * rows.core_q, rows.core_p)):
        side[:] = np.where(faint[:, None, :], kept[:, None, :], side)
    # Where q has nothing outside A, nothing is emitted there, unless it may leak.
    emits = np.where(rows.q_outside > 0, a_high, 1.0)
    emits = np.where(low < outside[1], math.inf, emits) if leaks else emits
    return Envelope(
        rows,
        Between(*(np.clip(1.0 - mass, 0.0, 1.0) for mass in (high, low))),
        boxes[0],
        boxes[1],
        (b_low[:, None], emits[:, None]),
    )


def _rejected(pair: Any, above: Any) -> Any:
    kept = np.where(pair.q > 0, above[:, None] * pair.q, 0.0)  # inf·0 would be NaN
    return np.sum(np.maximum(pair.p - kept, 0.0), axis=-1)


def _recovered(pair: Any, below: Any) -> Any:
    return np.sum(np.maximum(below[:, None] * pair.q - pair.p, 0.0), axis=-1)


def _factors_at(kind: Divergence, multiplier: float, rejects: Any, recovers: Any) -> Any:
    """b and a with f′(a) − f′(b) = μ where what one pair rejects is what the other recovers.

    Where f′ has an end, tokens with q = 0 are accepted rather than that b rises beyond the factor
    at which they cost μ.
    """
    low, high = np.zeros(len(rejects.p)), np.ones(len(rejects.p))
    for _ in range(HALVINGS):
        below = 0.5 * (low + high)
        above = _above(kind, multiplier, below)
        short = (_recovered(recovers, below) < _rejected(rejects, above)) & np.isfinite(above)
        low, high = np.where(short, below, low), np.where(short, high, below)
    # From the side on which a is short of it: where f′ has a kink, at b = 1, a jumps.
    return high, _above(kind, multiplier, np.where(low > 0, low, high))


def _above(kind: Divergence, multiplier: float, below: Any) -> Any:
    """a ≥ 1 with f′(a) = f′(b) + μ, by halving 1/a; inf where no factor is so steep."""
    low, high = np.zeros_like(below), np.ones_like(below)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        steep = kind.slope(1.0 / middle) - kind.slope(below) > multiplier
        low, high = np.where(steep, middle, low), np.where(steep, high, middle)
    return np.where(low > 0, 1.0 / np.where(high > 0, high, 1.0), math.inf)


def _leaked(first: Any, last: Any, least: Any, most: Any) -> tuple[Any, Any]:
    """Bounds of the part 1 − m/P₀ of the tokens with q = 0 that is emitted, [R, J, 1]."""
    # What differs by rounding from none at all may be none.
    ends = ((last, least, ROUNDING), (first, most, 0.0))
    low, high = (
        (np.maximum(outside - mass - none, 0.0) / np.where(outside > 0, outside, 1.0))[..., None]
        for mass, outside, none in ((mass, outside[:, None], none) for mass, outside, none in ends)
    )
    return low, high


def _clip(rows: PartialRows, below: Any, above: Any, share: Any) -> Any:
    p, lifted = (values[:, None, :] for values in (rows.core_p, rows.core_q / UNIT))
    above = np.minimum(above, 1e300)[..., None]  # inf·0 would be NaN
    p, lifted, above, below = np.broadcast_arrays(p, lifted, above, below[..., None])
    return clipped(p, lifted, above, below, np.asarray(share))


def _spent(rows: PartialRows, level: Any, above: Any) -> Between:
    """The divergence is never above the level, and meets it where a token of A must be clipped."""
    p, q = rows.core_p, rows.core_q
    steepest = np.max(np.where(q > 0, p / q, 0.0), axis=-1)
    clips = np.max(above, axis=-1) < steepest * (1.0 - 1e-9)
    return Between(np.where(clips, level, 0.0), level)


def token_cascade(rows: PartialRows, sure: Any, may: Any, elsewhere: Any) -> Envelope:
    """p·1[T] + q·p(Tᶜ): T holds ``sure`` and no token outside ``may``, [R, L].

    ``elsewhere`` [R] says whether a token that neither model lists may belong to T.
    """
    p, q, known = rows.core_p, rows.core_q, rows.known
    only_q = rows.q_known & ~rows.p_known
    unknown = elsewhere | np.any(only_q & may, axis=-1)
    drafted = rows.p
    # From what is deferred itself: 1 − Σ would leave rounding where nothing is.
    deferred = Between(
        np.sum(np.where(may, 0.0, drafted), axis=-1) + np.where(unknown, 0.0, rows.p_rest),
        np.sum(np.where(sure, 0.0, drafted), axis=-1) + rows.p_rest,
    )
    first, last = pieces_of(*deferred)
    kept = np.where(sure & known, p, 0.0)
    boxes = [kept[:, None, :] + d[..., None] * q[:, None, :] for d in (first, last)]
    free = np.sum(np.where(may & ~known, drafted, 0.0), axis=-1) + unknown * rows.p_rest
    return Envelope(
        rows,
        _cascade_acceptance(rows, sure, free, deferred),
        boxes[0],
        boxes[1],
        (first, np.where(free[:, None] > 0, math.inf, last)),
    )


def _cascade_acceptance(rows: PartialRows, sure: Any, free: Any, deferred: Between) -> Between:
    """Bounds of Σ_T p + Σ_{Tᶜ} min(p, d·q), of which ``free`` outside A may lie in T."""
    p, q, known = rows.core_p, rows.core_q, rows.known
    lower, upper = (
        np.sum(np.where(sure, p, np.minimum(p, d[:, None] * q)), axis=-1) for d in deferred
    )
    certain = np.sum(np.where(sure & ~known & rows.p_known, rows.p, 0.0), axis=-1)
    bound = np.minimum(rows.p_outside - free, deferred.upper * rows.q_outside)
    most = np.minimum(rows.p_outside, free + np.maximum(bound, 0.0))
    return Between(np.minimum(lower + certain, 1.0), np.minimum(upper + most, 1.0))
