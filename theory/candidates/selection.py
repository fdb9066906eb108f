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
from theory.candidates.weights import Piece, choose_weights
from theory.pair import Pair

__all__ = ["Selection", "select"]


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
    ``effective_draft(p, q, count)``, equal to rounding where blocks have few ratios. Otherwise a
    flat block of u/q has 256 levels of weights at most, and their width costs something. Measured
    (tests/theory/candidates/test_choice.py) with q ∝ 1/n^1.1 and log p/q of a standard deviation σ,
    the largest gap over σ = 0.02, 0.2, 0.5 and 1:

    ======  ==============  ==============
    V       K = 2           K = 4
    ======  ==============  ==============
    20,000  6.1e-4 (σ .2)   1.6e-3 (σ .5)
    49,152  6.3e-4 (σ .2)   1.7e-3 (σ .5)
    ======  ==============  ==============

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
    rows = [_Row.of(p_row[::-1], q_row[::-1], count) for p_row, q_row in sides]
    choose_weights([piece for row in rows for piece in row.pieces], count)
    token = to_numpy(pair.token)[:, ::-1]
    law, block, weight = (np.zeros(token.shape) for _ in range(3))
    for row, found in enumerate(rows):
        for values, mine in zip((law, block, weight), found.settled()):
            values[row, token[row]] = mine
    xp = pair.xp
    full = xp.asarray(law, dtype=xp.float64, device=device_of(pair.p))
    shaped = xp.reshape(full, (*pair.batch, pair.vocabulary))
    return Selection(xp.astype(shaped, pair.dtype, copy=False), count, block, weight)


@dataclass(frozen=True, eq=False)
class _Row:
    """A row in descending order of p/q: its increments, the block of each token, and its pieces."""

    p: Any
    law: Any
    block: Any
    pieces: list[Piece]

    @classmethod
    @quiet()
    def of(cls, p: Any, q: Any, count: int) -> _Row:
        if count == 1:
            return cls(p, p.copy(), np.zeros(len(p)), [])
        law = independent(p, count)
        u, block = flat_blocks(law, q)
        below, pieces = np.cumsum(p), []
        at = np.flatnonzero(block >= 0)
        for tokens in np.split(at, np.flatnonzero(np.diff(block[at])) + 1):
            drawn = float(np.sum(p[tokens]))
            # Tokens that are never drawn, and blocks of one token, need no choice.
            if len(tokens) > 1 and drawn > 0:
                before = below[tokens[-1]] - drawn
                pieces.append(Piece(tokens, p[tokens], q[tokens], u[tokens], before))
        return cls(p, law, block.astype(float), pieces)

    def settled(self) -> tuple[Any, Any, Any]:
        """Law, block and weight of each token."""
        weight = np.ones(len(self.law))
        for piece in self.pieces:
            weight[piece.tokens] = piece.weights[piece.level]
            self.law[piece.tokens] = self.p[piece.tokens] * piece.chance[piece.level]
        return self.law, self.block, weight
