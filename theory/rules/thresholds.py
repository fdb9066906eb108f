"""Rules that compare q_n/p_n with a constant, and recover as strict sampling does.

A serving engine (TensorRT-LLM, ``acceptance_threshold``) puts the constant θ in the place of the
uniform u. The gentler form keeps the uniform and accepts for certain from θ on. Both accept the
whole of p where q/p ≥ θ and keep k ≤ p elsewhere; with the residual norm((q − p)₊) that is the
maximal coupling to π = k + R·norm((q − p)₊), R = Σ(p − k).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from theory.arrays import Array, check_scalar, take_rows
from theory.pair import Pair
from theory.rules.base import TargetRule, coupled_accept
from theory.rules.target import kept_and_recovered


@dataclass(frozen=True)
class _RatioTest(TargetRule):
    """Shared by the two: what passes q_n ≥ θ·p_n is accepted, of the rest some part or nothing."""

    threshold: float
    parameter = "threshold"
    aliases: ClassVar[Mapping[str, str]] = {"acceptance_threshold": "threshold"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("threshold", self.threshold, 0.0, 1.0, open_low=True)

    @abstractmethod
    def below(self, pair: Pair, p: Array, q: Array) -> Array:
        """Return what is kept of p where q < θ·p, elementwise."""

    def _kept(self, pair: Pair, p: Array, q: Array) -> Array:
        # q > 0: θ·p may underflow to 0, and no threshold lets an impossible token pass.
        passes = (q >= self.threshold * p) & (q > 0)
        return pair.xp.where(passes, p, self.below(pair, p, q))

    def target(self, pair: Pair) -> Array:
        return kept_and_recovered(pair, self._kept(pair, pair.p, pair.q))

    def accept(self, pair: Pair) -> Array:
        return self._probability(pair, pair.p, pair.q)

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        p_n, q_n = (take_rows(pair.xp, a, candidate[:, None])[:, 0] for a in (pair.p, pair.q))
        return self._probability(pair, p_n, q_n)

    def _probability(self, pair: Pair, p: Array, q: Array) -> Array:
        # A receiver, p < q, is accepted for certain, whatever the residual adds to it.
        return coupled_accept(pair.xp, p, pair.xp.where(p < q, q, self._kept(pair, p, q)))


@dataclass(frozen=True)
class ConstantThreshold(_RatioTest):
    """b = 1[q/p ≥ θ], residual norm((q−p)₊): TensorRT-LLM's constant acceptance threshold.

    θ in (0, 1]. Never strict: θ = 1 rejects every token with p > q, where strict sampling rejects
    the part p − q, and puts its whole mass on the few tokens with p < q. What is emitted stays
    below q·max(1/θ, 1/(1 − θ)).
    """

    name = "constant_threshold"

    def below(self, pair: Pair, p: Array, q: Array) -> Array:
        return pair.xp.zeros_like(p)


@dataclass(frozen=True)
class RatioThreshold(_RatioTest):
    """b = 1 where q/p ≥ θ, else q/p; residual norm((q−p)₊).

    θ in (0, 1]; 1 is strict. Accepts iff q/p ≥ u or q/p ≥ θ, and emits no token above q/θ.
    """

    name = "ratio_threshold"
    keeps_strict = True

    def below(self, pair: Pair, p: Array, q: Array) -> Array:
        return pair.xp.minimum(p, q)


THRESHOLD_RULES: list[type[TargetRule]] = [ConstantThreshold, RatioThreshold]
