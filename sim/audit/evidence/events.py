"""What chance decided in a batch of rounds, and how likely the claim makes it, within rounding."""

from dataclasses import dataclass

import numpy as np

from sim.audit.laws.rounds import RoundLaw

__all__ = ["Events", "Rounds", "drawn_tokens", "number_accepted", "tests_passed"]


@dataclass(frozen=True)
class Rounds:
    """Rounds of a batch: block [B], drafts [B, m], accepted [B], and the token behind them [B]."""

    block: np.ndarray
    drafts: np.ndarray
    accepted: np.ndarray
    token: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "Rounds":
        return Rounds(self.block[rows], self.drafts[rows], self.accepted[rows], self.token[rows])

    @property
    def ended(self) -> np.ndarray:
        """Whether every draft was accepted, so that the token is the bonus."""
        return self.accepted == self.drafts.shape[1]


@dataclass(frozen=True)
class Events:
    """E outcomes, each of one of K kinds.

    row, place, outcome [E]; law [E, K] under the claim, with the little that rounding may add,
    summing to 1; log_most [E], the logarithm of the most that the claim allows the outcome, −∞
    where it is impossible.
    """

    row: np.ndarray
    place: np.ndarray
    outcome: np.ndarray
    law: np.ndarray
    log_most: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> "Events":
        parts = (self.row, self.place, self.outcome, self.law, self.log_most)
        return Events(*(part[chosen] for part in parts))

    @property
    def possible(self) -> np.ndarray:
        """Whether the claim allows what happened, [E]."""
        return self.log_most > -np.inf

    @property
    def chance(self) -> np.ndarray:
        """The probability of what happened under the claim, [E]."""
        return self.law[np.arange(self.outcome.size), self.outcome]


def _events(row: np.ndarray, place: np.ndarray, outcome: np.ndarray, most: np.ndarray) -> Events:
    """Events of which the claim allows at most the probabilities `most` [E, K]."""
    with np.errstate(divide="ignore"):
        log_most = np.log(most[np.arange(outcome.size), outcome])
    return Events(row, place, outcome, most / most.sum(axis=-1, keepdims=True), log_most)


def tests_passed(rounds: Rounds, chances: np.ndarray, rounding: float) -> Events:
    """The test of the draft at each place that was reached: 0 rejected, 1 accepted.

    A rejection of probability 0 may come of rounding; an acceptance of probability 0 may not.
    """
    row, place = np.nonzero(np.arange(chances.shape[1]) <= rounds.accepted[:, None])
    chance = chances[row, place]
    most = np.stack([1 - chance + rounding, (1 + rounding) * chance], axis=-1)
    return _events(row, place, (place < rounds.accepted[row]).astype(np.int64), most)


def drawn_tokens(rounds: Rounds, laws: np.ndarray, verifier: np.ndarray, rounding: float) -> Events:
    """The token that each round drew: a recovery, or the bonus. verifier [N, m + 1, V].

    A recovered token of probability 0 may come of rounding where the verifier knows it.
    """
    rows = verifier[rounds.block, rounds.accepted]
    most = (1 + rounding) * laws + rounding * rows * ~rounds.ended[:, None]
    return _events(np.arange(rounds.block.size), rounds.accepted, rounds.token, most)


def number_accepted(rounds: Rounds, law: RoundLaw, rounding: float) -> Events:
    """The number of accepted drafts of each round, given the drafts: 0 … m."""
    most = law.accepted_law(rounds.block, rounds.drafts) + rounding
    nowhere = np.zeros_like(rounds.block)
    return _events(np.arange(rounds.block.size), nowhere, rounds.accepted, most)
