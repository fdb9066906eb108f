"""Target rules: one distribution π(p, q) is emitted, with the maximal coupling to the draft."""

from __future__ import annotations

import math
from dataclasses import dataclass

from theory.arrays import Array, check_scalar, coerce
from theory.divergences.kinds import Divergence, resolve_divergence
from theory.frontier.clipped import ClippedFamily, clipped_law
from theory.frontier.merging import clipped_target, surely_kept
from theory.law import OneStep, as_probability
from theory.pair import Pair
from theory.rules.base import TargetRule, strict_residual


@dataclass(frozen=True)
class SpS(TargetRule):
    """Strict speculative sampling: π = q (Leviathan et al. 2211.17192, Chen et al. 2302.01318)."""

    name = "sps"
    keeps_strict = True

    def target(self, pair: Pair) -> Array:
        return pair.q


def kept_and_recovered(pair: Pair, kept: Array) -> Array:
    """Return kept + R·norm((q−p)₊), R = Σ(p − kept): the output of a rule that recovers as SpS."""
    rejected = pair.xp.sum(pair.p - kept, axis=-1, keepdims=True)
    return kept + rejected * strict_residual(pair)


@dataclass(frozen=True)
class Lenience(TargetRule):
    """π = min(p, q/l) + R·norm((q−p)₊); b = min(1, q/(l·p)) (Leviathan et al., appendix A.5).

    l in (0, 1]; l = 1 is strict. It accepts exactly as the frontier with a = 1/l (claim 16).
    """

    l: float  # noqa: E741 - the letter of the source
    name = "lenience"
    keeps_strict = True
    parameter = "l"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("l", self.l, 0.0, 1.0, open_low=True)

    def target(self, pair: Pair) -> Array:
        xp = pair.xp
        # min(q, l)/l is q/l where that is below 1 and cannot overflow; p ≤ 1 needs no more of it.
        return kept_and_recovered(pair, xp.minimum(pair.p, xp.minimum(pair.q, self.l) / self.l))


@dataclass(frozen=True)
class Interpolation(TargetRule):
    """π = αp + (1−α)q, the static ensemble. α in [0, 1]; 0 is strict. It traces Yin's line."""

    alpha: float
    name = "interpolation"
    keeps_strict = True
    parameter = "alpha"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("alpha", self.alpha, 0.0, 1.0)

    def target(self, pair: Pair) -> Array:
        return self.alpha * pair.p + (1.0 - self.alpha) * pair.q


@dataclass(frozen=True)
class Ears(TargetRule):
    """b = min(1, q/p + τ(1 − max q)), residual norm((q−p)₊) (2512.13194).

    τ in [0, 1]; 0 is strict. It accepts tokens with q = 0, so KL(output‖q) can be inf.
    """

    tau: float
    name = "ears"
    keeps_strict = True
    parameter = "tau"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("tau", self.tau, 0.0, 1.0)

    def target(self, pair: Pair) -> Array:
        slack = self.tau * (1.0 - pair.verifier_max)
        kept = pair.xp.minimum(pair.p, pair.q + pair.p * slack[:, None])
        return kept_and_recovered(pair, kept)


@dataclass(frozen=True)
class _ClippedRule(TargetRule):
    """Shared by the two rules whose target is a point of the frontier."""

    level: float
    parameter = "level"
    needs_order = True
    keeps_strict = True
    _on_support = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("level", self.level, 0.0, math.inf)

    def _kind(self) -> Divergence:
        raise NotImplementedError

    def law(self, pair: Pair) -> OneStep:
        level = pair.xp.full_like(pair.total_variation, float(self.level))
        return clipped_law(pair, level, self._kind(), on_support=self._on_support)

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        if surely_kept(pair, candidate, float(self.level), self._kind()):
            return pair.xp.ones_like(pair.p[:, 0])
        return super().accept_at(pair, candidate)

    def target(self, pair: Pair) -> Array:
        level, kind = float(self.level), self._kind()
        return clipped_target(pair, level, kind, on_support=self._on_support)


@dataclass(frozen=True)
class Mentored(_ClippedRule):
    """π = clip(p, q/β, q/α): the largest acceptance with KL(q‖π) ≤ D (Tran-Thien 2023).

    D ≥ 0 in nats; 0 is strict. A token with q = 0 is never accepted; as α → 0 the divergence tops
    out below KL(q‖p) where p leaves the support of q, and the rule stops there. π by root finding.
    Where q/β is below the smallest float64 the token is lost, and KL(q‖π) of the result is inf.
    """

    name = "mentored"
    _on_support = True

    def _kind(self) -> Divergence:
        return resolve_divergence("reverse_kl")


@dataclass(frozen=True)
class Frontier(_ClippedRule):
    """π = clip(p, bq, aq) at a level of a divergence: the best any rule can do there (claim 15).

    level ≥ 0 in nats (inf allowed); 0 is strict. π by root finding, met to about 10⁻¹⁵ in the
    rejected mass.
    """

    divergence: str | Divergence = "kl"
    name = "frontier"

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_divergence(self.divergence)

    def _kind(self) -> Divergence:
        return resolve_divergence(self.divergence)


@dataclass(frozen=True)
class FrontierCorpus(TargetRule):
    """π = clip(p, bq, aq) with f′(a) − f′(b) = μ: the best for a budget in the mean (claim 17).

    ``multiplier`` μ ≥ 0 (inf allowed) is one price for all places, nats of the divergence for a
    unit of acceptance, where `frontier` has one level: it spends where a nat buys most. 0 is
    strict, inf accepts everything; for KL μ = log(a/b). π by bisection, met to about 10⁻¹³ in the
    rejected mass.
    """

    multiplier: float
    divergence: str | Divergence = "kl"
    name = "frontier_corpus"
    parameter = "multiplier"
    needs_order = True
    keeps_strict = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("multiplier", self.multiplier, 0.0, math.inf)
        resolve_divergence(self.divergence)

    def law(self, pair: Pair) -> OneStep:
        kind, xp = resolve_divergence(self.divergence), pair.xp
        if self.multiplier == 0:
            return OneStep(as_probability(xp, 1.0 - pair.total_variation), pair.q)
        if math.isinf(self.multiplier):
            return OneStep(xp.ones_like(pair.total_variation), pair.p)
        family: ClippedFamily = pair.cached(
            ("frontier", kind), lambda: ClippedFamily.of(pair, kind)
        )
        wanted = coerce(pair.total_variation, [float(self.multiplier)])[1]
        return family.law(family.mass_at(wanted)[:, 0])

    def target(self, pair: Pair) -> Array:
        if pair.is_sorted:
            return self.law(pair).output
        ordered, back = pair.sorted_by_ratio()
        return back(self.law(ordered).output)


TARGET_RULES: list[type[TargetRule]] = [
    *(SpS, Lenience, Interpolation, Ears, Mentored, Frontier, FrontierCorpus)
]
