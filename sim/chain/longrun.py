"""What rounds are in the long run: accepted lengths, the emitted law, divergence and speed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.chain.markov import MarkovPair
from sim.chain.rounds import BlockKernel, Kernel, Place, places

__all__ = [
    "LongRun",
    "long_run",
    "next_start",
    "priced",
    "reached_by_state",
    "speed_up",
    "stationary",
]

_CLOSED = 1e-9  # how far π T may be from π


@dataclass(frozen=True, eq=False)
class LongRun:
    """The exact long run of one kernel on a Markov pair. Units are nats and tokens per round.

    starts    : [S], the stationary law of the state in which a round starts
    reached   : [m + 1], the chance that at least 0, 1, … m drafts are accepted
    by_state  : [S, m + 1], the same for rounds that start in each state
    emitted   : [V], the long-run share of each token
    divergence: Σ A(v) KL(h(·|v)‖q(·|v)) by emitted token: the budget of a text, which its own KL
                does not exceed (claim 30); the bonus token is of q and costs nothing
    """

    starts: np.ndarray
    reached: np.ndarray
    by_state: np.ndarray
    emitted: np.ndarray
    divergence: float

    @property
    def accepted(self) -> float:
        """The mean accepted length."""
        return float(self.reached[1:].sum())

    @property
    def tokens(self) -> float:
        """The mean tokens of a round: accepted drafts and one more."""
        return 1.0 + self.accepted

    @property
    def lengths(self) -> np.ndarray:
        """The law [m + 1] of the accepted length."""
        return self.reached - np.append(self.reached[1:], 0.0)

    @property
    def acceptance(self) -> np.ndarray:
        """The acceptance [m] by place, given that it is reached; NaN where it never is."""
        before, after = self.reached[:-1], self.reached[1:]
        return np.divide(after, before, out=np.full_like(after, np.nan), where=before > 0)


def long_run(
    pair: MarkovPair, kernel: Kernel | BlockKernel, drafts: int, verification: str = "token"
) -> LongRun:
    """The long run of a kernel in rounds of m drafts, token by token or in blocks; exact.

    Raises ValueError as `places`, and where the states fall apart into several classes, so that
    there is no one long run.
    """
    found = places(pair, kernel, drafts, verification)
    starts = stationary(next_start(found))
    alive, reached, by_state = starts, [1.0], reached_by_state(found)
    emitted, cost = np.zeros(pair.draft.shape[1]), 0.0
    for place in found[:-1]:
        emitted += alive @ place.output
        cost += priced(alive, place.spent)
        alive = alive @ place.go
        reached.append(float(alive.sum()))
    emitted += alive @ found[-1].output
    tokens = sum(reached)
    return LongRun(starts, np.array(reached), by_state, emitted / tokens, cost / tokens)


def stationary(transition: np.ndarray) -> np.ndarray:
    """The one law π [S] with π T = π; ValueError where there is no one law."""
    size = len(transition)
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    found, _, rank, _ = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=1e-12)
    if rank < size or np.abs(found @ transition - found).max() > _CLOSED:
        raise ValueError("the states fall apart into classes that never meet: no one long run")
    return np.maximum(found, 0.0)


def speed_up(tokens: float, drafts: int, draft_cost: float, round_cost: float = 1.0) -> float:
    """Tokens by time, against the verifier alone: tokens/(m · draft_cost + round_cost).

    Costs are in units of one step of the verifier: of one step of the draft, and of the verifier's
    pass over m + 1 positions. Raises ValueError for costs that are no finite numbers of at least 0,
    or that are 0 together.
    """
    for name, value in (("draft_cost", draft_cost), ("round_cost", round_cost)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    time = drafts * draft_cost + round_cost
    if time == 0:
        raise ValueError("draft_cost and round_cost are both 0: a round takes no time")
    return tokens / time


def next_start(found: Sequence[Place]) -> np.ndarray:
    """The law [S, S] of the next round's start by that of this round, from the last place back."""
    behind = found[-1].leave.toarray()
    for place in reversed(found[:-1]):
        behind = place.leave.toarray() + place.go @ behind
    return behind


def reached_by_state(found: Sequence[Place]) -> np.ndarray:
    """P(τ ≥ i) [S, m + 1] for rounds that start in each state."""
    chances = np.ones((len(found[-1].state), 1))
    for place in reversed(found[:-1]):
        chances = np.hstack([np.ones((len(place.state), 1)), place.go @ chances])
    return chances


def priced(alive: np.ndarray, spent: np.ndarray) -> float:
    """Σ alive · spent, where what is never reached costs nothing, though it be endless."""
    met = alive > 0
    return float(alive[met] @ spent[met])
