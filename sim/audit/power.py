"""What an audit could have seen: the smallest deviations that its samples would have shown.

A deviation d in n outcomes is worth about n·KL(h + d‖h) nats; it is seen with about even odds where
that reaches log(1/α) plus what the e-process pays for the choice of cells and for learning. These
are approximations, good within a factor of about 1.5.
"""

import numpy as np

from sim.audit.evidence.budget import BudgetEvidence
from sim.audit.evidence.claim import ClaimEvidence
from sim.audit.evidence.learned import Learned

__all__ = ["budget_power", "claim_power", "power_lines"]

_CHOICE = np.log(2 * 5 * 2 * 8)  # explanations or parts, which part, which level
_RARE = 3.0  # −log of 5 %: an event of probability 3/n is missed in n trials with that chance

_WORDS = {
    "acceptance_everywhere": "acceptance off by {:.2g} at all places alike",
    "acceptance_at_one_place": "acceptance off by {:.2g} at one place of one block",
    "acceptance_of_one_token": "acceptance off by {:.2g} for one drafted token (median of tokens)",
    "recovery_at_one_place": "the recovery's law off by {:.2g} in TV at one place (median)",
    "bonus_in_one_block": "the bonus's law off by {:.2g} in TV in one block (median)",
    "impossible_acceptance": "a draft that is never accepted, accepted with probability {:.2g} "
                             "(missed 1 time in 20)",
    "divergence_at_one_place": "{:.2g} nats at one place (median)",
    "divergence_everywhere": "{:.2g} nats at all places alike",
}  # fmt: skip


def power_lines(power: dict[str, float]) -> list[str]:
    """The deviations in words."""
    return [_WORDS[name].format(value) for name, value in power.items()]


def claim_power(evidence: ClaimEvidence, level: float) -> dict[str, float]:
    """The smallest deviations that would have been seen; what was not met at all is left out."""
    learned = evidence.learned
    found = {
        "acceptance_everywhere": _of_tests(learned["acceptance"]["all"], level),
        "acceptance_at_one_place": _of_tests(learned["acceptance"]["block"], level),
        "acceptance_of_one_token": _of_tests(learned["acceptance"]["token"], level),
        "recovery_at_one_place": _of_tokens(learned["recovery"]["block"], level),
        "bonus_in_one_block": _of_tokens(learned["bonus"]["block"], level),
    }
    cells = learned["acceptance"]["token"]
    never = cells.observed.sum(axis=-1)[cells.expected[:, 1] == 0].sum()
    found["impossible_acceptance"] = _RARE / never if never else np.nan
    return {name: min(value, 1.0) for name, value in found.items() if np.isfinite(value)}


def _threshold(cells: Learned, level: float, free: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The nats that a cell has to bring: 1/α, the choice among the cells, learning."""
    chosen = np.log(1 / level) + _CHOICE + np.log(len(cells.log_e))
    return chosen + 0.5 * free * np.log1p(n / 4) + 1


def _of_tests(cells: Learned, level: float) -> float:
    """√(2 b(1 − b) L/n), the median over cells that were visited and can deviate a little."""
    n, chance = cells.observed.sum(axis=-1), cells.expected[:, 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = chance / n
        spread = chance * (1 - chance)
        deviation = np.sqrt(2 * spread * _threshold(cells, level, np.ones_like(n), n) / n)
    return _median(deviation[(n > 0) & (spread > 0.01)])


def _of_tokens(cells: Learned, level: float) -> float:
    """√(L/2n) by Pinsker: what KL = L/n can be in TV."""
    n = cells.observed.sum(axis=-1)
    free = np.maximum(np.sum(cells.expected > 0.5, axis=-1) - 1, 0)
    some = (n > 0) & (free > 0)
    return _median(np.sqrt(_threshold(cells, level, free, n)[some] / (2 * n[some])))


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan


def budget_power(evidence: BudgetEvidence, level: float) -> dict[str, float]:
    """The divergence D at which n·(√D − √δ)² brings the nats that are needed."""
    n = evidence.observed.sum(axis=-1)
    free = np.maximum((evidence.verifier * n[:, None] > 0.5).sum(axis=-1) - 1, 0)
    learning = 0.5 * free * np.log1p(n / 4)
    some = n > 0
    alone = np.log(1 / level) + np.log(2 * len(n)) + learning[some]
    together = np.log(2 / level) + learning[some].sum()
    return {
        "divergence_at_one_place": _median(_beyond(evidence.level, alone / n[some])),
        "divergence_everywhere": float(_beyond(evidence.level, together / n.sum())),
    }


def _beyond(budget: float, nats: np.ndarray) -> np.ndarray:
    """(√δ + √nats)²: near q both divergences grow as a square."""
    return (np.sqrt(budget) + np.sqrt(nats)) ** 2
