r"""The best of a block on a Markov pair, at a price of a nat (claim 33).

At a price λ of tokens per nat and behind a prefix of scale s the best law is

    h = clip(p/s, b·q, a_y·q),   log(a_y/b) = 1/λ − log b_y,

b_y the factor of the place behind the token y, at the scale min(1, s·h_y/p_y) there, and 1 behind
the last place. log b of each place and state is found on a grid of scales, from the last place
back; between its points it is read off a line. The value is that of the law that is found, exact by
the rounds themselves; it is below the best by the square of what the lines are off (below 10⁻⁴ on
random pairs of three states at 641 points, below 10⁻⁶ at 4,001).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from sim.chain.markov import MarkovPair
from sim.chain.rounds import of_rounds, places
from sim.checks import require_count

__all__ = ["BestBlock", "best_block"]

_HALVINGS = 50
_LEAST = 1e-4  # of the grid of scales: less is taken for as much
POINTS = 641


@dataclass(frozen=True, eq=False)
class BestBlock:
    """The law of the best block, and what rounds that start in each state are worth.

    price    : λ, tokens per nat
    factors  : [m, S, G], log b by place and state, at G scales even in log s from 10⁻⁴ to 1
    accepted : [S], the mean accepted length
    spent    : [S], the divergence of a round, in nats
    """

    pair: MarkovPair
    price: float
    factors: np.ndarray
    accepted: np.ndarray
    spent: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """Accepted drafts less the price of what they spend, [S]: the most there is."""
        return self.accepted - self.price * self.spent

    def at(self, place: int, state: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The law of the next token at each node, [N, V]."""
        behind = self.factors[place + 1] if place + 1 < len(self.factors) else None
        rows = self.pair.draft[state], self.pair.verifier[state], self.pair.follow[state]
        return _solved(*rows, scale, behind, self.price)[1]


def best_block(pair: MarkovPair, price: float, drafts: int, *, points: int = POINTS) -> BestBlock:
    """The kernel with the most accepted drafts − price · divergence of one round, in blocks.

    `points` are those of the grid of scales. Against a conic programme over all accepted and
    emitted masses of a tree: `theory.ledger.derivations.claim_33_frontier_of_blocks`.

    Raises ValueError for a price that is not positive, and as `places`.
    """
    if not 0 < price < math.inf:
        raise ValueError(f"price must be a positive number, got {price!r}")
    if type(drafts) is not int or drafts < 1:
        raise ValueError(f"drafts must be a whole number of at least 1, got {drafts!r}")
    require_count("points", points, 2, high=100_000)
    factors: list[np.ndarray] = []
    state = np.repeat(np.arange(pair.states), points)
    scale = np.tile(np.geomspace(_LEAST, 1.0, points), pair.states)
    rows = pair.draft[state], pair.verifier[state], pair.follow[state]
    for _ in range(drafts):
        found, _ = _solved(*rows, scale, factors[0] if factors else None, price)
        factors.insert(0, found.reshape(pair.states, points))
    none = np.zeros(pair.states)
    best = BestBlock(pair, price, np.stack(factors), none, none)
    accepted, spent = of_rounds(places(pair, best, drafts, "block"))
    return replace(best, accepted=accepted, spent=spent)


def _solved(
    p: np.ndarray,
    q: np.ndarray,
    follow: np.ndarray,
    scale: np.ndarray,
    behind: np.ndarray | None,
    price: float,
) -> tuple[np.ndarray, np.ndarray]:
    """log b [N] at which Σ h = 1, by halving, and h [N, V]."""
    most = 0.0 if behind is None else -float(np.min(behind))
    low = np.full(len(p), -(most + 1.0 / price))  # a ≥ 1, so that log b ≥ −log(a/b)
    high = np.zeros(len(p))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        short = _emitted(p, q, follow, scale, middle, behind, price).sum(axis=-1) < 1.0
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    h = _emitted(p, q, follow, scale, high, behind, price)
    return high, h / h.sum(axis=-1, keepdims=True)


def _emitted(
    p: np.ndarray,
    q: np.ndarray,
    follow: np.ndarray,
    scale: np.ndarray,
    log_b: np.ndarray,
    behind: np.ndarray | None,
    price: float,
) -> np.ndarray:
    """clip(p/s, b·q, a_y·q) [N, V] at given b; a_y·q by halving, where it depends on h itself."""
    s, b = scale[:, None], np.exp(log_b)[:, None]
    supply, least = p / s, b * q
    if behind is None:
        return np.clip(supply, least, least * math.exp(1.0 / price))
    low, high = least, np.maximum(supply, least)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_HALVINGS):
            h = 0.5 * (low + high)
            reached = np.where(p > 0, np.minimum(1.0, s * h / np.where(p > 0, p, 1.0)), 1.0)
            worth = 1.0 / price - _read(behind, follow, reached)
            over = np.log(h / q) > np.log(b) + worth
            low, high = np.where(over, low, h), np.where(over, h, high)
    return np.where(q > 0, high, 0.0)


def _read(table: np.ndarray, state: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """log b at scales between those of the grid, on lines in log s."""
    last = table.shape[-1] - 1
    where = last * (1.0 - np.log(np.maximum(scale, _LEAST)) / np.log(_LEAST))
    left = np.clip(where.astype(np.int64), 0, last - 1)
    share = where - left
    return (1 - share) * table[state, left] + share * table[state, left + 1]
