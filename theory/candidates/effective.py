r"""The effective draft: K candidates for a place behave as one candidate drawn from u (claim 26).

With F(T) the probability that all candidates lie in the set T, a law h can be emitted with a
rejection of at most r iff h(T) ≥ F(T) − r for every T. F is supermodular, so the laws that need no
rejection at all (r = 0) have one that is nearest to q for every f-divergence at once: u. The best
acceptance of a target h is then not 1 − TV(p, h) but at most Σ min(u, h), and the frontier with
these candidates is clip(u, b·q, a·q). So everything that takes a draft p takes u in its place.

Where F depends on the prefixes of one order alone (independent draws, and draws without
replacement, by descending p/q), u/q is the antitonic regression of g/q with weights q, g the
increments of F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from theory.arrays import Array, device_of, plain_number, to_numpy
from theory.candidates.increments import independent, without_replacement
from theory.pair import Pair

__all__ = ["SCHEMES", "effective_draft", "whole_count"]

Increments = Callable[[Any, int], Any]


def effective_draft(p: Array, q: Array, count: int = 2, scheme: str = "independent") -> Array:
    r"""Return the law u ``[..., V]`` from which one candidate does what ``count`` do together.

    u is nearest to q, in every f-divergence, among the laws that can be emitted without a rejection
    when the candidates are known: the largest acceptance of any rule with these candidates and the
    output h is at most Σ min(u, h), 1 − TV(u, q) is that of a lossless one, and
    ``frontier_step(u, q, level)`` is the frontier. count = 1 gives p itself.

    Parameters
    ----------
    p, q : array [..., V]
        Draft and verifier distributions, float32 or float64; computed in float64 and returned in
        the dtype of the input.
    count : int
        How many candidates there are for a place, at least 1.
    scheme : str
        How they are drawn from p. "independent": each from p, the same token possibly more than
        once. "without_replacement": each from p without those before it, renormalised. "likeliest":
        the count − 1 likeliest tokens and one draw from the rest. "greedy": the count likeliest
        tokens, nothing drawn. Of equally likely tokens the lower index comes first.

    Returns
    -------
    array [..., V]
        Exact up to rounding in O(V log V), except "without_replacement" with count ≥ 3: a
        quadrature over the likeliest tokens and a series for the others, to 10⁻¹² of each.

    Raises
    ------
    ValueError
        For invalid distributions, a count that is no integer of at least 1, an unknown scheme.

    Notes
    -----
    Claims 25, 26 and 29 of the ledger. Tokens that the draft gives but the verifier never emits
    (q = 0 < p) come first in the order; what is left on them lies outside every law of finite KL.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme {scheme!r}; there are {', '.join(SCHEMES)}")
    count = whole_count(count)
    pair = Pair.prepare(p, q)
    rows = [
        SCHEMES[scheme](*row, count) if count > 1 or scheme == "greedy" else row[0]
        for row in zip(to_numpy(pair.p), to_numpy(pair.q), to_numpy(pair.token))
    ]
    xp, like = pair.xp, pair.p
    values = np.stack(rows) if rows else np.zeros(tuple(like.shape))
    return pair.expand(xp.asarray(values, dtype=xp.float64, device=device_of(like)))


def whole_count(count: Any) -> int:
    """Return a number of candidates as Python's own integer; ValueError for anything else."""
    count = plain_number(count)
    if type(count) is not int or count < 1:
        raise ValueError(f"count must be an integer of at least 1, got {count!r}")
    return count


def flat_blocks(increments: Any, q: Any) -> tuple[Any, Any]:
    """Return u ``[V]`` for increments in descending order of p/q, and the block of each token.

    u/q is the antitonic regression of the increments over q, constant on each block 0, 1, …; a
    token with q = 0 keeps what it has, and is a block of its own, below 0.
    """
    inside = q > 0
    u, weights = increments.copy(), q[inside]
    block = np.arange(len(q)) - len(q)
    if len(weights):
        with np.errstate(over="ignore"):
            ratio = increments[inside] / weights
        found = isotonic_regression(ratio, weights=weights, increasing=False)
        u[inside] = weights * found.x
        edges = np.asarray(found.blocks)
        block[inside] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return u, block


def _by_order(increments: Increments) -> Callable[..., Any]:
    """The effective draft of one row that is sorted by p/q ascending, as a pair is."""

    def row(p: Any, q: Any, token: Any, count: int) -> Any:
        return flat_blocks(increments(p[::-1], count), q[::-1])[0][::-1]

    return row


def _likeliest(p: Any, q: Any, token: Any, count: int) -> Any:
    """u = c·q on the count − 1 likeliest tokens and min(r, c·q) elsewhere, r the last draw's law.

    The sure candidates can take up what q has to spare, another token no more than its draw.
    """
    sure = _first(p, token, count - 1)
    drawn = np.where(sure, 0.0, p)
    mass = float(np.sum(drawn))
    if mass == 0.0:
        return _greedy(p, q, token, count)
    drawn = drawn / mass
    if not np.any(q[sure] > 0):
        return drawn
    return np.where(sure, 1.0, 0.0) * q * (c := _water(drawn, q, sure)) + np.minimum(drawn, c * q)


def _water(drawn: Any, q: Any, sure: Any) -> float:
    """The c with c·q(sure) + Σ min(drawn, c·q) = 1."""
    bounded = (q > 0) & ~sure
    ratio = drawn[bounded] / q[bounded]
    order = np.argsort(ratio)
    ratio = ratio[order]
    capped = np.append(0.0, np.cumsum(drawn[bounded][order]))
    free = np.sum(q[sure]) + np.append(np.cumsum(q[bounded][order][::-1])[::-1], 0.0)
    # With j tokens capped, c = (1 − their draws)/(q of the others); the first j that fits is it.
    level = (1.0 - capped) / free
    fits = level <= np.append(ratio, np.inf)
    return float(level[np.argmax(fits)])


def _greedy(p: Any, q: Any, token: Any, count: int) -> Any:
    """q on the count likeliest tokens; the draft itself where q has nothing there."""
    sure = _first(p, token, count)
    kept = np.where(sure, q if np.any(q[sure] > 0) else p, 0.0)
    return kept / np.sum(kept)


def _first(p: Any, token: Any, count: int) -> Any:
    """A mask of the ``count`` likeliest tokens that the draft has, lower indices first."""
    chosen = np.zeros(len(p), dtype=bool)
    chosen[np.lexsort((token, -p))[:count]] = True
    return chosen & (p > 0)


SCHEMES: dict[str, Callable[..., Any]] = {
    "independent": _by_order(independent),
    "without_replacement": _by_order(without_replacement),
    "likeliest": _likeliest,
    "greedy": _greedy,
}
