r"""The weights of the draws in flat blocks of u/q, with which the chosen one of them has the law u.

In a block one draw is chosen with the odds of weights w; what is wanted is ψ(w_x) = u_x/p_x of
:mod:`theory.candidates.selection`. The MM algorithm for Luce's choice climbs to it from equal
weights, and where a block has few ratios p/q Newton's steps end it. Blocks of about as many levels
are worked side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.arrays import quiet

__all__ = ["Piece", "choose_weights"]

LEVELS = 256  # weights of a block at most
FEW = 64  # ratios of a block, up to which each is brought to u by Newton's steps
ROUNDS = 60  # of the iteration for them
NEWTON = 30  # of Newton's steps at most, where a block has few ratios
LITTLE = 3e-3  # a block of less mass keeps equal weights: what it could gain is a part of that
NEAR = 1e-8  # of the law of a block to u, or a part of its mass where that is little
FAR = 1e8  # a weight is never further than this from the others, either way
STEP = 0.2  # of the quadrature in log t
AT_ONCE = 1 << 16  # levels squared, of blocks that are worked side by side


class Piece:
    """A flat block of a row in which a draw has to be chosen, by its levels of p/q."""

    def __init__(self, tokens: Any, p: Any, q: Any, u: Any, before: float) -> None:
        self.tokens, self.before = tokens, before
        self.level = _levels(p, q)
        self.mass = np.bincount(self.level, weights=p)
        self.wanted = np.bincount(self.level, weights=u)
        self.weights = np.ones(len(self.mass))
        self.chance = np.ones(len(self.mass))


@quiet()
def choose_weights(pieces: list[Piece], count: int) -> None:
    """Find the weights of all blocks of a batch: those of about as many levels side by side."""
    alike: dict[int, list[Piece]] = {}
    for piece in pieces:
        alike.setdefault(1 << (len(piece.mass) - 1).bit_length(), []).append(piece)
    for width, group in alike.items():
        step = max(1, AT_ONCE // (width * max(width, 64)))
        for start in range(0, len(group), step):
            _settle(group[start : start + step], width, count)


def _settle(pieces: list[Piece], width: int, count: int) -> None:
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
