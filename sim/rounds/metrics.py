"""What a run of draft-and-verify rounds is worth: accepted length, rates, and their expectations.

Two conventions meet here, so each name says which it follows. The accepted length counts the
drafted tokens that were kept, without the token that every round takes from the verifier (recovery
or bonus); tokens per round counts that one too. A conditional rate is that of a position which was
reached, an unconditional one that of a position which was drafted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sim.checks import require_between
from sim.rounds.inputs import plain_array, whole_numbers
from theory.arrays import refuse_unfit

__all__ = [
    "AcceptanceMetrics",
    "acceptance_metrics",
    "accepted_from_emitted",
    "clustered_mean",
    "expected_accepted",
    "speed_up",
    "tokens_per_round",
]


@dataclass(frozen=True)
class AcceptanceMetrics:
    """Counts and rates of a run of rounds. A rate of nothing (no round, no draft) is nan.

    rounds, accepted, drafted: counts.
    acceptance_rate: accepted / drafted, the mean over drafted tokens; neither of the rates below.
    accepted_length: accepted drafts per round, without the verifier's token.
    tokens_per_round: emitted tokens per round, the verifier's included: accepted_length + 1.
    unconditional[i]: rounds that kept position i, of those that drafted it.
    conditional[i]: rounds that kept position i, of those that drafted it and kept all before it;
        nan where no round came that far.
    """

    rounds: int
    accepted: int
    drafted: int
    acceptance_rate: float
    accepted_length: float
    tokens_per_round: float
    unconditional: np.ndarray
    conditional: np.ndarray


def acceptance_metrics(
    accepted_per_round: ArrayLike, drafted_per_round: ArrayLike
) -> AcceptanceMetrics:
    """Metrics of rounds that drafted `drafted_per_round` tokens and kept `accepted_per_round`.

    Both are integers, [T]; one number stands for the same draft length in all rounds. Accepted
    counts exclude the verifier's token: see `accepted_from_emitted`. Raises ValueError for counts
    that are not integers or negative, and for more accepted than drafted, naming the round.
    """
    accepted = whole_numbers("accepted_per_round", accepted_per_round)
    drafted = np.broadcast_to(whole_numbers("drafted_per_round", drafted_per_round), accepted.shape)
    _require(accepted >= 0, accepted, "accepted ≥ 0: a verified round emits at least one token")
    _require(drafted >= 0, drafted, "drafted ≥ 0")
    _require(accepted <= drafted, accepted, "accepted ≤ drafted")
    position = np.arange(np.max(drafted, initial=0))[:, None]
    kept = np.sum(accepted > position, axis=-1)
    tried = np.sum(drafted > position, axis=-1)
    reached = np.sum((drafted > position) & (accepted >= position), axis=-1)
    length = _ratio(np.sum(accepted), np.asarray(accepted.size))
    return AcceptanceMetrics(
        rounds=accepted.size,
        accepted=int(np.sum(accepted)),
        drafted=int(np.sum(drafted)),
        acceptance_rate=float(_ratio(np.sum(accepted), np.sum(drafted))),
        accepted_length=float(length),
        tokens_per_round=float(length + 1),
        unconditional=_ratio(kept, tried),
        conditional=_ratio(kept, reached),
    )


def accepted_from_emitted(emitted_per_round: ArrayLike) -> np.ndarray:
    """Accepted drafts of rounds that emitted so many tokens: all but the verifier's one. [T] → [T].

    Raises ValueError where a round emitted nothing: a verified round emits at least one token.
    """
    emitted = whole_numbers("emitted_per_round", emitted_per_round)
    _require(emitted >= 1, emitted, "emitted ≥ 1: a verified round emits at least one token")
    return emitted - 1


def expected_accepted(alpha: ArrayLike, m: ArrayLike) -> np.ndarray:
    """Expected accepted length (bonus excluded) of m drafts, (α − α^{m+1})/(1 − α); m at α = 1.

    Exact where each draft is accepted with the same probability α independently of the others;
    with the mean acceptance of unlike positions it is an approximation. `alpha` in [0, 1] (up to
    1e-12 above it is taken as 1) and integers `m` ≥ 0, broadcast. Raises ValueError for values out
    of range.
    """
    alpha, m = _rate_and_count(alpha, m)
    return alpha * _geometric_sum(alpha, m)


def tokens_per_round(alpha: ArrayLike, m: ArrayLike) -> np.ndarray:
    """Expected tokens per round, the verifier's included: (1 − α^{m+1})/(1 − α); m + 1 at α = 1.

    Arguments, exactness and errors as in `expected_accepted`, of which it is 1 more.
    """
    alpha, m = _rate_and_count(alpha, m)
    return _geometric_sum(alpha, m + 1)


def speed_up(alpha: ArrayLike, m: ArrayLike, cost_ratio: float) -> np.ndarray:
    """Expected speed-up over the verifier alone, (1 − α^{m+1}) / ((1 − α)(m·c + 1)).

    c = `cost_ratio` ≥ 0 is the cost of one draft step in units of one verifier step; verifying
    m + 1 rows counts as one step. Other arguments as in `expected_accepted`.
    """
    refuse_unfit("cost_ratio", cost_ratio)
    require_between("cost_ratio", cost_ratio, 0, np.inf)
    alpha, m = _rate_and_count(alpha, m)
    return _geometric_sum(alpha, m + 1) / (m * float(cost_ratio) + 1)


def clustered_mean(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over positions and its standard error, from sums per cluster [..., C] and sizes [C].

    se² = C/(C−1) Σ_c (sum_c − size_c·mean)² / T², the linearised variance of a ratio of sums over
    clusters of T positions in all. The error is inf where the mean is, nan with fewer than two
    clusters.
    """
    sums, sizes = (
        plain_array(name, values).astype(np.float64)
        for name, values in (("sums", sums), ("sizes", sizes))
    )
    clusters, positions = sizes.size, sizes.sum()
    mean = sums.sum(axis=-1) / positions
    if clusters < 2:
        return mean, np.full_like(mean, np.nan)
    finite = np.isfinite(mean)
    held = np.where(finite, mean, 0)[..., None]
    deviations = np.where(finite[..., None], sums, 0) - sizes * held
    variance = clusters / (clusters - 1) * np.sum(deviations**2, axis=-1) / positions**2
    return mean, np.where(finite, np.sqrt(variance), np.inf)


def _geometric_sum(alpha: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """1 + α + … of so many terms. 1 − α is exact for α ≥ ½, and expm1 keeps the small numerator."""
    inside = (alpha > 0) & (alpha < 1)
    safe = np.where(inside, alpha, 0.5)
    series = -np.expm1(terms * np.log(safe)) / (1 - safe)
    at_the_ends = np.where(alpha > 0, terms, np.minimum(terms, 1))
    return np.where(inside, series, at_the_ends)


def _rate_and_count(alpha: ArrayLike, m: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    refuse_unfit("m", m)
    alpha, m = plain_array("alpha", alpha).astype(np.float64), np.asarray(m)
    inside = (alpha >= 0) & (alpha <= 1 + 1e-12)
    if not np.all(inside):
        raise ValueError(f"alpha must lie in [0, 1], got {alpha[~inside].flat[0]}")
    if not (np.issubdtype(m.dtype, np.integer) and np.all(m >= 0)):
        raise ValueError(f"m must be an integer of at least 0, got {m}")
    return np.minimum(alpha, 1), m.astype(np.float64)  # m + 1 overflows in small integers


def _require(holds: np.ndarray, values: np.ndarray, condition: str) -> None:
    if not np.all(holds):
        index = int(np.argmin(holds))
        raise ValueError(f"required {condition}; got {values.flat[index]} in round {index}")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
