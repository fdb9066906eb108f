r"""Which of the drawn candidates to test: a choice of known law that comes as near to u as it can.

Any rule can be run on one of K candidates, as if it were the only one, if one knows the law that
this one has. With the tokens in the flat blocks of u/q (claim 26), the block of the lowest p/q that
has a candidate is taken, which gives every block the mass that u gives it. Inside a block one draw
is chosen with the odds of *weights*; in terms of exponential clocks that ring at rate w,

    P(chosen = x) = p_x ψ(w_x),   ψ(w) = K ∫ w e^{−wt} φ(t)^{K−1} dt,
    φ(t) = P(blocks of higher p/q) + Σ_{y in the block} p_y e^{−w_y t},

and ψ(w_x) = u_x/p_x, a function of p/q alone, makes it u. Tokens of nearly equal p/q share a
weight, so that a block has a few dozen of them whatever V is. The law above is that of the weights
that were found, whether they reach u or not: nothing that is done with it is approximate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from theory.arrays import Array, device_of, quiet, to_numpy
from theory.candidates.effective import flat_blocks, whole_count
from theory.candidates.increments import independent
from theory.pair import Pair

__all__ = ["Selection", "select"]

LEVELS = 256  # weights of a block at most
FEW = 64  # ratios of a block, up to which each is brought to u by Newton's steps
ROUNDS = 60  # of the iteration for them
NEWTON = 30  # of Newton's steps at most, where a block has few ratios
LITTLE = 3e-3  # a block of less mass keeps equal weights: what it could gain is a part of that
NEAR = 1e-8  # of the law of a block to u, or a part of its mass where that is little
FAR = 1e8  # a weight is never further than this from the others, either way
STEP = 0.2  # of the quadrature in log t


@dataclass(frozen=True, eq=False)
class Selection:
    """A choice among K independent draws, for each row of a batch.

    law : [..., V], what the chosen candidate is drawn from; in the dtype of the rows.
    """

    law: Array
    count: int
    _block: Any  # [R, V]: of candidates the one in the highest block is chosen
    _weight: Any  # [R, V]: and in a block one with these odds

    def choose(self, candidates: Any, uniforms: Any) -> Any:
        """Return which candidate to test, 0 … K − 1, ``[...]``.

        Parameters
        ----------
        candidates : integer array [..., K]
            Tokens that were drawn from p, independently.
        uniforms : array [...]
            In [0, 1): one number for each choice, independent of everything else.

        Raises
        ------
        ValueError
            For another number of candidates, a token outside the vocabulary.
        """
        drawn = _plain(candidates)
        rows, vocabulary = self._block.shape
        if drawn.shape != (*self.law.shape[:-1], self.count) or drawn.dtype.kind not in "iu":
            raise ValueError(
                f"candidates must be integers {(*self.law.shape[:-1], self.count)}, got "
                f"{drawn.dtype} {drawn.shape}"
            )
        flat = drawn.reshape(rows, self.count).astype(np.int64)
        if flat.size and not (flat.min() >= 0 and flat.max() < vocabulary):
            raise ValueError(f"candidates must be token ids in [0, {vocabulary - 1}]")
        block = np.take_along_axis(self._block, flat, axis=-1)
        odds = np.take_along_axis(self._weight, flat, axis=-1)
        odds = np.where(block == block.max(axis=-1, keepdims=True), odds, 0.0).cumsum(axis=-1)
        uniform = _plain(uniforms).astype(np.float64)
        if uniform.shape != drawn.shape[:-1] or not np.all((uniform >= 0) & (uniform < 1)):
            raise ValueError("uniforms must be numbers in [0, 1), one for each choice")
        at = uniform.reshape(rows, 1) * odds[:, -1:]
        return np.sum(odds <= at, axis=-1).reshape(drawn.shape[:-1])


def _plain(values: Any) -> Any:
    """An array of any library, or a list, as an array of numpy."""
    return np.asarray(to_numpy(values) if is_array_api_obj(values) else values)


def select(p: Array, q: Array, count: int = 2) -> Selection:
    r"""Prepare the choice of one of K candidates that are drawn from p independently.

    ``one_step(rule, select(p, q, count).law, q)`` is the exact law of any rule that tests the
    chosen one, and its acceptance is nearly the best there is with K candidates: that of
    ``effective_draft(p, q, count)``, below it by less than 2e-3 (the width of the weights' levels,
    of which a flat block of u/q has 64), and equal to rounding where blocks have few ratios.

    Parameters
    ----------
    p, q : array [..., V]
        Draft and verifier distributions, float32 or float64.
    count : int
        K ≥ 1.

    Returns
    -------
    Selection
        The law [..., V], exact to about 10⁻¹², and the choice of that law.

    Raises
    ------
    ValueError
        For invalid distributions, and a count that is no integer of at least 1.

    Notes
    -----
    Source: claims 26 and 27 of the ledger, derived here. O(V log V) and a few milliseconds a block.
    """
    count = whole_count(count)
    pair = Pair.prepare(p, q, compress=False)
    sides = zip(to_numpy(pair.p), to_numpy(pair.q))
    rows = [_selected(p_row[::-1], q_row[::-1], count) for p_row, q_row in sides]
    token = to_numpy(pair.token)[:, ::-1]
    law, block, weight = (np.zeros(token.shape) for _ in range(3))
    for row, found in enumerate(rows):
        for values, mine in zip((law, block, weight), found):
            values[row, token[row]] = mine
    xp = pair.xp
    full = xp.asarray(law, dtype=xp.float64, device=device_of(pair.p))
    shaped = xp.reshape(full, (*pair.batch, pair.vocabulary))
    return Selection(xp.astype(shaped, pair.dtype, copy=False), count, block, weight)


@quiet()
def _selected(p: Any, q: Any, count: int) -> tuple[Any, Any, Any]:
    """Law, block and weight of each token of a row in descending order of p/q."""
    if count == 1:
        return p.copy(), np.zeros(len(p)), np.ones(len(p))
    law, weight = independent(p, count), np.ones(len(p))
    u, block = flat_blocks(law, q)
    below = np.cumsum(p)
    at = np.flatnonzero(block >= 0)
    for tokens in np.split(at, np.flatnonzero(np.diff(block[at])) + 1):
        drawn = float(np.sum(p[tokens]))
        # Tokens that are never drawn, and blocks of one token, need no choice.
        if len(tokens) > 1 and drawn > 0:
            before = below[tokens[-1]] - drawn
            law[tokens], weight[tokens] = _chosen(p[tokens], q[tokens], u[tokens], before, count)
    return law, block.astype(float), weight


def _chosen(p: Any, q: Any, u: Any, before: float, count: int) -> tuple[Any, Any]:
    """Law and weights inside one flat block."""
    level = _levels(p, q)
    mass = np.bincount(level, weights=p)
    wanted = np.bincount(level, weights=u)
    known = mass > 0
    weights = np.ones(len(mass))
    for _ in range(ROUNDS if np.sum(wanted) > LITTLE else 0):
        # A step of the MM algorithm for Luce's choice, which climbs a concave likelihood.
        reached = mass * _wins(weights, mass, before, count)
        if np.sum(np.abs(reached - wanted)) <= NEAR * min(1.0, 1e3 * np.sum(wanted)):
            break
        weights = np.where(known, weights * wanted / np.where(reached > 0, reached, 1.0), 1.0)
        weights = np.clip(weights / np.exp(np.mean(np.log(weights[known]))), 1 / FAR, FAR)
    if len(mass) < FEW:  # few ratios: each has a weight of its own, and u is within reach
        weights = _polished(weights, mass, wanted, before, count)
    chance = _wins(weights, mass, before, count)
    return p * chance[level], weights[level]


def _polished(weights: Any, mass: Any, wanted: Any, before: float, count: int) -> Any:
    """Newton's steps in log w, as long as each brings the law nearer to u."""
    best, off = weights, np.inf
    for _ in range(NEWTON):
        reached, change = _law_and_change(weights, mass, before, count)
        now = float(np.max(np.abs(reached - wanted)))
        if now >= 0.5 * off:
            break
        best, off = weights, now
        step = np.linalg.lstsq(change, wanted - reached, rcond=1e-13)[0]
        weights = np.clip(weights * np.exp(np.clip(step, -3.0, 3.0)), 1 / FAR, FAR)
    return best


def _law_and_change(weights: Any, mass: Any, before: float, count: int) -> tuple[Any, Any]:
    """The law of the levels, and its derivatives in log w."""
    if count == 2:
        first = _first(weights)
        law = 2 * mass * (before + first @ mass)
        cross = 2 * mass[:, None] * mass * first * first.T
        return law, np.diag(np.sum(cross, axis=-1)) - cross
    times = _times(weights)
    rings = np.exp(-np.outer(times, weights))
    phi = before + rings @ mass
    flow = STEP * times * phi ** (count - 1)
    lost = (count - 1) * STEP * times**2 * phi ** (count - 2)  # −dφ/dlog w = t·w·m·e^{−wt}
    scale = count * mass * weights
    law = scale * (flow @ rings)
    own = law - scale * weights * ((flow * times) @ rings)
    cross = (lost[:, None] * rings).T @ rings
    return law, np.diag(own) - scale[:, None] * cross * (mass * weights)[None, :]


def _times(weights: Any) -> Any:
    """Nodes of the quadrature, from before the fastest clock to behind the slowest."""
    first, last = np.log(1e-18 / weights.max()), np.log(60.0 / weights.min())
    return np.exp(np.arange(first, last, STEP))


def _levels(p: Any, q: Any) -> Any:
    """Levels of p/q, about equal in mass: 0 … LEVELS − 1, each ratio its own where they are few."""
    ratio = p / q
    distinct = np.concatenate([[True], ratio[1:] != ratio[:-1]])
    own = np.cumsum(distinct) - 1
    if own[-1] < LEVELS:
        return own
    middle = (np.cumsum(p) - 0.5 * p) / np.sum(p)
    return np.minimum((LEVELS * middle).astype(int), LEVELS - 1)


def _wins(weights: Any, mass: Any, before: float, count: int) -> Any:
    """ψ(w): K times the chance that a draw of each level beats the K − 1 others."""
    if count == 2:
        return 2 * (before + _first(weights) @ mass)
    times = _times(weights)
    rings = np.exp(-np.outer(times, weights))
    others = (before + rings @ mass) ** (count - 1)
    return count * weights * ((STEP * times * others) @ rings)


def _first(weights: Any) -> Any:
    """Whether the clock of one level rings before that of another, w_x/(w_x + w_y)."""
    return weights[:, None] / (weights[:, None] + weights)
