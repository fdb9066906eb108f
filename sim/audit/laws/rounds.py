r"""The exact law of a round, given its drafts: how many are accepted, and which token follows.

Token by token, with b_i and g_i of the rule at place i and drafts x_1 … x_m,

    P(τ = i, Y | x) = Π_{j≤i} b_j(x_j) · (1 − b_{i+1}(x_{i+1})) · g_{i+1}^{(x_{i+1})}(Y),
    P(τ = m, Y | x) = Π_{j≤m} b_j(x_j) · q_{m+1}(Y).

By blocks (2403.10444), with the rule's output h_i in place of the verifier's rows,

    s_0 = 1,  s_i = min(1, s_{i−1} h_i(x_i)/p_i(x_i)),  R_i = Σ(s_i h_{i+1} − p_{i+1})₊,
    c_i = R_i/(R_i + 1 − s_i) for i < m,  c_m = s_m;  τ is the largest i with U_i ≤ c_i,

and Y follows norm((s_τ h_{τ+1} − p_{τ+1})₊), or q_{m+1} where τ = m. No sampling, float64.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.audit.hostile import Blocks
from theory import Rule, one_step
from theory.arrays import quotient
from theory.blocks import VERIFICATIONS, block_residual, block_test

__all__ = [
    "LARGEST_TABLE",
    "VERIFICATIONS",
    "ByBlock",
    "RoundLaw",
    "Table",
    "TokenByToken",
    "round_law",
]

LARGEST_TABLE = 2**22  # entries of recovery rows that are kept


@dataclass(frozen=True)
class RoundLaw(ABC):
    """The law of a round on blocks of rows, for batches of B rounds.

    block [B] says on which rows a round runs, drafts [B, m] what was drafted in it.
    """

    @abstractmethod
    def chances(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        """P(draft i is accepted | all before it are, drafts), [B, m]."""

    @abstractmethod
    def token_law(self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """The law of the token behind so many accepted drafts, [B] → [B, V]."""

    def token_chance(
        self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray, token: np.ndarray
    ) -> np.ndarray:
        """The probability of one token behind so many accepted drafts, [B]."""
        return self.token_law(block, drafts, accepted)[np.arange(len(token)), token]

    def accepted_law(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        """P(τ = i | drafts) for i = 0 … m, [B, m + 1]."""
        chances = self.chances(block, drafts)
        reached = np.cumprod(chances, axis=-1)
        ones, zeros = np.ones((len(drafts), 1)), np.zeros((len(drafts), 1))
        return np.hstack([ones, reached]) * (1 - np.hstack([chances, zeros]))


def round_law(rule: Rule, blocks: Blocks, verification: str = "token") -> RoundLaw:
    """The law that a sampler of this rule claims. ValueError for another kind of verification."""
    if verification not in VERIFICATIONS:
        known = " or ".join(map(repr, VERIFICATIONS))
        raise ValueError(f"verification must be {known}, got {verification!r}")
    p, q = (rows.astype(np.float64) for rows in (blocks.p, blocks.q))
    return TokenByToken.of(rule, p, q) if verification == "token" else ByBlock.of(rule, p, q)


@dataclass(frozen=True)
class Table:
    """g_i^{(n)} of every place and candidate, [N, m, V, V]; [N, m, 1, V] where one is for all."""

    kept: np.ndarray

    def rows(self, block: np.ndarray, place: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        """The recovery behind rejected candidates, [B] each → [B, V]."""
        return self.kept[block, place, candidate % self.kept.shape[2]]


@dataclass(frozen=True)
class Computed:
    """The same for rows too long for a table: computed for the rejections that are met."""

    rule: Rule
    p: np.ndarray  # [N, m, V]
    q: np.ndarray

    def rows(self, block: np.ndarray, place: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        """The recovery behind rejected candidates, [B] each → [B, V]."""
        keys = np.stack([block, place, candidate])
        unique, which = np.unique(keys, axis=1, return_inverse=True)
        return self._compute(*unique)[which.reshape(-1)]

    def table(self) -> Table:
        """All of them at once."""
        every = np.meshgrid(*map(np.arange, self.p.shape), indexing="ij")
        rows = self._compute(*(index.reshape(-1) for index in every))
        return Table(rows.reshape(*self.p.shape, -1))

    def _compute(self, block: np.ndarray, place: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        p, q = self.p[block, place], self.q[block, place]
        return np.asarray(self.rule.recovery(p, q, candidate, validate=False))


@dataclass(frozen=True)
class TokenByToken(RoundLaw):
    """Each draft is tested by itself: accept [N, m, V], the recovery, the bonus rows [N, V]."""

    accept: np.ndarray
    recovery: Table | Computed
    bonus: np.ndarray

    @classmethod
    def of(cls, rule: Rule, p: np.ndarray, q: np.ndarray) -> "TokenByToken":
        """The law of a rule on rows p [N, m, V] and q [N, m + 1, V]."""
        accept = np.clip(np.asarray(rule.accept_prob(p, q[:, :-1], validate=False)), 0, 1)
        recovery = Computed(rule, p, q[:, :-1])
        small = p.size * p.shape[-1] <= LARGEST_TABLE
        return cls(accept, recovery.table() if small else recovery, _normed(q[:, -1]))

    def chances(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        return self.accept[block[:, None], np.arange(drafts.shape[1]), drafts]

    def token_law(self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        law = self.bonus[block]
        rejected = accepted < drafts.shape[1]
        block, place = block[rejected], accepted[rejected]
        candidate = drafts[rejected, place]
        if block.size:
            law[rejected] = self.recovery.rows(block, place, candidate)
        return law


@dataclass(frozen=True)
class ByBlock(RoundLaw):
    """A block is verified as a whole: draft rows p and target rows h [N, m, V], bonus rows [N, V].

    Mistakes that were made: `uncapped`, the last test uses the plain product of the ratios;
    `shift`, the test behind draft i sums the residual of place i + 1 − shift; `one_uniform`, it
    serves all tests.
    """

    p: np.ndarray
    h: np.ndarray
    bonus: np.ndarray
    uncapped: bool = False
    shift: int = 0
    one_uniform: bool = False

    @classmethod
    def of(cls, rule: Rule, p: np.ndarray, q: np.ndarray, **mistakes: Any) -> "ByBlock":
        """The law of block verification of what a rule emits on p [N, m, V], q [N, m + 1, V]."""
        output = np.asarray(one_step(rule, p, q[:, :-1], validate=False).output)
        return cls(p, output, _normed(q[:, -1]), **mistakes)

    def chances(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        tests = self.tests(block, drafts)
        # P(τ ≥ i) = 1 − Π_{j≥i} (1 − c_j), from the last place back, without a difference.
        survive = np.ones((len(drafts), drafts.shape[1] + 1))
        later = np.zeros(len(drafts))
        for place in range(drafts.shape[1], 0, -1):
            test = tests[:, place - 1]
            later = np.maximum(later, test) if self.one_uniform else later + (1 - later) * test
            survive[:, place] = later
        with np.errstate(all="ignore"):
            ratio = survive[:, 1:] / survive[:, :-1]
        return np.where(survive[:, :-1] > 0, np.minimum(ratio, 1), 0)

    def token_law(self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        scale = self.scales(block, drafts)
        law = self.bonus[block]
        rejected = accepted < drafts.shape[1]
        block, place = block[rejected], accepted[rejected]
        law[rejected] = block_residual(
            scale[rejected, place], self.p[block, place], self.h[block, place]
        )
        return law

    def scales(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        """s_0 … s_m, [B, m + 1]."""
        return block_test(self.p[block], self.h[block], drafts, validate=False).scale

    def tests(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        """c_1 … c_m, [B, m]."""
        test = block_test(self.p[block], self.h[block], drafts, validate=False)
        tests = test.accept.copy()
        if self.shift:
            for place in range(1, drafts.shape[1]):
                rows = self.h[block, place - self.shift], self.p[block, place - self.shift]
                left = np.maximum(test.scale[:, place, None] * rows[0] - rows[1], 0).sum(axis=-1)
                tests[:, place - 1] = quotient(np, left, left + 1 - test.scale[:, place], 1.0)
        if self.uncapped:
            at = block[:, None], np.arange(drafts.shape[1]), drafts
            tests[:, -1] = np.minimum(
                1, np.prod(quotient(np, self.h[at], self.p[at], 0.0), axis=-1)
            )
        return tests


def _normed(rows: np.ndarray) -> np.ndarray:
    """Rows as a sampler draws from them: float32 rows sum to 1 within rounding only."""
    return rows / rows.sum(axis=-1, keepdims=True)
