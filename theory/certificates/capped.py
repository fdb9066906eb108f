r"""The largest divergence on a capped simplex {h : 0 ≤ h ≤ c, Σh = 1}, exactly or between bounds.

D_f(h‖q) is convex in h, so its maximum is attained at a vertex: h_x ∈ {0, c_x} for every token but
at most one. With φ_x(h) = q_x f̃(h/q_x), three facts make the maximum computable.

* **Greedy order, for every f with f(0) < ∞.** On [0, c_x] the convex φ_x lies below its chord. The
  chord's slope is (f̃(t_x) − f̃(0))/t_x with t_x = c_x/q_x, the slope of a chord of f̃ from 0, which
  never decreases in t_x. The chords make a fractional knapsack: filling in decreasing c_x/q_x
  maximises them, at a vertex. Its chord value is an upper bound, its true value a lower one; they
  differ in the one token in between, by chord − φ there (for KL −cθ log θ ≤ c/e).
* **Heads.** Let the m likeliest tokens keep their φ and only the others, the tail, take chords.
  A maximum of that function over the capped simplex has either every head at 0 or at its cap (and
  the tail a knapsack), or one head in between; then the tail's knapsack value, concave and
  piecewise linear in the mass it gets, plus φ of that head is convex on each linear piece, so the
  maximum has the tail at a breakpoint: a true vertex. The bounds thus differ by the defect of one
  *tail* token, at most c/e for KL with c the (m+1)-th largest cap, and agree where m = V.
* **f(0) = ∞.** Either some token can be dropped, Σ_{y≠x} c_y ≥ 1, and the maximum is inf, or the
  vertices are the V distributions that have every token but one at its cap.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import (
    Array,
    device_of,
    namespace,
    quiet,
    scatter_rows,
    search_rows,
    take_rows,
)
from theory.divergences.summand import Divergence

WORK = 1 << 15  # points per row of the search: V ≤ 12 is exact, V = 1000 has four heads
BLOCK = 1 << 22  # points evaluated at once
ROUNDING = 2.0**-50  # of one summand
SLACK = 1e-12  # rounding of the sums that decide what fits


class Extent(NamedTuple):
    """Bounds of the maximum ``[R]`` and the vertex ``[R, K]`` that attains the lower one."""

    lower: Array
    upper: Array
    vertex: Array


def head_count(width: int) -> int:
    """Return how many heads a row of ``width`` tokens affords: all of them up to width 12."""
    sizes = range(2, min(width, 16) + 1)
    fits = [m for m in sizes if m * 2 ** (m - 1) * (width - m + 1) <= WORK]
    return max(fits, default=min(width, 2))


@quiet()
def largest_divergence(kind: Divergence, q: Array, cap: Array) -> Extent:
    """Return the largest D_f(h‖q) over 0 ≤ h ≤ cap with the mass of q, for rows ``[R, K]``.

    Expects float64 with cap ≥ q, and cap = 0 where q = 0.
    """
    cap = namespace(q).minimum(cap, 1.0)
    if math.isinf(kind.at_zero):
        return _all_but_one(kind, q, cap)
    return _Search.of(kind, q, cap).run()


def _all_but_one(kind: Divergence, q: Array, cap: Array) -> Extent:
    """Leave the whole excess Σc − 1 to one token: the vertices where no token can be dropped."""
    xp = namespace(q)
    excess = xp.sum(cap - q, axis=-1, keepdims=True)
    left = cap - excess
    left = xp.where(left > ROUNDING * q.shape[-1], left, 0.0)  # what is left may be rounding alone
    rest = kind.term(cap, q)
    others = xp.sum(rest, axis=-1, keepdims=True) - rest
    value = xp.where(q > 0, others + kind.term(left, q), -math.inf)
    at = xp.argmax(value, axis=-1, keepdims=True)
    lower = take_rows(xp, value, at)
    # A dropped token leaves its excess to the others: scale them into what remains.
    short = take_rows(xp, xp.maximum(excess - cap, 0.0), at)
    chosen = xp.arange(q.shape[-1], device=device_of(q)) == at
    kept = xp.where(chosen, 0.0, cap)
    total = xp.sum(kept, axis=-1, keepdims=True)
    kept = kept * (1.0 - short / xp.where(total > 0, total, 1.0))
    vertex = xp.where(chosen, take_rows(xp, left, at), kept)
    return Extent(lower[:, 0], lower[:, 0], vertex)


@lru_cache(maxsize=32)
def subsets(size: int) -> tuple[Any, Any, Any]:
    """Return every subset of the heads as bits, and every (subset, head outside it) as indices."""
    bits = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    subset, between = np.nonzero(bits == 0)
    return bits.astype(np.float64), subset, between


class _Search(NamedTuple):
    """Rows split into heads and a tail in greedy order, with the running sums of the tail."""

    kind: Divergence
    mass: Array  # [R, 1] what is to be placed
    columns: Array  # [R, K] heads first, then the tail in decreasing c/q
    q: Array
    cap: Array  # both in that order
    heads: int
    filled: Array  # [R, T+1] Σ c over the first k of the tail
    worth: Array  # [R, T+1] Σ φ(c) over the first k of the tail plus Σ φ(0) over the others

    @classmethod
    def of(cls, kind: Divergence, q: Array, cap: Array) -> _Search:
        """Choose the likeliest tokens as heads and sort the others by c/q."""
        xp, heads = namespace(q), head_count(q.shape[-1])
        by_q = xp.argsort(q, axis=-1, descending=True)
        first, tail = by_q[:, :heads], by_q[:, heads:]
        tail_q, tail_cap = take_rows(xp, q, tail), take_rows(xp, cap, tail)
        ratio = xp.where(tail_q > 0, tail_cap / xp.where(tail_q > 0, tail_q, 1.0), 0.0)
        greedy = xp.argsort(ratio, axis=-1, descending=True)
        tail = take_rows(xp, tail, greedy)
        columns = xp.concat([first, tail], axis=-1)
        q, mass = take_rows(xp, q, columns), xp.sum(q, axis=-1, keepdims=True)
        cap = take_rows(xp, cap, columns)
        full, empty = kind.term(cap, q), q * kind.at_zero
        running = _running(xp, full[:, heads:])
        dropped = xp.flip(_running(xp, xp.flip(empty[:, heads:], axis=-1)), axis=-1)
        filled = _running(xp, cap[:, heads:])
        return cls(kind, mass, columns, q, cap, heads, filled, running + dropped)

    def run(self) -> Extent:
        """Return the bounds over both kinds of vertices, and the better of the two found."""
        xp = namespace(self.q)
        whole, upper, whole_heads, whole_tail = self._heads_whole()
        split, split_heads, split_tail = self._head_between()
        better = split > whole
        heads = xp.where(better[:, None], split_heads, whole_heads)
        tail = xp.where(better[:, None], split_tail, whole_tail)
        vertex = scatter_rows(xp, xp.concat([heads, tail], axis=-1), self.columns, self.q.shape[-1])
        lower = xp.maximum(whole, split)
        return Extent(lower, xp.maximum(upper, lower), vertex)

    def _states(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return bits, (subset, between) indices, and mass and worth of every head subset."""
        xp, cap, q = namespace(self.q), self.cap[:, : self.heads], self.q[:, : self.heads]
        bits, subset, between = subsets(self.heads)
        bits = xp.asarray(bits.tolist(), dtype=xp.float64, device=device_of(q))
        subset, between = (
            xp.asarray(index.tolist(), dtype=xp.int64, device=device_of(q))
            for index in (subset, between)
        )
        full, empty = self.kind.term(cap, q), q * self.kind.at_zero
        worth = full @ bits.T + empty @ (1.0 - bits).T
        return bits, subset, between, self.mass - cap @ bits.T, worth

    def _heads_whole(self) -> tuple[Array, Array, Array, Array]:
        """Every head at 0 or at its cap, the tail a knapsack: (value, chord value, vertex)."""
        xp = namespace(self.q)
        bits, _, _, left, worth = self._states()
        last = self.filled.shape[-1] - 1
        fits = (left >= -SLACK) & (left <= self.filled[:, -1:] + SLACK)
        left = xp.clip(left, 0.0, self.filled[:, -1:])
        at = xp.clip(search_rows(xp, self.filled, left, side="right") - 1, 0, max(last - 1, 0))
        part = xp.maximum(left - take_rows(xp, self.filled, at), 0.0)
        lower, upper = self._token_between(at, part, last)
        lower = xp.where(fits, worth + lower, -math.inf)
        upper = xp.max(xp.where(fits, worth + upper, -math.inf), axis=-1)
        best = xp.argmax(lower, axis=-1, keepdims=True)
        heads = xp.take(bits, best[:, 0], axis=0) * self.cap[:, : self.heads]
        tail = self._tail(take_rows(xp, at, best), take_rows(xp, part, best))
        return take_rows(xp, lower, best)[:, 0], upper, heads, tail

    def _token_between(self, at: Array, part: Array, last: int) -> tuple[Array, Array]:
        """Return the tail's worth and its chord value with ``part`` of tail token ``at``."""
        xp = namespace(self.q)
        before = take_rows(xp, self.worth, at)
        if last == 0:
            return before, before
        q = take_rows(xp, self.q[:, self.heads :], at)
        cap = take_rows(xp, self.cap[:, self.heads :], at)
        part = xp.minimum(part, cap)
        empty = q * self.kind.at_zero
        share = part / xp.where(cap > 0, cap, 1.0)
        # Both are written as sums of terms that are not negative.
        chord = share * self.kind.term(cap, q) - share * empty
        return before - empty + self.kind.term(part, q), before + chord

    def _head_between(self) -> tuple[Array, Array, Array]:
        """One head takes what the other heads and a prefix of the tail leave: (value, vertex)."""
        xp = namespace(self.q)
        bits, subset, between, left, worth = self._states()
        rows, width = self.filled.shape
        step = max(1, BLOCK // max(1, rows * width))
        best = xp.full((rows,), -math.inf, dtype=xp.float64, device=device_of(self.q))
        heads, tail = 0.0 * self.cap[:, : self.heads], 0.0 * self.cap[:, self.heads :]
        for start in range(0, subset.shape[0], step):
            stop = min(start + step, int(subset.shape[0]))
            pairs, into = subset[start:stop], between[start:stop]
            q, cap = xp.take(self.q, into, axis=-1), xp.take(self.cap, into, axis=-1)
            part = xp.take(left, pairs, axis=-1)[:, :, None] - self.filled[:, None, :]
            fits = (part >= -SLACK) & (part <= cap[:, :, None] + SLACK)
            part = xp.minimum(xp.maximum(part, 0.0), cap[:, :, None])
            term = self.kind.term(part, xp.broadcast_to(q[:, :, None], part.shape))
            base = xp.take(worth, pairs, axis=-1) - q * self.kind.at_zero
            value = base[:, :, None] + self.worth[:, None, :] + term
            flat = (rows, (stop - start) * width)
            value = xp.reshape(xp.where(fits, value, -math.inf), flat)
            at = xp.argmax(value, axis=-1, keepdims=True)
            found = take_rows(xp, value, at)[:, 0]
            amount = take_rows(xp, xp.reshape(part, flat), at)
            pair, prefix = at[:, 0] // width, at % width
            mine = xp.arange(self.heads, device=device_of(q)) == xp.take(into, pair)[:, None]
            whole = xp.take(bits, xp.take(pairs, pair), axis=0) * self.cap[:, : self.heads]
            better = (found > best)[:, None]
            heads = xp.where(better, xp.where(mine, amount, whole), heads)
            tail = xp.where(better, self._tail(prefix, 0.0 * amount), tail)
            best = xp.maximum(best, found)
        return best, heads, tail

    def _tail(self, at: Array, part: Array) -> Array:
        """Return the tail with the tokens before ``at [R, 1]`` at their caps and ``part`` there."""
        xp, cap = namespace(self.q), self.cap[:, self.heads :]
        slot = xp.arange(cap.shape[-1], device=device_of(cap))
        return xp.where(slot < at, cap, xp.where(slot == at, part, 0.0))


def _running(xp: Any, values: Array) -> Array:
    return xp.cumulative_sum(values, axis=-1, include_initial=True)
