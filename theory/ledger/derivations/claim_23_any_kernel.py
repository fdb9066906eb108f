r"""Claim 23: any kernel may stand for the verifier in a block, but nothing that sums above 1.

Block verification is lossless for every kernel h with Σ h = 1, the one-step output of any rule
among them: the text's law is the product of h, if the bonus token comes from h as well. Putting
lenience's q/l into s, in the place of its output, is another law, further away than the output's.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import theory
from theory.ledger.derivations.block_rounds import (
    block_tests,
    distance,
    rounds,
    text_law,
)
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-12
TREES = 10
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lenience", {"l": 0.5}),
    ("cactus", {"delta": 0.1}),
    ("typical", {}),
    ("interpolation", {"alpha": 0.4}),
    ("top_k", {"k": 1}),
)


def derive() -> list[Step]:
    """Give the smallest counterexample of the substitution, in fractions."""
    example = smallest()
    return [
        Step(
            "Two tokens and two drafts in halves and thirds suffice: with "
            f"p = {_told(example['p'])}, q = {_told(example['q'])} and l = {example['l']} the text "
            f"of the substitution is {example['tv']} in TV from that of lenience's own output.",
            example["tv"] > 0,
        ),
    ]


def smallest() -> dict[str, Any]:
    """The first pair in halves, thirds and quarters where q/l in s changes the law of the text."""
    for whole in (2, 3, 4):
        for a in range(1, whole):
            for b in range(1, whole):
                p = [Fraction(a, whole), 1 - Fraction(a, whole)]
                q = [Fraction(b, whole), 1 - Fraction(b, whole)]
                for factor in (Fraction(1, 2), Fraction(2, 3)):
                    off = _difference(p, q, factor)
                    if off > 0:
                        return {"p": p, "q": q, "l": factor, "tv": off}
    return {"p": [], "q": [], "l": 0, "tv": Fraction(0)}


def _difference(p: Any, q: Any, factor: Any) -> Any:
    """TV between the law with q/l in s and the product of lenience's output."""
    kept = [min(a, b / factor) for a, b in zip(p, q)]
    left = [max(b - a, 0) for a, b in zip(p, q)]
    total = sum(left)
    if total == 0:
        return Fraction(0)
    output = [k + (1 - sum(kept)) * x / total for k, x in zip(kept, left)]
    raised = [b / factor for b in q]
    law = text_law(rounds(lambda v: p, lambda v: raised, 2, block_tests, lambda v: output),
                   lambda v: output, 2)  # fmt: skip
    return distance(law, lambda v: output)


def _told(row: Any) -> str:
    return f"({', '.join(map(str, row))})"


def check(rng: np.random.Generator) -> Check:
    """Compare the text's law with the product of what a rule emits, on trees of three tokens."""
    worst, where = 0.0, {}
    for tree in range(TREES):
        rows = {v: rng.dirichlet(np.ones(3), size=2) for v in _prefixes()}
        for name, given in RULES:
            rule = theory.make_rule(name, **given)
            emitted = {v: theory.one_step(rule, *rows[v]).output.tolist() for v in rows}
            draft = {v: rows[v][0].tolist() for v in rows}
            ends = rounds(draft.__getitem__, emitted.__getitem__, 2, block_tests,
                          emitted.__getitem__)  # fmt: skip
            off = float(distance(text_law(ends, emitted.__getitem__, 3), emitted.__getitem__))
            if not off <= worst:
                worst, where = off, {"tree": tree, "rule": name}
    return Check("texts by enumeration", TREES * len(RULES), worst, worst <= TOLERANCE, where)


def _prefixes() -> list[tuple[int, ...]]:
    return [(), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))]


CLAIM = Claim(
    number=23,
    name="any kernel in a block",
    statement=(
        "Block verification of any kernel h with Σ h = 1, such as what a rule emits, writes texts "
        "with the law of h; a raised q/l or γ in the place of h, which sums to more than 1, does "
        "not write those of the rule."
    ),
    source="derived here, from 2403.10444",
    expected="proved",
    derive=derive,
    check=check,
    notebook="09",
)
