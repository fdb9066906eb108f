r"""Evidence against a budget: D(h‖q) ≤ δ at every place, for a rule that nobody wrote down.

At each place the token that is emitted, given that all drafts before it were accepted, has some law
h. A guess r of it is made of earlier rounds; the factor is r(y)/h*(y) with the law h* of the ball
{h : D(h‖q) ≤ δ} that is nearest to r,

    h* = argmin KL(r‖h)  over  D(h‖q) ≤ δ,

and its expectation is at most 1 under every law of the ball, so that the product is an e-process.
For KL(h‖q) the optimum is h* = q·exp(ω(z) − a) with z = log(c·r/q) + a, a = c − δ, ω the function
of Wright (ω + log ω = z), and one number c > 0 such that Σh* = 1. For KL(q‖h) it is a mixture,
(r + μq)/(1 + μ).
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import elementwise
from scipy.special import rel_entr, wrightomega

from sim.audit.evidence.events import Rounds
from sim.audit.evidence.learned import log_mean_exp

__all__ = ["BALLS", "BudgetEvidence", "nearest_in_ball"]

BALLS = ("kl", "reverse_kl")  # KL(h‖q) and KL(q‖h)
_PRIOR = 2.0  # of how many tokens of q a guess is made before anything is seen
_SLACK = 1e-9  # by which the root finder may be off


def nearest_in_ball(r: np.ndarray, q: np.ndarray, level: float, divergence: str) -> np.ndarray:
    """argmin KL(r‖h) over the laws h with D(h‖q) ≤ level, rows [R, V] → [R, V].

    r where it lies in the ball. r > 0 only where q > 0; level ≥ 0. Up to the root finder's 1e−12.
    """
    spent = rel_entr(r, q).sum(-1) if divergence == "kl" else rel_entr(q, r).sum(-1)
    outside = spent > level
    nearest = r.copy()
    if outside.any():
        find = _in_kl if divergence == "kl" else _in_reverse_kl
        nearest[outside] = find(r[outside], q[outside], level) if level > 0 else q[outside]
    return nearest


def _in_kl(r: np.ndarray, q: np.ndarray, level: float) -> np.ndarray:
    drawn = r > 0
    log_ratio = np.log(np.where(drawn, r, 1) / np.where(drawn, q, 1))

    def law(log_c: np.ndarray, at: np.ndarray) -> np.ndarray:
        c = np.exp(log_c)[..., None]
        rise = c - level
        # h·ω = c·r, which keeps its digits where h = q·exp(ω − a) is a difference of large numbers.
        omega = wrightomega(log_c[..., None] + log_ratio[at] + rise)
        return np.where(drawn[at], c * r[at] / omega, q[at] * np.exp(-np.minimum(rise, 700)))

    return _solved(law, lambda h, at: h.sum(axis=-1) - 1, r, 20.0)


def _in_reverse_kl(r: np.ndarray, q: np.ndarray, level: float) -> np.ndarray:
    def law(log_mu: np.ndarray, at: np.ndarray) -> np.ndarray:
        share = 1 / (1 + np.exp(-log_mu))[..., None]
        return share * q[at] + (1 - share) * r[at]

    return _solved(law, lambda h, at: rel_entr(q[at], h).sum(axis=-1) - level, r, 300.0)


def _solved(
    law: Callable[[np.ndarray, np.ndarray], np.ndarray],
    condition: Callable[[np.ndarray, np.ndarray], np.ndarray],
    r: np.ndarray,
    highest: float,
) -> np.ndarray:
    """The law at which the condition vanishes in every row; r, which costs nothing, where it is met
    within rounding."""

    def value(log_x: np.ndarray, at: np.ndarray) -> np.ndarray:
        at = at.astype(np.int64)
        return condition(law(log_x, at), at)

    rows = np.arange(len(r))
    ends = np.full(len(r), -60.0), np.full(len(r), highest)
    found = elementwise.find_root(value, ends, args=(rows,))
    return np.where(found.success[:, None], law(np.nan_to_num(found.x), rows), r)


class BudgetEvidence:
    """E-processes against D(h‖q) ≤ level at each place of N blocks, q [N, m + 1, V].

    observed [N(m + 1), V] counts the tokens that were emitted at each place. A token with q = 0 has
    infinite KL(h‖q): one makes that evidence infinite.
    """

    def __init__(self, verifier: np.ndarray, divergence: str, level: float) -> None:
        self.divergence, self.level = divergence, level
        self._more = verifier.shape[1]
        self.verifier = verifier.reshape(-1, verifier.shape[-1])
        self.observed = np.zeros_like(self.verifier)
        self._log_e = np.zeros(len(self.verifier))
        self.impossible = 0
        self._log_factor = np.zeros_like(self.verifier)

    def update(self, rounds: Rounds) -> dict[str, np.ndarray]:
        """Take in a batch; returns which rounds are impossible within every budget, [B]."""
        row, place = np.nonzero(np.arange(self._more) <= rounds.accepted[:, None])
        drafts = np.hstack([rounds.drafts, rounds.token[:, None]])
        token = np.where(place == rounds.accepted[row], rounds.token[row], drafts[row, place])
        cell = rounds.block[row] * self._more + place
        never = (self.verifier[cell, token] <= 0) & (self.divergence == "kl")
        self.impossible += int(never.sum())
        self._log_e += np.bincount(
            cell[~never], self._log_factor[cell[~never], token[~never]], len(self._log_e)
        )
        np.add.at(self.observed, (cell, token), 1.0)
        self._guess()
        return {"emitted tokens": np.bincount(row[never], minlength=len(rounds.block)) > 0}

    def _guess(self) -> None:
        """log r/h* for the next batch, from all that was seen."""
        guess = self.laws(_PRIOR)
        nearest = nearest_in_ball(guess, self.verifier, self.level, self.divergence)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.log(guess) - np.log(nearest)
        factor = np.where(guess > 0, factor, 0.0)
        inside = np.all(guess == nearest, axis=-1, keepdims=True)
        self._log_factor = np.where(inside, 0.0, factor - _SLACK)

    def laws(self, prior: float = 0.0) -> np.ndarray:
        """What was emitted at each place, on the verifier's support; q where nothing was."""
        held = np.where(self.verifier > 0, self.observed, 0) + prior * self.verifier
        total = held.sum(axis=-1, keepdims=True)
        return np.where(total > 0, held / np.where(total > 0, total, 1), self.verifier)

    def spent(self) -> np.ndarray:
        """The divergence of what was emitted, [N, m + 1]: an estimate, at least 0.

        Plugged in with one token of q added, less (tokens − 1)/2n, what n tokens add by chance.
        """
        pair = (self.laws(1.0), self.verifier)
        kind = rel_entr(*pair) if self.divergence == "kl" else rel_entr(*pair[::-1])
        n, seen = self.observed.sum(axis=-1), np.sum(self.observed > 0, axis=-1)
        chance = np.maximum(seen - 1, 0) / (2 * np.maximum(n, 1))
        return np.maximum(kind.sum(-1) - chance, 0).reshape(-1, self._more)

    def log_e_of_places(self) -> np.ndarray:
        """log e of every place by itself, [N, m + 1]."""
        return self._log_e.reshape(-1, self._more)

    def log_e_of_parts(self) -> dict[str, float]:
        """The one part that a budget speaks of."""
        return {"emitted tokens": self.log_e()}

    def log_e(self) -> float:
        """log e of the audit: the places together, averaged with each by itself."""
        if self.impossible:
            return np.inf
        return log_mean_exp([float(self._log_e.sum()), log_mean_exp(self._log_e)])
