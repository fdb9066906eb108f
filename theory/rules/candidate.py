"""Candidate rules: the target depends on the drafted token n (Cactus, 2604.04987, and relatives).

h⁽ⁿ⁾_n = γ_n and h⁽ⁿ⁾_i = q_i(1−γ_n)/(1−q_n): the candidate is raised, the others scaled. Two
couplings turn such a target into a rule. The paper's accepts with min(1, γ_n/p_n) and recovers from
norm((h⁽ⁿ⁾ − p)₊); the target-only one accepts with γ_n itself, whatever p_n, and recovers from q
without n, so that its law is the mixture Σ p_n h⁽ⁿ⁾ (claim 20).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from theory.arrays import (
    Array,
    check_scalar,
    namespace,
    normalised_or,
    one_hot,
    quotient,
    take_rows,
)
from theory.divergences.kinds import DIVERGENCES, Divergence, resolve_divergence
from theory.law import OneStep, candidate_law, target_only_law
from theory.optimum.gamma import Gamma, optimal_gamma, second_order_gamma
from theory.pair import Pair
from theory.rules.base import Rule, coupled_accept


@dataclass(frozen=True)
class CandidateRule(Rule):
    """A rule given by γ(q) ≥ q, under the paper's coupling; its law costs one sort."""

    family = "candidate"
    needs_order = True
    keeps_strict = True

    @abstractmethod
    def gamma(self, q: Array) -> Gamma:
        """Return γ and 1 − γ, elementwise; γ(0) = 0 keeps the support."""

    def accept(self, pair: Pair) -> Array:
        return coupled_accept(pair.xp, pair.p, self.gamma(pair.q).value)

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        p_n, q_n = (take_rows(pair.xp, a, candidate[:, None])[:, 0] for a in (pair.p, pair.q))
        return coupled_accept(pair.xp, p_n, self.gamma(q_n).value)

    def recover(self, pair: Pair, candidate: Array) -> Array:
        xp = pair.xp
        at = one_hot(xp, candidate, pair.q) > 0
        q_n = take_rows(xp, pair.q, candidate[:, None])
        value, complement = self.gamma(q_n)
        target = xp.where(at, value, pair.q * quotient(xp, complement, 1.0 - q_n, 0.0))
        return normalised_or(xp, xp.maximum(target - pair.p, 0.0), pair.q)

    def suspects(self, pair: Pair) -> Array:
        """Return a mask over the donor side ``[R, T]`` that covers every token with p > γ."""
        p, q = _donor_side(pair)
        return p > q

    def law(self, pair: Pair) -> OneStep:
        return candidate_law(pair, self.gamma, self.suspects(pair))


def _donor_side(pair: Pair) -> tuple[Array, Array]:
    head = pair.p.shape[-1] - pair.donor_span
    return pair.p[:, head:], pair.q[:, head:]


def _over_budget(pair: Pair, kind: Divergence, budget: float) -> Array:
    """Return where, on the donor side, d_f(p, q) may exceed δ: it does wherever p > γ*(q, δ).

    The draft's own two-point divergence does not depend on δ: it is computed once for all values,
    by the plain formula. Its rounding is below the margin; γ decides on the few that are left.
    """
    p, q = _donor_side(pair)
    spent = pair.cached(("two-point", kind), lambda: kind.plain_two_point(p, q))
    # What the plain formula cannot tell (NaN at q = 0 or p = 1, an overflow) remains a suspect.
    decided = (spent >= -1.0) & (spent <= budget * (1.0 - 1e-6) - 1e-14)
    return (p > q) & ~decided


@dataclass(frozen=True)
class Cactus(CandidateRule):
    """γ = min(q + √(2δq(1−q)), 1): the published closed form, second order in KL (Corollary 5).

    δ ≥ 0; 0 is strict. An approximation: the candidate's target can cost up to log(1 + 2δ) > δ, and
    the divergence of what is emitted can be many times either.
    """

    delta: float
    name = "cactus"
    parameter = "delta"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("delta", self.delta, 0.0, math.inf)

    def gamma(self, q: Array) -> Gamma:
        return second_order_gamma(q, self.delta, validate=False)

    def suspects(self, pair: Pair) -> Array:
        # The closed form is the exact optimum for ½χ² (claim 11).
        return _over_budget(pair, DIVERGENCES["pearson_chi2"], 2.0 * self.delta)


@dataclass(frozen=True)
class CactusExact(CandidateRule):
    """γ = γ*(q, δ), the exact optimum for a divergence (Theorem 2). δ ≥ 0; 0 is strict.

    Every candidate's target keeps D_f(h⁽ⁿ⁾‖q) ≤ δ; what is emitted need not (claim 13).
    """

    delta: float
    divergence: str | Divergence = "kl"
    name = "cactus_exact"
    parameter = "delta"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("delta", self.delta, 0.0, math.inf)
        resolve_divergence(self.divergence)

    def gamma(self, q: Array) -> Gamma:
        return optimal_gamma(q, self.delta, self.divergence, validate=False)

    def suspects(self, pair: Pair) -> Array:
        return _over_budget(pair, resolve_divergence(self.divergence), self.delta)


@dataclass(frozen=True)
class TargetOnlyRule(Rule):
    """A rule given by γ(q) under the target-only coupling.

    Accept with γ_n, recover from q without n. The draft's probabilities are never read.
    """

    family = "target only"

    @abstractmethod
    def gamma(self, q: Array) -> Gamma:
        """Return γ and 1 − γ, elementwise."""

    def accept(self, pair: Pair) -> Array:
        return self.gamma(pair.q).value

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        return self.gamma(take_rows(pair.xp, pair.q, candidate[:, None])[:, 0]).value

    def recover(self, pair: Pair, candidate: Array) -> Array:
        others = pair.xp.where(one_hot(pair.xp, candidate, pair.q) > 0, 0.0, pair.q)
        return normalised_or(pair.xp, others, pair.q)

    def law(self, pair: Pair) -> OneStep:
        return target_only_law(pair, *self.gamma(pair.q))


@dataclass(frozen=True)
class CactusTargetOnly(TargetOnlyRule):
    """Cactus's γ (the closed form, or γ* with ``exact=True``) under the target-only coupling.

    With γ* its output keeps KL(output‖q) ≤ δ for every draft, with the closed form log(1 + 2δ)
    (claim 20). δ = 0 is strict (exact match, acceptance Σ pq).
    """

    delta: float
    exact: bool = False
    name = "cactus_target_only"
    parameter = "delta"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("delta", self.delta, 0.0, math.inf)
        if not isinstance(self.exact, bool):
            raise ValueError(f"exact must be True or False, got {self.exact!r}")

    def gamma(self, q: Array) -> Gamma:
        solve = optimal_gamma if self.exact else second_order_gamma
        return solve(q, self.delta, validate=False)


@dataclass(frozen=True)
class TargetOnly(TargetOnlyRule):
    """Accept iff u < q_n/θ_acc or q_n ≥ θ_single: SGLang's sampler, for a chain of drafts.

    Its options have these names behind ``speculative_accept_``. Both thresholds lie in (0, 1]; 1
    and 1 are strict and lossless for every draft.
    """

    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    name = "target_only"
    parameter = "threshold_acc"
    aliases: ClassVar[Mapping[str, str]] = {
        "speculative_accept_threshold_single": "threshold_single",
        "speculative_accept_threshold_acc": "threshold_acc",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("threshold_single", self.threshold_single, 0.0, 1.0, open_low=True)
        check_scalar("threshold_acc", self.threshold_acc, 0.0, 1.0, open_low=True)

    def gamma(self, q: Array) -> Gamma:
        xp, scale = namespace(q), self.threshold_acc
        certain = (q >= self.threshold_single) | (q >= scale)
        value = xp.where(certain, 1.0, xp.minimum(q, scale) / scale)
        return Gamma(value, 1.0 - value)


CANDIDATE_RULES: list[type[Rule]] = [Cactus, CactusExact, CactusTargetOnly, TargetOnly]
