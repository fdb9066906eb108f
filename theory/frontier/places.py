r"""A multiplier for each place of a block: early places are worth more (claim 31).

A draft that is accepted at place i lets the places behind it be tried. With W_i the value of what
follows behind i accepted drafts, at a price λ of accepted tokens per nat,

    W_m = 0,   W_i = max_h (1 + W_{i+1}) Σ min(p, h) − λ D_f(h‖q),

and the best h is the clip(p, b·q, a·q) with the multiplier f′(a) − f′(b) = (1 + W_{i+1})/λ; for KL
it is log(a/b). Where the rows do not depend on what was drafted, as in a mean over recorded rows,
one multiplier for each place is the optimum, and a decoder can use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from theory.arrays import coerce, plain_number, to_numpy
from theory.divergences.kinds import Divergence, resolve_divergence
from theory.frontier.clipped import ClippedFamily
from theory.frontier.levels import CorpusFrontier
from theory.pair import Pair

STEPS = 60  # halvings of log λ
CHEAPEST, DEAREST = 1e-4, 1e6  # the prices that are searched, in tokens per nat

Means = Callable[[float], tuple[float, float]]  # multiplier → mean acceptance, mean divergence


@dataclass(frozen=True)
class RoundMeans:
    """What a round of m drafts emits and spends, where its places do not know each other.

    accepted : [m], mean acceptance at each place, given that it is reached, the first place first
    spent    : [m], mean D_f(h‖q) there, in nats
    """

    accepted: tuple[float, ...]
    spent: tuple[float, ...]

    @property
    def reached(self) -> tuple[float, ...]:
        """The probability ``[m + 1]`` that at least 0, 1, … m drafts are accepted."""
        return (1.0, *np.cumprod(self.accepted).tolist())

    @property
    def tokens(self) -> float:
        """The mean tokens of a round: accepted drafts and one more."""
        return math.fsum(self.reached)

    @property
    def cost(self) -> float:
        """The divergence of a round, Σ_i P(place i is reached) · spent_i, in nats (claim 30)."""
        return math.fsum(r * s for r, s in zip(self.reached, self.spent))

    @property
    def cost_per_token(self) -> float:
        """The divergence of a round by its mean tokens, in nats."""
        return self.cost / self.tokens


@dataclass(frozen=True)
class Schedule(RoundMeans):
    """One multiplier for each place of a block of m drafts, and what they are worth.

    price       : λ, in accepted tokens per nat
    multipliers : [m], μ_i = f′(a_i) − f′(b_i) of the i-th place, the first place first
    value       : W_0 = accepted drafts of a round − λ · (divergence of a round)
    """

    price: float
    multipliers: tuple[float, ...]
    value: float


def schedule(
    pair: Pair, price: float, drafts: int, divergence: str | Divergence = "kl"
) -> Schedule:
    r"""Return the best multipliers of a block at a price λ, over rows that know no context.

    Parameters
    ----------
    pair : Pair
        R ≥ 1 rows, prepared with ``sort=True``; each place of each round meets one of them at
        random. One row is the pair without context.
    price : float
        λ > 0 in accepted tokens per nat. The multiplier of the last place is 1/λ.
    drafts : int
        m ≥ 1, the drafts of a block.
    divergence : str or Divergence
        As in :func:`theory.divergence`.

    Returns
    -------
    Schedule
        Exact up to rounding for rows drawn independently, place by place.

    Raises
    ------
    ValueError
        For a price that is no positive number, drafts that are no positive whole number, and a pair
        without rows.

    Notes
    -----
    Source: derived here, claim 31 of the ledger.
    """
    price, drafts = _positive("price", price), _whole(drafts)
    return _solved(_means(pair, divergence), price, drafts)


def schedule_at(
    rows: Pair | CorpusFrontier, level: float, drafts: int, divergence: str | Divergence = "kl"
) -> Schedule:
    """Return the schedule whose divergence per emitted token is ``level`` > 0, in nats.

    The price is halved to rounding between 10⁻⁴ and 10⁶ tokens per nat. Of all schedules with this
    divergence per token it has the most tokens per round. Where the rows cannot spend so much, it
    is that of the lowest price; where clipping can only spend more, that of the highest.

    ``rows`` are a pair, as in :func:`schedule`, or a corpus frontier, whose divergence it is then:
    its means are interpolated between its multipliers, to 10⁻³ for a few rows and better for many.
    Other parameters and errors are those of :func:`schedule`; a level that is no positive number is
    a ValueError.
    """
    level, drafts = _positive("level", level), _whole(drafts)
    means = rows.at if isinstance(rows, CorpusFrontier) else _means(rows, divergence)
    low, high = math.log(CHEAPEST), math.log(DEAREST)
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        spends = _solved(means, math.exp(middle), drafts).cost_per_token
        low, high = (middle, high) if spends > level else (low, middle)
    return _solved(means, math.exp(high), drafts)


def _solved(means: Means, price: float, drafts: int) -> Schedule:
    """Go from the last place to the first."""
    worth, places = 0.0, []
    for _ in range(drafts):
        multiplier = (1.0 + worth) / price
        accepted, spent = means(multiplier)
        places.append((multiplier, accepted, spent))
        worth = (1.0 + worth) * accepted - price * spent
    multipliers, accepts, costs = zip(*reversed(places))
    return Schedule(accepts, costs, price, multipliers, worth)


def _means(pair: Pair, divergence: str | Divergence) -> Means:
    if pair.p.shape[0] < 1:
        raise ValueError("pair has no rows; a schedule is a mean over at least one")
    family = ClippedFamily.of(pair, resolve_divergence(divergence))

    def means(multiplier: float) -> tuple[float, float]:
        mass = family.mass_at(coerce(family.total, [multiplier])[1])
        accepted, spent = (to_numpy(a) for a in (1.0 - mass, family.at(mass).spent))
        return float(np.mean(accepted)), float(np.mean(spent))

    return means


def _whole(drafts: int) -> int:
    if type(drafts) is not int or drafts < 1:
        raise ValueError(f"drafts must be a whole number of at least 1, got {drafts!r}")
    return drafts


def _positive(name: str, value: float) -> float:
    value = plain_number(value)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)
