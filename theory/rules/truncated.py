"""Strict verification of the verifier's law cut to a set of its likely tokens.

π = q·1[S]/q(S) with the maximal coupling to the draft: lossless for the verifier that samples under
that filter, and what a rule that accepts by a set of tokens has to be compared with. The set does
not depend on the draft, and neither does the divergence: KL(π‖q) = −log q(S). Equal probabilities
are kept or cut together, and the likeliest token is always kept.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from theory.arrays import Array, check_scalar
from theory.pair import Pair, suffix_sums
from theory.rules.accept_set import typical_threshold
from theory.rules.base import TargetRule
from theory.rules.parameters import whole_number

ROUNDING = 1e-14  # of a sum of probabilities that reaches top_p


@dataclass(frozen=True)
class TruncatedRule(TargetRule):
    """Shared by the cuts: everything from a lowest probability on is kept."""

    @abstractmethod
    def lowest(self, pair: Pair) -> Array:
        """Return, ``[R]``, the smallest verifier probability that is kept."""

    def target(self, pair: Pair) -> Array:
        xp, q = pair.xp, pair.q
        lowest = xp.minimum(self.lowest(pair), pair.verifier_max)
        kept = xp.where(q >= lowest[:, None], q, 0.0)
        whole, left = (xp.sum(rows, axis=-1, keepdims=True) for rows in (q, kept))
        # The mass of the row itself, so that a cut of nothing gives q to the last digit.
        return kept * (whole / left)


@dataclass(frozen=True)
class TruncatedTypical(TruncatedRule):
    """S = {q ≥ min(ε, α·e^{−H(q)})}, H exact: TensorRT-LLM's typical acceptance, η-sampling.

    Its kernel masks what is below the threshold, samples the rest, and accepts a draft equal to
    the sample. ε in [0, 1], α ≥ 0; ε = 0 or α = 0 is strict. For α ≤ 1 the mode is in S by itself,
    as e^{−H} ≤ max q; beyond, where it is not, the kernel draws uniformly from all tokens.
    """

    epsilon: float = 0.09
    alpha: float = 0.3
    name = "truncated_typical"
    parameter = "epsilon"
    aliases: ClassVar[Mapping[str, str]] = {
        "posterior_threshold": "epsilon",
        "posterior_alpha": "alpha",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("epsilon", self.epsilon, 0.0, 1.0)
        check_scalar("alpha", self.alpha, 0.0, math.inf)

    def lowest(self, pair: Pair) -> Array:
        return typical_threshold(pair, self.epsilon, self.alpha)


@dataclass(frozen=True)
class TruncatedTopK(TruncatedRule):
    """S holds the k largest of q and all that tie with the last of them. k ≥ V is strict."""

    k: int
    name = "truncated_top_k"
    parameter = "k"
    aliases: ClassVar[Mapping[str, str]] = {"top_k": "k"}

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", whole_number("k", self.k))

    def lowest(self, pair: Pair) -> Array:
        return pair.verifier_rank_value(self.k)


@dataclass(frozen=True)
class TruncatedTopP(TruncatedRule):
    """S is the smallest set of likeliest tokens whose mass reaches top_p, with all ties.

    top_p in (0, 1]; 1 is strict. The mass counts as reached within 1e-14.
    """

    top_p: float
    name = "truncated_top_p"
    parameter = "top_p"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("top_p", self.top_p, 0.0, 1.0, open_low=True)

    def lowest(self, pair: Pair) -> Array:
        xp = pair.xp
        if self.top_p == 1.0:  # no rounding may cut a faint token
            return xp.zeros_like(pair.verifier_max)
        ordered = pair.verifier_descending
        tail = pair.cached("tail", lambda: suffix_sums(xp, ordered)[:, :-1])  # from each token on
        kept = tail > (1.0 - self.top_p + ROUNDING) * tail[:, :1]
        return xp.min(xp.where(kept, ordered, 1.0), axis=-1)


TRUNCATED_RULES: list[type[TargetRule]] = [TruncatedTypical, TruncatedTopK, TruncatedTopP]
