r"""Refuted: "α = 0 makes the token cascades lossless".

A token cascade emits π(v) = p(v)·1[v ∈ T] + q(v)·p(Tᶜ). With p(T) + p(Tᶜ) = 1 its bias is

    π − q = p − q·p(T) on T,      −q·p(T) outside T,

so that it is lossless iff p(T) = 0, or T covers the support of q and p = q·p(T) on T. At α = 0 the
sets of v2 and v3 hold the verifier's mode, which is drafted with positive probability as a rule; v1
trusts every token with p ≥ max q. If T is the mode m alone, TV(π, q) = p(m)(1 − q(m)).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import extreme_pairs, vanishes
from theory.ledger.verdicts import Check, Claim, Step

VARIANTS = ("cascade_token_v1", "cascade_token_v2", "cascade_token_v3")
LOSSY = 1e-9
TOLERANCE = 1e-12


def derive() -> list[Step]:
    """Derive the bias, its size for one trusted token, and compare the rules with it."""
    p, q, inside = sympy.symbols("p q p_T", nonnegative=True)
    trusted = p + q * (1 - inside) - q
    deferred = q * (1 - inside) - q
    mode_p, mode_q, s = sympy.symbols("p_m q_m s", positive=True)
    gained = trusted.subs({p: mode_p, q: mode_q, inside: mode_p})
    room = gained.subs(mode_q, 1 / (1 + s))
    return [
        Step(
            "π − q is p − q·p(T) on T and −q·p(T) outside.",
            vanishes(trusted - (p - q * inside)) and vanishes(deferred + q * inside),
        ),
        Step(
            "It vanishes outside T iff p(T) = 0 or q has no mass there, and on T iff p = q·p(T).",
            sympy.solve(deferred, inside) == [0]
            and sympy.solve(trusted, p) == [q * inside]
            and vanishes(deferred.subs(q, 0)),
        ),
        Step(
            "If T is the mode m alone, only m gains: TV(π, q) = p(m)(1 − q(m)) > 0 for q(m) < 1.",
            vanishes(gained - mode_p * (1 - mode_q)) and bool(sympy.simplify(room).is_positive),
        ),
        Step(
            "The rules emit this law, on extreme rows with different supports and ties.",
            _bias_error() <= TOLERANCE,
            "by hand",
        ),
    ]


def _trusted(name: str, p: Any, q: Any) -> Any:
    """Return T at α = 0: {p ≥ max q} for v1, the verifier's modes for v2 and v3."""
    tested = p if name.endswith("v1") else q
    return tested >= q.max(axis=-1, keepdims=True)


def _bias_error() -> float:
    """Return the largest error of the derived bias against the emitted law."""
    worst = 0.0
    for size in (2, 4, 7):
        p, q = extreme_pairs(np.random.default_rng(size), 300, size)
        for name in VARIANTS:
            trusted = _trusted(name, p, q)
            mass = np.where(trusted, p, 0.0).sum(axis=-1, keepdims=True)
            bias = np.where(trusted, p, 0.0) - q * mass
            output = theory.make_rule(name, alpha=0.0).output(p, q)
            worst = max(worst, float(np.max(np.abs(output - q - bias))))
    return worst


def fractions(size: int, denominator: int) -> Iterator[tuple[int, ...]]:
    """Yield the numerators of every distribution on ``size`` tokens with this denominator."""
    for cuts in itertools.combinations_with_replacement(range(denominator + 1), size - 1):
        ends = (0, *cuts, denominator)
        yield tuple(b - a for a, b in itertools.pairwise(ends))


def _bias(name: str, p: Any, q: Any) -> float:
    """Return TV(π, q) of a variant at α = 0."""
    output = theory.make_rule(name, alpha=0.0).output(p, q)
    return 0.5 * float(np.abs(output - q).sum())


def smallest_counterexample(name: str, *, interior: bool = False) -> dict[str, Any] | None:
    """Return the lossy pair with the fewest tokens, then the smallest denominator.

    Among those the one with the largest bias. ``interior`` asks for positive probabilities and a
    verifier with a single mode.
    """
    for size, denominator in itertools.product((2, 3), range(1, 8)):
        rows = [np.array(row) / denominator for row in fractions(size, denominator)]
        best: dict[str, Any] | None = None
        for p, q in itertools.product(rows, rows):
            plain = p.min() > 0 and q.min() > 0 and np.sum(q == q.max()) == 1
            if interior and not plain:
                continue
            bias = _bias(name, p, q)
            if bias > max(LOSSY, best["bias"] if best else 0.0):
                best = {"p": p.tolist(), "q": q.tolist(), "denominator": denominator, "bias": bias}
        if best is not None:
            return best
    return None


def check(rng: np.random.Generator) -> Check:
    """Find the smallest counterexample of every variant, and how large the bias can become."""
    found = {name: smallest_counterexample(name) for name in VARIANTS}
    plain = {name: smallest_counterexample(name, interior=True) for name in VARIANTS}
    p, q = extreme_pairs(rng, 4000, 6)
    drawn = [theory.make_rule(name, alpha=0.0).output(p, q) for name in VARIANTS]
    biases = [0.5 * np.abs(output - q).sum(axis=-1) for output in drawn]
    figures = {
        f"share of lossy rows, {name[-2:]}": float(np.mean(bias > LOSSY))
        for name, bias in zip(VARIANTS, biases)
    }
    largest = max(float(np.max(bias)) for bias in biases)
    counterexamples = [*found.values(), *plain.values()]
    return Check(
        "search over all fractions by size and denominator; extreme rows",
        len(VARIANTS) * len(p),
        largest,
        any(example is None for example in counterexamples),
        {"smallest": found, "smallest with positive rows and one mode": plain},
        figures,
    )


CLAIM = Claim(
    number="R3",
    name="token cascades at zero",
    statement="α = 0 makes the token cascades lossless.",
    source="often said of the token cascades of Narasimhan et al. 2405.19261",
    expected="refuted",
    derive=derive,
    check=check,
    notebook="06",
    instead=(
        "They are lossless iff no trusted token is drafted, p(T) = 0, or T covers the support of q "
        "and p is proportional to q on it. With the verifier's mode m alone in T the bias is "
        "TV(output, q) = p(m)(1 − q(m)), even for a perfect draft p = q. v2 is strict for α < 0, "
        "v1 for α < max q − max p, v3 for no α."
    ),
)
