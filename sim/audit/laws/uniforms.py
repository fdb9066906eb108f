"""The laws of samplers that use a uniform number twice."""

from dataclasses import dataclass

import numpy as np

from sim.audit.laws.rounds import RoundLaw, Table, TokenByToken
from theory.arrays import normalised_or

__all__ = ["OneUniform", "SameUniform"]


@dataclass(frozen=True)
class OneUniform(RoundLaw):
    """One u for all places of a round: P(τ ≥ i) = min_{j≤i} b_j."""

    claim: TokenByToken

    def chances(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        reached = np.minimum.accumulate(self.claim.chances(block, drafts), axis=-1)
        before = np.hstack([np.ones((len(drafts), 1)), reached[:, :-1]])
        return np.where(before > 0, reached / np.where(before > 0, before, 1), 0)

    def token_law(self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        return self.claim.token_law(block, drafts, accepted)


class SameUniform(TokenByToken):
    """The u ≥ b of a rejection also draws the recovery, by inversion; it is uniform on [b, 1)."""

    @classmethod
    def of(cls, claim: TokenByToken, kept: np.ndarray) -> "SameUniform":
        """The law beside a claim whose recovery rows are `kept` [N, m, V or 1, V]."""
        above = np.cumsum(kept, axis=-1)
        start, end = above - kept, above
        low = claim.accept[..., None]
        rows = np.maximum(np.minimum(end, 1) - np.maximum(start, low), 0)
        return cls(
            claim.accept,
            Table(normalised_or(np, rows, np.broadcast_to(kept, rows.shape))),
            claim.bonus,
        )
