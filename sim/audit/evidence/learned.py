r"""E-processes that learn: in every cell, the claimed law corrected by what was seen there before.

At time t an outcome y of the cell c(t) has the law h_t under the claim. The guess

    r_t = ½ (reweighted: ∝ h_t·(N + κ)/(M + κ)) + ½ (shifted: ∝ (h_t + (N − M)/(n + κ))₊)

is made of earlier outcomes only: N counts them in the cell, M is what h led one to expect, n their
number. Under the claim Π r_t(y_t)/h_t(y_t) is thus a supermartingale of mean at most 1, an
e-process. The denominator is the largest probability that the claim allows within rounding.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.special import logsumexp

from sim.audit.evidence.events import Events

__all__ = ["Copies", "Learned", "gains", "log_mean_exp"]

_PRIOR = 4.0  # κ: as many outcomes as a cell must have seen to be believed half


def log_mean_exp(logs: Sequence[float] | np.ndarray) -> float:
    """log of the mean of e-values given by their logarithms: an e-value again."""
    return float(logsumexp(logs) - np.log(len(logs)))


def gains(guess: np.ndarray, events: Events) -> np.ndarray:
    """log of guess [..., E] over the most that the claim allows; 0 for an impossible event."""
    possible = events.possible
    with np.errstate(divide="ignore"):
        return np.where(possible, np.log(guess) - np.where(possible, events.log_most, 0), 0)


class Learned:
    """Evidence in cells of one kind of outcome: which of `outcomes` happened.

    observed, expected [cells, outcomes]; log_e [cells]. A cell whose laws differ is `pooled`, and
    its guess reweighted only. The product over the cells sees a little
    everywhere, their mean sees much in one place.
    """

    def __init__(self, cells: int, outcomes: int, *, pooled: bool = False) -> None:
        self._pooled = pooled
        self.observed = np.zeros((cells, outcomes))
        self.expected = np.zeros((cells, outcomes))
        self.log_e = np.zeros(cells)

    def update(self, cell: np.ndarray, events: Events) -> None:
        """Take in a batch of events in the cells [E]; guesses are made from those before it.

        An impossible one is counted, and adds nothing to log_e.
        """
        if not cell.size:
            return
        size, event = len(self.log_e), np.arange(cell.size)
        guess = self._guess(cell, events.law)[event, events.outcome]
        self.log_e += np.bincount(cell, gains(guess, events), size)
        members = coo_array((np.ones(cell.size), (cell, event)), shape=(size, cell.size)).tocsr()
        self.expected += members @ events.law
        np.add.at(self.observed, (cell, events.outcome), 1.0)

    def _guess(self, cell: np.ndarray, law: np.ndarray) -> np.ndarray:
        change = (self.observed + _PRIOR) / (self.expected + _PRIOR)
        weighted = law * change[cell]
        if self._pooled:
            return weighted / weighted.sum(axis=-1, keepdims=True)
        seen = self.observed.sum(axis=-1, keepdims=True)
        shift = (self.observed - self.expected) / (seen + _PRIOR)
        shifted = np.where(law > 0, np.maximum(law + shift[cell], 0.0), 0.0)
        return 0.5 * sum(rows / rows.sum(axis=-1, keepdims=True) for rows in (weighted, shifted))

    @property
    def log_es(self) -> tuple[float, float]:
        """log of the product over the cells, and of the mean over them."""
        return float(self.log_e.sum()), log_mean_exp(self.log_e)


class Copies:
    """Evidence that outcomes repeat those of the row before: one uniform for several rows.

    r_t = (1 − λ) h_t + λ·1[y is the last outcome of its cell], for a few λ that are averaged.
    """

    _SHARES = np.array([0.03, 0.1, 0.3, 0.8])

    def __init__(self, cells: int) -> None:
        self._last = np.full(cells, -1)
        self._log_e = np.zeros(len(self._SHARES))

    def update(self, cell: np.ndarray, events: Events) -> None:
        """Take in a batch of events in the cells [E], in their order."""
        if not cell.size:
            return
        order = np.argsort(cell, kind="stable")
        cell, outcome, chance = cell[order], events.outcome[order], events.chance[order]
        first = np.ones(cell.size, dtype=bool)
        first[1:] = cell[1:] != cell[:-1]
        before = np.where(first, self._last[cell], np.roll(outcome, 1))
        last = np.roll(first, -1)
        self._last[cell[last]] = outcome[last]
        # The first outcome of a cell has nothing to repeat: its guess is the claim.
        repeated = np.where(before >= 0, before == outcome, chance)
        guess = (1 - self._SHARES[:, None]) * chance + self._SHARES[:, None] * repeated
        self._log_e += np.sum(gains(guess, events[order]), axis=-1)

    @property
    def log_e(self) -> float:
        """log of the e-value."""
        return log_mean_exp(self._log_e)
