"""Acceptance with a rate that is given, whatever the rows: how engines make a benchmark repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from theory.arrays import Array, check_scalar
from theory.law import OneStep, as_probability
from theory.pair import Pair
from theory.rules.base import Rule, strict_residual, verifier_mode
from theory.rules.parameters import chosen_from

RECOVERIES = ("residual", "verifier", "argmax")


@dataclass(frozen=True)
class Synthetic(Rule):
    """b = rate for every candidate (vLLM's ``rejection_sample_method="synthetic"``).

    ``recover_by`` is norm((q−p)₊) (``residual``, the engine's sampler; for a one-hot draft q
    without n), a sample of q (``verifier``) or its mode (``argmax``): output = rate·p + (1 −
    rate)·recovery. Tokens with q_n = 0 are accepted, so KL(output‖q) can be inf. rate in [0, 1]: of
    one position, given that the drafts before it were accepted. Strict at 0 with ``verifier`` only.
    """

    rate: float
    recover_by: str = "residual"
    name = "synthetic"
    family = "fixed rate"
    parameter = "rate"
    aliases: ClassVar[Mapping[str, str]] = {"recovery": "recover_by"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scalar("rate", self.rate, 0.0, 1.0)
        chosen_from("recover_by", self.recover_by, RECOVERIES)

    def accept(self, pair: Pair) -> Array:
        return pair.xp.full_like(pair.p, float(self.rate))

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        return pair.xp.full_like(pair.p[:, 0], float(self.rate))

    def recover(self, pair: Pair, candidate: Array) -> Array:
        if self.recover_by == "residual":
            return strict_residual(pair)
        return verifier_mode(pair) if self.recover_by == "argmax" else pair.q

    def law(self, pair: Pair) -> OneStep:
        xp, kept = pair.xp, float(self.rate) * pair.p
        rest = xp.sum(pair.p - kept, axis=-1, keepdims=True)
        output = kept + rest * self.recover(pair, pair.verifier_mode)
        return OneStep(as_probability(xp, xp.sum(kept, axis=-1)), output)


FIXED_RATE_RULES: list[type[Rule]] = [Synthetic]
