r"""The best a decoder can do on a Markov pair token by token, at a price of a nat (claims 31, 32).

At a price λ of tokens per nat, in state x at place i, an accepted token y is worth α_y and one that
ends the round β_y; the best law

    max_h Σ_y [α_y min(p_y, h_y) + β_y (h_y − p_y)₊] − λ KL(h‖q)

is h = clip(p, b_y q, a_y q) with a_y = e^{(α_y − ν)/λ}, b_y = e^{(β_y − ν)/λ} and Σ h = 1.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from sim.chain.longrun import stationary
from sim.chain.markov import MarkovPair
from theory import divergence

__all__ = ["Optimum", "best_round", "best_run", "best_run_at"]

_HALVINGS = 70
_ROUNDS = 100  # of policy iteration
_SETTLED = 1e-12
_CHEAPEST, _DEAREST = 1e-2, 1e4


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best laws, and what they are worth.

    price   : λ, tokens per nat
    laws    : [m, S, V], the law at each place and state
    tokens  : mean tokens of a round, the last one included
    cost    : mean Σ KL(h‖q) of a round, in nats
    """

    price: float
    laws: np.ndarray
    tokens: float
    cost: float

    @property
    def divergence(self) -> float:
        """The divergence by emitted token, in nats."""
        return self.cost / self.tokens


def best_round(pair: MarkovPair, price: float, drafts: int, start: np.ndarray) -> Optimum:
    """The value-weighted clip of one round that starts in the law `start` [S] (claim 31).

    It has the most tokens − price · cost of all laws by place and state; exact, by dynamic
    programming from the last place. Raises ValueError for a price that is not positive.
    """
    laws, _ = _planned(pair, price, drafts, np.zeros(pair.states), 0.0)
    return _worth(pair, price, laws, np.asarray(start, dtype=np.float64))


def best_run(pair: MarkovPair, price: float, drafts: int) -> Optimum:
    """The laws with the most tokens − price · cost a round in the long run (claim 32).

    By policy iteration on rounds: given the biases of the states in which rounds start, the best
    round is exact; it ends where the gain no longer grows, to 10⁻¹². Raises ValueError for a price
    that is not positive, where there is no one long run, and where it does not settle.
    """
    biases, gain = np.zeros(pair.states), -math.inf
    for _ in range(_ROUNDS):
        laws, _ = _planned(pair, price, drafts, biases, 1.0)
        biases, found = _evaluated(pair, price, laws)
        if found - gain <= _SETTLED:
            return _worth(pair, price, laws, stationary(_closed(pair, laws)[0]))
        gain = found
    raise ValueError(f"price: policy iteration did not settle in {_ROUNDS} rounds at {price!r}")


def best_run_at(pair: MarkovPair, level: float, drafts: int) -> Optimum:
    """The long run with the most tokens a round at `level` > 0 nats by emitted token (claim 32).

    The price is halved on a scale of logarithms between 10⁻² and 10⁴; where even the lowest spends
    less, its run is returned.
    """
    if not 0 < level < math.inf:
        raise ValueError(f"level must be a positive number, got {level!r}")
    low, high = math.log(_CHEAPEST), math.log(_DEAREST)
    found = best_run(pair, math.exp(high), drafts)
    for _ in range(45):
        middle = 0.5 * (low + high)
        tried = best_run(pair, math.exp(middle), drafts)
        if tried.divergence > level:
            low = middle
        else:
            high, found = middle, tried
    return found


def _planned(
    pair: MarkovPair, price: float, drafts: int, biases: np.ndarray, closed: float
) -> tuple[np.ndarray, np.ndarray]:
    """The best laws [m, S, V] of a round, and its value by state; `closed` counts biases behind."""
    if not 0 < price < math.inf:
        raise ValueError(f"price must be a positive number, got {price!r}")
    p, q, follow = pair.draft, pair.verifier, pair.follow
    ended = closed * biases[follow]
    value, laws = np.sum(q * ended, axis=1), []
    for _ in range(drafts):
        kept = 1.0 + value[follow]
        h = _clip(p, q, kept, ended, price)
        common = np.minimum(p, h)
        value = np.sum(common * kept + (h - common) * ended, axis=1)
        value = value - price * divergence("kl", h, q)
        laws.append(h)
    return np.stack(laws[::-1]), value


def _clip(
    p: np.ndarray, q: np.ndarray, kept: np.ndarray, ended: np.ndarray, price: float
) -> np.ndarray:
    """clip(p, q·e^{(β − ν)/λ}, q·e^{(α − ν)/λ}) with Σ h = 1, ν by halving."""
    if np.min(kept - ended) < -1e-9:
        raise ValueError("price: an accepted token would be worth less than one that ends a round")
    with np.errstate(divide="ignore"):
        log_q = np.log(q)

    def law(shift: np.ndarray) -> np.ndarray:
        high = np.exp(np.minimum((kept - shift) / price + log_q, 700.0))
        low = np.exp(np.minimum((ended - shift) / price + log_q, 700.0))
        return np.minimum(np.maximum(p, low), high)

    least = np.min(np.minimum(kept, ended), axis=1, keepdims=True)  # there Σ h ≥ 1
    most = np.max(np.maximum(kept, ended), axis=1, keepdims=True)
    for _ in range(_HALVINGS):
        middle = 0.5 * (least + most)
        heavy = law(middle).sum(axis=1, keepdims=True) > 1.0
        least, most = np.where(heavy, middle, least), np.where(heavy, most, middle)
    h = law(most)
    return h / h.sum(axis=1, keepdims=True)  # off by the rounding of ν


def _flows(pair: MarkovPair, law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where accepted tokens lead, and those that end the round: [S, S] each."""
    common = np.minimum(pair.draft, law)
    row = np.repeat(np.arange(pair.states), law.shape[1])
    spots = (row, np.ravel(pair.follow))
    shape = (pair.states, pair.states)
    flows = (sparse.coo_array((np.ravel(m), spots), shape=shape) for m in (common, law - common))
    go, leave = (flow.toarray() for flow in flows)
    return go, leave


def _closed(pair: MarkovPair, laws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By the state of a start: the next start [S, S], tokens [S] and cost [S] of the round."""
    behind = _flows(pair, pair.verifier)
    start, tokens, cost = sum(behind), np.ones(pair.states), np.zeros(pair.states)
    for law in laws[::-1]:
        go, leave = _flows(pair, law)
        start, tokens = leave + go @ start, 1.0 + go @ tokens
        cost = divergence("kl", law, pair.verifier) + go @ cost
    return start, tokens, cost


def _evaluated(pair: MarkovPair, price: float, laws: np.ndarray) -> tuple[np.ndarray, float]:
    """Biases [S], 0 in the first state, and the gain of a policy: B + g = reward + T B."""
    start, tokens, cost = _closed(pair, laws)
    system = np.eye(pair.states) - start
    system[:, 0] = 1.0  # the column of B_0 = 0 holds the gain
    found = np.linalg.solve(system, tokens - price * cost)
    return np.append(0.0, found[1:]), float(found[0])


def _worth(pair: MarkovPair, price: float, laws: np.ndarray, start: np.ndarray) -> Optimum:
    _, tokens, cost = _closed(pair, laws)
    return Optimum(price, laws, float(start @ tokens), float(start @ cost))
