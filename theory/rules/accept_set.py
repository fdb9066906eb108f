"""Accept-set rules: the tokens of a set are accepted for certain, one recovery serves the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from theory.arrays import Array, check_scalar, normalised_or
from theory.pair import Pair
from theory.rules.base import AcceptSetRule, verifier_mode
from theory.rules.parameters import chosen_from, plain_parameter, whole_number


def _choice(recover_by: str, recovery: str | None, choices: tuple[str, ...]) -> str:
    """Return the way to recover that either name of the parameter gives."""
    name, value = ("recover_by", recover_by) if recovery is None else ("recovery", recovery)
    return chosen_from(name, value, choices)


def _freeze(rule: AcceptSetRule, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(rule, name, plain_parameter(value))


def typical_threshold(pair: Pair, epsilon: float, alpha: float) -> Array:
    """Return min(ε, α·e^{−H(q)}) per row, H the exact entropy of the verifier in nats."""
    xp = pair.xp
    return xp.minimum(alpha * xp.exp(-pair.verifier_entropy), epsilon)


@dataclass(frozen=True, init=False)
class Typical(AcceptSetRule):
    """Accept iff q_n > min(ε, α·e^{−H(q)}) (typical acceptance, Medusa 2401.10774).

    H is the exact entropy, 0·log 0 = 0: a logarithm of q + 1e−5 would bias large vocabularies.
    ``recover_by`` is the verifier's mode (``argmax``) or a sample of q (``verifier``); ``recovery``
    is another name of it, where a rule is made.
    """

    epsilon: float
    alpha: float
    recover_by: str
    name = "typical"
    parameter = "epsilon"
    aliases: ClassVar[Mapping[str, str]] = {
        "posterior_threshold": "epsilon",
        "posterior_alpha": "alpha",
    }

    # Written out because a field ``recovery`` would hide the method.
    def __init__(
        self,
        epsilon: float = 0.09,
        alpha: float = 0.3,
        recover_by: str = "argmax",
        *,
        recovery: str | None = None,
    ) -> None:
        check_scalar("epsilon", epsilon, 0.0, 1.0)
        check_scalar("alpha", alpha, 0.0, math.inf)
        chosen = _choice(recover_by, recovery, ("argmax", "verifier"))
        _freeze(self, epsilon=epsilon, alpha=alpha, recover_by=chosen)

    def threshold(self, pair: Pair) -> Array:
        """Return min(ε, α·e^{−H(q)}) per row."""
        return typical_threshold(pair, self.epsilon, self.alpha)

    def accepted(self, pair: Pair) -> Array:
        return pair.q > self.threshold(pair)[:, None]

    def fallback(self, pair: Pair) -> Array:
        return verifier_mode(pair) if self.recover_by == "argmax" else pair.q


@dataclass(frozen=True, init=False)
class TopK(AcceptSetRule):
    """Accept iff q_n is at least the k-th largest of q and q_n > 0; ties are accepted.

    ``recover_by`` is norm(q·1[K]) (``verifier``) or norm((1[K] − p)₊) (``indicator``), K the set;
    ``recovery`` is another name of it, where a rule is made.
    """

    k: int
    recover_by: str
    name = "top_k"
    parameter = "k"

    def __init__(
        self, k: int, recover_by: str = "verifier", *, recovery: str | None = None
    ) -> None:
        chosen = _choice(recover_by, recovery, ("verifier", "indicator"))
        _freeze(self, k=whole_number("k", k), recover_by=chosen)

    def accepted(self, pair: Pair) -> Array:
        return (pair.q > 0) & (pair.q >= pair.verifier_rank_value(self.k)[:, None])

    def fallback(self, pair: Pair) -> Array:
        xp, member = pair.xp, self.accepted(pair)
        if self.recover_by == "verifier":
            return normalised_or(xp, xp.where(member, pair.q, 0.0), pair.q)
        return normalised_or(xp, xp.where(member, 1.0 - xp.minimum(pair.p, 1.0), 0.0), pair.q)


@dataclass(frozen=True)
class TopNDelta(AcceptSetRule):
    """Accept iff n is among the N largest of q, q_n > 0 and q_n ≥ max q − Δ; recover the mode.

    The relaxed acceptance of TensorRT-LLM for reasoning models, under its names ``relaxed_topk``
    (N) and ``relaxed_delta`` (Δ). Ties at rank N are accepted; Δ = 0 is greedy.
    """

    n: int = 10
    delta: float = 0.01
    name = "top_n_delta"
    parameter = "delta"
    aliases: ClassVar[Mapping[str, str]] = {"relaxed_topk": "n", "relaxed_delta": "delta"}

    def __post_init__(self) -> None:
        super().__post_init__()
        _freeze(self, n=whole_number("n", self.n))
        check_scalar("delta", self.delta, 0.0, 1.0)

    def accepted(self, pair: Pair) -> Array:
        q = pair.q
        near = q >= pair.verifier_max[:, None] - self.delta
        return near & (q > 0) & (q >= pair.verifier_rank_value(self.n)[:, None])

    def fallback(self, pair: Pair) -> Array:
        return verifier_mode(pair)


ACCEPT_SET_RULES: list[type[AcceptSetRule]] = [Typical, TopK, TopNDelta]
