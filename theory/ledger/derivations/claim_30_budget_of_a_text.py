r"""Claim 30: a text diverges by at most what its places spend, token by token and in blocks.

A run emits a token and a bit at every place: whether the token is an accepted draft, so that the
round goes on, or ends it. Behind the prefix v of a round that is alive the token has the law
h(·|v), and behind m accepted drafts, or where nothing is drafted, q. Give the verifier's texts bits
too, drawn behind each token by the same chances. By the chain rule the divergence of (text, bits)
is then Σ_v A(v) KL(h(·|v)‖q(·|v)) over all rounds, A(v) the probability that the round reaches v
alive; forgetting the bits can only bring the two laws nearer (the log-sum inequality).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.block_rounds import (
    Kernel,
    Prefix,
    Tests,
    block_tests,
    rounds,
    token_tests,
)
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-12
CHAINS, LENGTH, DRAFTS = 8, 4, 2
TESTS: dict[str, Tests] = {"token": token_tests, "block": block_tests}


def derive() -> list[Step]:
    """Derive the chain rule of a place with its bit, and what forgetting the bit does."""
    h, q, c = sympy.symbols("h q c", positive=True)
    kept = h * c * sympy.log(h * c / (q * c))
    ended = h * (1 - c) * sympy.log(h * (1 - c) / (q * (1 - c)))
    a, b, r, s = sympy.symbols("a b r s", positive=True)
    joint = a * sympy.log(a / r) + b * sympy.log(b / s)
    merged = (a + b) * sympy.log((a + b) / (r + s))
    gap = joint - merged
    even = {b: a * s / r}
    slope, bend = sympy.diff(gap, b), sympy.diff(gap, b, 2)
    return [
        Step(
            "A token of the law h with a bit of chance c, beside one of the law q with the same "
            "bit: h c log(h c/(q c)) + h(1 − c) log(h(1 − c)/(q(1 − c))) = h log(h/q).",
            bool(sympy.simplify(kept + ended - h * sympy.log(h / q)) == 0),
        ),
        Step(
            "Without the bit: a log(a/r) + b log(b/s) − (a + b) log((a + b)/(r + s)) is 0 with "
            "slope 0 at a/r = b/s and convex in b, so never negative.",
            all(
                bool(sympy.simplify(sympy.expand_log(part.subs(even), force=True)) == 0)
                for part in (gap, slope)
            )
            and bool(sympy.factor(bend) == a / (b * (a + b))),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Enumerate texts of several rounds, and compare their divergence with what places spend."""
    worst, where, shares = -math.inf, {}, []
    for chain, (name, tests) in itertools.product(range(CHAINS), TESTS.items()):
        draft, target, verifier = _chain(rng)
        divergence, spent = _of_texts(draft, target, verifier, tests)
        shares.append(divergence / spent)
        agreed, paid = _of_texts(target, target, verifier, tests)  # every draft is accepted
        off = max(divergence - spent, abs(agreed - paid))
        if not off <= worst:
            worst, where = off, {"chain": chain, "verification": name}
    method = "texts of four tokens, all rounds by enumeration; drafts that are always accepted"
    figures = {"share, least": min(shares), "share, most": max(shares)}
    worst = max(worst, 0.0)
    return Check(method, CHAINS * len(TESTS), worst, bool(worst <= TOLERANCE), where, figures)


def _chain(rng: np.random.Generator) -> tuple[Kernel, Kernel, Kernel]:
    """Draft, what a rule emits, and verifier: rows by the last token."""
    p, q = rng.dirichlet(np.ones(3), size=(2, 4))
    h = np.asarray(theory.one_step(theory.make_rule("lenience", l=0.4), p, q).output)
    draft, target, verifier = (_by_last(rows.tolist()) for rows in (p, h, q))
    return draft, target, verifier


def _by_last(rows: Any) -> Kernel:
    return lambda v: rows[v[-1] if v else 3]


def _of_texts(draft: Kernel, target: Kernel, bonus: Kernel, tests: Tests) -> tuple[float, float]:
    """The divergence of the first tokens from the verifier's, and what their places spend."""
    law: dict[Prefix, float] = {}
    starts: dict[Prefix, float] = {(): 1.0}
    spent = 0.0
    while starts:
        start, mass = starts.popitem()
        ends = rounds(_behind(draft, start), _behind(target, start), DRAFTS, tests,
            _behind(bonus, start))  # fmt: skip
        for v, row in ends.items():
            for n, share in enumerate(row):
                text = (*start, *v, n)
                into = law if len(text) >= LENGTH else starts
                into[text[:LENGTH]] = into.get(text[:LENGTH], 0.0) + mass * float(share)
        spent += mass * _spent(ends, start, target, bonus)
    return _divergence(law, bonus), spent


def _behind(kernel: Kernel, start: Prefix) -> Kernel:
    return lambda v: kernel((*start, *v))


def _spent(ends: dict[Prefix, Any], start: Prefix, target: Kernel, verifier: Kernel) -> float:
    """Σ_v A(v) KL(h(·|v)‖q(·|v)) over the drafted places of a round within the text."""
    total = 0.0
    for v in {u[:i] for u in ends for i in range(len(u) + 1)}:
        if len(v) < min(DRAFTS, LENGTH - len(start)):
            alive = sum(float(sum(row)) for u, row in ends.items() if u[: len(v)] == v)
            rows = (np.array(kernel((*start, *v))) for kernel in (target, verifier))
            total += alive * float(theory.divergence("kl", *rows))
    return total


def _divergence(law: dict[Prefix, float], verifier: Kernel) -> float:
    """KL of a law of texts from the verifier's."""
    total = 0.0
    for text, mass in law.items():
        reference = math.prod(verifier(text[:i])[n] for i, n in enumerate(text))
        total += mass * math.log(mass / reference) if mass > 0 else 0.0
    return total


CLAIM = Claim(
    number=30,
    name="budget of a text",
    statement=(
        "The divergence of a text from the verifier's is at most the sum over the places that "
        "rounds visit, Σ_v A(v) KL(h(·|v)‖q(·|v)), token by token and in blocks; the bonus token "
        "costs nothing. It is equal where every draft is accepted."
    ),
    source="derived here (chain rule and data processing)",
    expected="proved",
    derive=derive,
    check=check,
    notebook="11",
)
