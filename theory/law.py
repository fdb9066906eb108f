r"""The exact laws of one step: by enumeration, and in O(V log V) for the candidate rules.

For a candidate rule with γ_n and c_n = (1−γ_n)/(1−q_n) the recovery from a rejected n is
norm((h⁽ⁿ⁾ − p)₊) = (c_n q − p)₊ / F(c_n) with F(c) = Σ_x (c q_x − p_x)₊, so

    output(x) = min(p_x, γ_x) + Σ_n w_n (c_n q_x − p_x)₊,    w_n = (p_n − γ_n)₊ / F(c_n).

Donors (p > γ ≥ q) and receivers (p < q) are disjoint: with the row sorted by p/q and the few donors
by c, prefix sums of p and q over the receivers give every F(c_n), and suffix sums of w and w·c over
the donors give every output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from theory.arrays import (
    UNIT,
    Array,
    check_elementwise,
    compact,
    device_of,
    replace_columns,
    search_rows,
    take_rows,
)
from theory.pair import Pair, suffix_sums

ROUNDING = 1e-9  # by which an acceptance that a rule computes may exceed 1


class OneStep(NamedTuple):
    """What one round with one candidate does: how often it is accepted, and what is emitted."""

    acceptance: Array
    output: Array


def as_probability(xp: Any, acceptance: Array) -> Array:
    """Return the acceptance of rows that may sum to a little more than 1, within [0, 1]."""
    return xp.clip(acceptance, 0.0, 1.0)


def enumerated_law(pair: Pair, accept: Array, recover: Callable[[Array], Array]) -> OneStep:
    """Return Σ_n p_n b_n e_n + Σ_n p_n(1 − b_n) g⁽ⁿ⁾ by a loop over the candidates.

    The definition itself, in O(K²) time and O(K) memory; it serves the rules
    without a closed law and checks those that have one.
    """
    xp, p = pair.xp, pair.p
    check_elementwise("acceptance", accept, 0.0, 1.0 + ROUNDING)
    rejected, output = p * (1.0 - accept), p * accept
    acceptance = as_probability(xp, xp.sum(output, axis=-1))
    for n in range(p.shape[-1]):
        if bool(xp.any(rejected[:, n] > 0)):
            at = xp.full((p.shape[0],), n, dtype=xp.int64, device=device_of(p))
            output = output + rejected[:, n : n + 1] * recover(at)
    return OneStep(acceptance, output)


def candidate_law(
    pair: Pair, gamma: Callable[[Array], tuple[Array, Array]], suspects: Array
) -> OneStep:
    """Return the law of a candidate rule, in pair coordinates, in O(K) after the pair's sort.

    ``gamma`` maps verifier probabilities to (γ, 1 − γ). It is asked only about the ``suspects``, a
    mask over the donor side of the pair that covers every token with p > γ; the others
    are accepted.
    """
    xp, width = pair.xp, pair.p.shape[-1]
    donors, valid = compact(xp, suspects)
    donors = donors + (width - suspects.shape[-1])
    q = xp.where(valid, take_rows(xp, pair.q, donors), 0.0)
    value, complement = gamma(q)
    drafted = xp.where(valid, take_rows(xp, pair.p, donors), 0.0)
    rest = 1.0 - q
    scale = complement / xp.where(rest > 0, rest, 1.0)
    received = _received(pair, xp.maximum(drafted - value, 0.0), scale)
    # min(p, γ) itself, not p − (p − γ)₊: a tiny γ keeps its digits.
    target = xp.where(valid, donors, width)
    kept = replace_columns(xp, pair.p, target, xp.minimum(drafted, value))
    span = received.shape[-1]
    output = xp.concat([kept[:, :span] + received, kept[:, span:]], axis=-1)
    return OneStep(as_probability(xp, xp.sum(kept, axis=-1)), output)


def _received(pair: Pair, rejected: Array, scale: Array) -> Array:
    """Return Σ_n w_n (c_n q_x − p_x)₊ for the tokens of the receiver side.

    ``rejected [R, D]`` and ``scale [R, D]`` hold (p_n − γ_n)₊ and c_n of the donors.
    """
    xp, span, receivers = pair.xp, pair.receiver_span, pair.receivers
    by_scale = xp.argsort(scale, axis=-1, stable=False)
    scale, rejected = take_rows(xp, scale, by_scale), take_rows(xp, rejected, by_scale)
    # F(c_n) ≥ (p_n − γ_n)₊ because h⁽ⁿ⁾ and p have equal mass; the bound holds it off zero.
    residual = xp.maximum(receivers.recovered(scale * UNIT), rejected)
    weight = rejected / xp.where(residual > 0, residual, 1.0)
    donors_above = search_rows(xp, scale * UNIT, receivers.ratio, side="right")
    raised = take_rows(xp, suffix_sums(xp, weight * scale), donors_above)
    spent = take_rows(xp, suffix_sums(xp, weight), donors_above)
    return xp.maximum(pair.q[:, :span] * raised - pair.p[:, :span] * spent, 0.0)


def target_only_law(pair: Pair, value: Array, complement: Array) -> OneStep:
    """Return the law Σ_n p_n h⁽ⁿ⁾ of the target-only coupling in O(K) (claim 20).

    output(x) = p_x γ_x + q_x Σ_{n≠x} p_n (1−γ_n)/(1−q_n); acceptance = Σ p γ.
    """
    xp, p, q = pair.xp, pair.p, pair.q
    rest = 1.0 - q
    share = p * complement / xp.where(rest > 0, rest, 1.0)
    others = xp.maximum(xp.sum(share, axis=-1, keepdims=True) - share, 0.0)
    accepted = p * value
    acceptance = as_probability(xp, xp.sum(accepted, axis=-1))
    return OneStep(acceptance, accepted + q * others)
