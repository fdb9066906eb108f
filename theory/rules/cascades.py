"""Rules that emit the draft where it is trusted and the verifier elsewhere, by row or by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from theory.arrays import Array, check_scalar
from theory.divergences.kinds import Divergence, resolve_divergence
from theory.pair import Pair
from theory.rules.base import TargetRule


@dataclass(frozen=True)
class _Switch(TargetRule):
    """A rule that emits the draft where it is trusted and the verifier elsewhere."""

    keeps_strict = True

    def trusts(self, pair: Pair) -> Array:
        """Return, per row, whether the draft is emitted."""
        raise NotImplementedError

    def target(self, pair: Pair) -> Array:
        return pair.xp.where(self.trusts(pair)[:, None], pair.p, pair.q)


@dataclass(frozen=True)
class CascadeChow(_Switch):
    """p where max p° ≥ 1 − α, else q (Narasimhan et al. 2405.19261). α in [0, 1]."""

    alpha: float
    name = "cascade_chow"
    parameter = "alpha"
    reads_raw = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("alpha", self.alpha, 0.0, 1.0)

    def trusts(self, pair: Pair) -> Array:
        return pair.p_raw_max >= 1.0 - self.alpha


@dataclass(frozen=True)
class CascadeDiff(_Switch):
    """p where max p° ≥ max q° − α, else q (2405.19261). α in [−1, 1]."""

    alpha: float
    name = "cascade_diff"
    parameter = "alpha"
    reads_raw = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("alpha", self.alpha, -1.0, 1.0)

    def trusts(self, pair: Pair) -> Array:
        return pair.p_raw_max >= pair.q_raw_max - self.alpha


@dataclass(frozen=True)
class CascadeOpt(_Switch):
    """p where max p° ≥ max q° − α·TV(p, q), else q (2405.19261). α real; −inf is strict."""

    alpha: float
    name = "cascade_opt"
    parameter = "alpha"
    reads_raw = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("alpha", self.alpha, -math.inf, math.inf)

    def trusts(self, pair: Pair) -> Array:
        xp, distance = pair.xp, pair.total_variation
        apart = distance > 0  # inf·0 would be NaN; p = q needs no allowance
        allowance = xp.where(apart, self.alpha * xp.where(apart, distance, 1.0), 0.0)
        return pair.p_raw_max >= pair.q_raw_max - allowance


@dataclass(frozen=True)
class _TokenCascade(TargetRule):
    """π(v) = p(v)·1[v ∈ T] + q(v)·p(Tᶜ) for a set T of trusted tokens (2405.19261)."""

    alpha: float
    parameter = "alpha"
    reads_raw = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("alpha", self.alpha, *self._range())

    @staticmethod
    def _range() -> tuple[float, float]:
        return -1.0, 1.0

    def trusted(self, pair: Pair) -> Array:
        """Return the membership in T, ``[R, K]``."""
        raise NotImplementedError

    def target(self, pair: Pair) -> Array:
        xp, member = pair.xp, self.trusted(pair)
        deferred = xp.sum(xp.where(member, 0.0, pair.p), axis=-1, keepdims=True)
        return xp.where(member, pair.p, 0.0) + pair.q * deferred


@dataclass(frozen=True)
class CascadeTokenV1(_TokenCascade):
    """T = {v : p°(v) ≥ max q° − α}. Strict only where T is empty."""

    name = "cascade_token_v1"

    def trusted(self, pair: Pair) -> Array:
        return pair.p_raw >= pair.q_raw_max[:, None] - self.alpha


@dataclass(frozen=True)
class CascadeTokenV2(_TokenCascade):
    """T = {v : q°(v) ≥ max q° − α}. α = 0 is not lossless: T holds the verifier's mode."""

    name = "cascade_token_v2"

    def trusted(self, pair: Pair) -> Array:
        return pair.q_raw >= pair.q_raw_max[:, None] - self.alpha


@dataclass(frozen=True)
class CascadeTokenV3(_TokenCascade):
    """T = {v : q°(v) ≥ (1−α)·max q°}, α in [0, 1]. α = 0 is not lossless either."""

    name = "cascade_token_v3"

    @staticmethod
    def _range() -> tuple[float, float]:
        return 0.0, 1.0

    def trusted(self, pair: Pair) -> Array:
        return pair.q_raw >= (1.0 - self.alpha) * pair.q_raw_max[:, None]


@dataclass(frozen=True)
class Fuzzy(_Switch):
    """p where Div(p, q) ≤ T, else q (fuzzy speculative decoding 2502.20704, reducible form).

    Div is Jensen–Shannon in nats by default; T < 0 is strict.
    """

    threshold: float
    divergence: str | Divergence = "js"
    name = "fuzzy"
    parameter = "threshold"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("threshold", self.threshold, -math.inf, math.inf)
        resolve_divergence(self.divergence)

    def trusts(self, pair: Pair) -> Array:
        return resolve_divergence(self.divergence).between(pair.p, pair.q) <= self.threshold


CASCADE_RULES: list[type[TargetRule]] = [
    CascadeChow,
    CascadeDiff,
    CascadeOpt,
    CascadeTokenV1,
    CascadeTokenV2,
    CascadeTokenV3,
    Fuzzy,
]
