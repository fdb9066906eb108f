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
AT_ONCE = 1 << 16  # levels squared, of blocks that are worked side by side


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
    rows = [_Row.of(p_row[::-1], q_row[::-1], count) for p_row, q_row in sides]
    _choose_weights([piece for row in rows for piece in row.pieces], count)
    token = to_numpy(pair.token)[:, ::-1]
    law, block, weight = (np.zeros(token.shape) for _ in range(3))
    for row, found in enumerate(rows):
        for values, mine in zip((law, block, weight), found.settled()):
            values[row, token[row]] = mine
    xp = pair.xp
    full = xp.asarray(law, dtype=xp.float64, device=device_of(pair.p))
    shaped = xp.reshape(full, (*pair.batch, pair.vocabulary))
    return Selection(xp.astype(shaped, pair.dtype, copy=False), count, block, weight)


class _Piece:
    """A flat block of a row in which a draw has to be chosen, by its levels of p/q."""

    def __init__(self, tokens: Any, p: Any, q: Any, u: Any, before: float) -> None:
        self.tokens, self.before = tokens, before
        self.level = _levels(p, q)
        self.mass = np.bincount(self.level, weights=p)
        self.wanted = np.bincount(self.level, weights=u)
        self.weights = np.ones(len(self.mass))
        self.chance = np.ones(len(self.mass))


@dataclass(frozen=True, eq=False)
class _Row:
    """A row in descending order of p/q: its increments, the block of each token, and its pieces."""

    p: Any
    law: Any
    block: Any
    pieces: list[_Piece]

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
                pieces.append(_Piece(tokens, p[tokens], q[tokens], u[tokens], before))
        return cls(p, law, block.astype(float), pieces)

    def settled(self) -> tuple[Any, Any, Any]:
        """Law, block and weight of each token."""
        weight = np.ones(len(self.law))
        for piece in self.pieces:
            weight[piece.tokens] = piece.weights[piece.level]
            self.law[piece.tokens] = self.p[piece.tokens] * piece.chance[piece.level]
        return self.law, self.block, weight


@quiet()
def _choose_weights(pieces: list[_Piece], count: int) -> None:
    """Find the weights of all blocks of a batch: those of about as many levels side by side."""
    alike: dict[int, list[_Piece]] = {}
    for piece in pieces:
        alike.setdefault(1 << (len(piece.mass) - 1).bit_length(), []).append(piece)
    for width, group in alike.items():
        step = max(1, AT_ONCE // (width * max(width, 64)))
        for start in range(0, len(group), step):
            _settle(group[start : start + step], width, count)


def _settle(pieces: list[_Piece], width: int, count: int) -> None:
    """Weights and chances of some blocks, padded with levels that nothing is drawn from."""

    def padded(rows: list[Any]) -> Any:
        return np.stack([np.pad(row, (0, width - len(row))) for row in rows])

    mass, wanted = padded([x.mass for x in pieces]), padded([x.wanted for x in pieces])
    before = np.array([piece.before for piece in pieces])[:, None]
    weights = np.ones(mass.shape)
    large = np.sum(wanted, axis=-1) > LITTLE
    weights[large] = _climbed(mass[large], wanted[large], before[large], count)
    few = np.array([len(piece.mass) < FEW for piece in pieces])
    # Where each ratio has a weight of its own u is within reach.
    weights[few] = _polished(weights[few], mass[few], wanted[few], before[few], count)
    chance = _wins(weights, mass, before, count)
    for piece, own, won in zip(pieces, weights, chance):
        piece.weights, piece.chance = own[: len(piece.mass)], won[: len(piece.mass)]


def _climbed(mass: Any, wanted: Any, before: Any, count: int) -> Any:
    """Steps of the MM algorithm for Luce's choice, each of which climbs a concave likelihood."""
    weights, known = np.ones(mass.shape), mass > 0
    total = np.sum(wanted, axis=-1)
    open_ = np.arange(len(mass))
    for _ in range(ROUNDS):
        if not len(open_):
            break
        now = weights[open_]
        reached = mass[open_] * _wins(now, mass[open_], before[open_], count)
        off = np.sum(np.abs(reached - wanted[open_]), axis=-1)
        far = off > NEAR * np.minimum(1.0, 1e3 * total[open_])
        open_, now, reached = open_[far], now[far], reached[far]
        raised = now * wanted[open_] / np.where(reached > 0, reached, 1.0)
        raised = np.where(known[open_], raised, 1.0)
        size = np.sum(known[open_], axis=-1, keepdims=True)
        middle = np.exp(np.sum(np.log(raised), axis=-1, keepdims=True) / size)
        weights[open_] = np.clip(raised / middle, 1 / FAR, FAR)
    return weights


def _polished(weights: Any, mass: Any, wanted: Any, before: Any, count: int) -> Any:
    """Newton's steps in log w, as long as each brings the law of a block nearer to u."""
    best, off = weights.copy(), np.full(len(weights), np.inf)
    open_ = np.arange(len(weights))
    for _ in range(NEWTON):
        if not len(open_):
            break
        reached, change = _law_and_change(weights[open_], mass[open_], before[open_], count)
        now = np.max(np.abs(reached - wanted[open_]), axis=-1, initial=0.0)
        nearer = now < 0.5 * off[open_]
        open_, reached, change = open_[nearer], reached[nearer], change[nearer]
        best[open_], off[open_] = weights[open_], now[nearer]
        step = _newton(change, wanted[open_] - reached, mass[open_])
        moved = weights[open_] * np.exp(np.clip(step, -3.0, 3.0))
        weights[open_] = np.clip(moved, 1 / FAR, FAR)
    return best


def _newton(change: Any, left: Any, mass: Any) -> Any:
    """The step ``[B, G]`` in log w for what is left to u, of mean 0: only ratios of w count."""
    known = mass > 0
    scale = np.where(known, mass, 1.0)
    system = change / scale[..., None]
    size = np.max(np.abs(system), axis=(-1, -2), keepdims=True, initial=1e-300)
    both = known[..., :, None] & known[..., None, :]
    own = np.where(known, 1e-15, 1.0)[..., None] * np.eye(mass.shape[-1])
    system = np.where(both, system / size + 1.0, 0.0) + own
    return np.linalg.solve(system, (left / scale)[..., None] / size)[..., 0]


def _law_and_change(weights: Any, mass: Any, before: Any, count: int) -> tuple[Any, Any]:
    """The law ``[B, G]`` of the levels, and its derivatives ``[B, G, G]`` in log w."""
    own = np.eye(mass.shape[-1])
    if count == 2:
        first = _first(weights)
        law = 2 * mass * (before + (first @ mass[..., None])[..., 0])
        cross = 2 * mass[..., :, None] * mass[..., None, :] * first * first.swapaxes(-1, -2)
        return law, own * np.sum(cross, axis=-1, keepdims=True) - cross
    times = _times(weights)
    rings = np.exp(-times[:, None] * weights[:, None, :])
    phi = before + (rings @ mass[..., None])[..., 0]
    flow = STEP * times * phi ** (count - 1)
    lost = (count - 1) * STEP * times**2 * phi ** (count - 2)  # −dφ/dlog w = t·w·m·e^{−wt}
    scale = count * mass * weights
    law = scale * (flow[:, None, :] @ rings)[:, 0]
    diagonal = law - scale * weights * ((flow * times)[:, None, :] @ rings)[:, 0]
    cross = (lost[..., None] * rings).swapaxes(-1, -2) @ rings
    return law, own * diagonal[..., None] - scale[..., None] * cross * (mass * weights)[:, None, :]


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


def _wins(weights: Any, mass: Any, before: Any, count: int) -> Any:
    """ψ(w) ``[B, G]``: K times the chance that a draw of each level beats the K − 1 others."""
    if count == 2:
        return 2 * (before + (_first(weights) @ mass[..., None])[..., 0])
    times = _times(weights)
    rings = np.exp(-times[:, None] * weights[:, None, :])
    others = (before + (rings @ mass[..., None])[..., 0]) ** (count - 1)
    return count * weights * ((STEP * times * others)[:, None, :] @ rings)[:, 0]


def _first(weights: Any) -> Any:
    """Whether the clock of one level rings before that of another, w_x/(w_x + w_y)."""
    return weights[..., :, None] / (weights[..., :, None] + weights[..., None, :])
