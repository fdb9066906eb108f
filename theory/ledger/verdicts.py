"""What a claim of the ledger is: a statement, a derivation, an independent check and a verdict.

The verdict is computed, never typed: a claim is *proved* if every step of its derivation holds and
its check found no deviation, *verified* if the check alone carries it, *refuted* if the check
found a counterexample, and *broken* if anything that was expected to hold does not. The ledger is
in order when each computed verdict is the expected one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Verdict = Literal["proved", "verified", "refuted", "broken"]
How = Literal["sympy", "interval", "by hand"]


@dataclass(frozen=True)
class Step:
    """One step of a derivation: what it states, whether it holds, and how that was decided.

    ``sympy``: an expression simplified to zero or its sign followed from assumptions; ``interval``:
    bounded rigorously on a grid of intervals; ``by hand``: argued in the docstring of the module,
    with ``holds`` the outcome of a supporting computation.
    """

    statement: str
    holds: bool
    how: How = "sympy"


@dataclass(frozen=True)
class Check:
    """The outcome of a numeric check by a method that shares no formula with the derivation.

    ``largest_deviation`` is the largest violation of the claim that was found (0 or rounding where
    it holds) and ``where`` the point at which it occurred; ``holds`` says whether the statement
    survived. ``figures`` are the numbers worth telling.
    """

    method: str
    points: int
    largest_deviation: float
    holds: bool
    where: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """An entry of the ledger.

    ``number`` counts the claims and ``R1`` … for refutations of sentences that are often
    repeated; ``instead`` says what is true where a statement is refuted, or how it was sharpened.
    ``derive`` returns the steps of the derivation and ``check`` runs the numeric check from a
    generator, so that the ledger is reproducible.
    """

    number: int | str
    name: str
    statement: str
    source: str
    expected: Verdict
    derive: Callable[[], list[Step]]
    check: Callable[[np.random.Generator], Check]
    notebook: str
    instead: str = ""


@dataclass(frozen=True)
class Outcome:
    """A claim with its derivation and check carried out."""

    claim: Claim
    steps: tuple[Step, ...]
    check: Check
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The computed verdict; see the module's docstring."""
        if not all(step.holds for step in self.steps):
            return "broken"
        if not self.check.holds:
            # A counterexample is a result where one was announced, and a fault elsewhere.
            return "refuted" if self.claim.expected == "refuted" else "broken"
        if self.claim.expected == "refuted":
            return "broken"  # the announced counterexample was not found
        return "proved" if self.steps else "verified"

    @property
    def in_order(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.claim.expected


def load_claims() -> list[Claim]:
    """Return every claim of ``theory.ledger.derivations``, numbers first, then the refutations."""
    package = importlib.import_module("theory.ledger.derivations")
    claims: list[Claim] = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith(("claim_", "refutation_")):
            claims.append(importlib.import_module(f"theory.ledger.derivations.{module.name}").CLAIM)
    numbers = [claim.number for claim in claims]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"two claims share a number: {sorted(map(str, numbers))}")
    return sorted(claims, key=lambda c: (isinstance(c.number, str), str(c.number).zfill(3)))
