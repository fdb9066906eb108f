r"""Refuted: "typical acceptance accepts more than strict sampling, or than Cactus".

Let S be the accept set, γ = q for strict sampling and γ ≥ q for Cactus. Token by token

    p(S) − Σ min(p, γ) = Σ_S (p − γ)₊ − Σ_{Sᶜ} min(p, γ):

what typical acceptance gains on S, where the draft exceeds the target, against what it refuses in
the tail. Both signs occur, up to both extremes, with one verifier: a mode of mass 1 − m and V
tokens of m/V. Its entropy h(m) + m log V makes the threshold α e^{−H} = α e^{−h(m)} V^{−m}, which
for large V lies above m/V and below 1 − m: S is the mode alone.

* p = q: strict sampling and Cactus accept everything, typical acceptance 1 − m.
* p = the one-hot at the mode: typical acceptance accepts everything, the others γ(1 − m).

As m → 1 the difference tends to −1 and to +1; it is continuous in p, so that it takes every value
between. The rejected mass of the compared rule is Σ(p − γ)₊ ≥ Σ_S (p − γ)₊.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import extreme_pairs, in_every_order, vanishes
from theory.ledger.derivations.refutation_token_cascades import fractions
from theory.ledger.verdicts import Check, Claim, Step

BUDGETS = (0.0, 0.01, 0.1, 1.0)  # 0 is strict sampling
SMALLEST_GAP = 1e-9
TOLERANCE = 1e-12


def derive() -> list[Step]:
    """Derive the exact condition, two sufficient ones, and both limits."""
    return [*_condition(), *_limits()]


def _condition() -> list[Step]:
    p, g, s = sympy.symbols("p gamma s", nonnegative=True)
    gain, tail = sympy.Max(p - g, 0), sympy.Min(p, g)
    inside = p - sympy.Min(p, g) - gain
    above = sympy.Min(g + p, g + s) - sympy.Min(g + p, g)  # a draft above γ, which rises by s
    below = sympy.Min(p, p + g + s) - sympy.Min(p, p + g)  # a draft below γ
    return [
        Step(
            "A token of S contributes p − min(p, γ) = (p − γ)₊, one outside S −min(p, γ): typical "
            "acceptance accepts more iff Σ_S (p − γ)₊ > Σ_{Sᶜ} min(p, γ).",
            in_every_order(inside, (p, g), vanishes),
        ),
        Step(
            "Σ_S (p − γ)₊ ≤ Σ(p − γ)₊, the rejection of the compared rule: typical acceptance "
            "accepts less wherever that rule rejects less than Σ_{Sᶜ} min(p, γ). For p = q nothing "
            "is rejected.",
            in_every_order(gain, (p, g), lambda x: bool(x.is_nonnegative))
            and in_every_order(tail, (p, g), lambda x: bool(x.is_nonnegative))
            and vanishes(gain.subs(g, p)),
        ),
        Step(
            "Cactus accepts at least as much as strict sampling, min(p, γ) ≥ min(p, q): where "
            "typical acceptance falls behind strict sampling it falls behind Cactus at every δ.",
            in_every_order(above, (p, s), lambda x: bool(x.is_nonnegative)) and vanishes(below),
        ),
    ]


def _limits() -> list[Step]:
    v, u, delta = sympy.symbols("V u delta", positive=True)
    m = 1 / (1 + sympy.Symbol("s", positive=True))  # any tail mass in (0, 1)
    entropy = -(1 - m) * sympy.log(1 - m) - m * sympy.log(m / v)
    claimed = -(1 - m) * sympy.log(1 - m) - m * sympy.log(m) + m * sympy.log(v)
    exponent = sympy.simplify(1 - m)  # (m/V)/V^{−m} is m·V^{−(1−m)}
    gamma = u + sympy.sqrt(2 * delta * u * (1 - u))
    return [
        Step(
            "The verifier's entropy is h(m) + m log V, and (m/V)/V^{−m} = m·V^{−(1−m)} → 0 while "
            "V^{−m} → 0: the threshold parts the tail from the mode.",
            vanishes(sympy.expand_log(entropy - claimed, force=True))
            and bool(exponent.is_positive)
            and bool(m.is_positive),
        ),
        Step(
            "γ(u) → 0 as u = 1 − m → 0, for Cactus as for strict sampling: the differences "
            "are −m and 1 − γ(1 − m), with the limits −1 and 1.",
            sympy.limit(gamma, u, 0, "+") == 0,
        ),
    ]


def difference(p: Any, q: Any, delta: float) -> Any:
    """Return the acceptance of typical acceptance minus that of Cactus (strict for δ = 0)."""
    other = theory.make_rule("cactus", delta=delta) if delta else theory.make_rule("sps")
    typical, compared = theory.one_steps([theory.make_rule("typical"), other], p, q)
    return typical.acceptance - compared.acceptance


def predicted(p: Any, q: Any, delta: float) -> Any:
    """Return Σ_S (p − γ)₊ − Σ_{Sᶜ} min(p, γ), with S from the rule's default parameters."""
    entropy = -np.sum(q * np.log(np.where(q > 0, q, 1.0)), axis=-1, keepdims=True)
    inside = q > np.minimum(0.09, 0.3 * np.exp(-entropy))
    gamma = np.minimum(q + np.sqrt(2.0 * delta * q * (1.0 - q)), 1.0)
    gain, refused = np.maximum(p - gamma, 0.0), np.minimum(p, gamma)
    return np.where(inside, gain, -refused).sum(axis=-1)


def smallest_counterexample() -> dict[str, Any] | None:
    """Return the pair of fewest tokens and smallest denominator that strict sampling favours."""
    for size, denominator in itertools.product((2, 3), range(1, 16)):
        rows = np.array(list(fractions(size, denominator))) / denominator
        drafts = np.repeat(rows, len(rows), axis=0)
        verifiers = np.tile(rows, (len(rows), 1))
        gap = difference(drafts, verifiers, 0.0)
        row = int(np.argmin(gap))
        if gap[row] < -SMALLEST_GAP:
            pair = {"p": drafts[row].tolist(), "q": verifiers[row].tolist()}
            return {**pair, "denominator": denominator, "difference": float(gap[row])}
    return None


def extremes(vocabulary: int, mass: float) -> tuple[float, float]:
    """Return the differences to strict sampling for p = q and for p at the mode, one verifier."""
    q = np.full(vocabulary + 1, mass / vocabulary)
    q[0] = 1.0 - mass
    at_mode = np.zeros_like(q)
    at_mode[0] = 1.0
    return float(difference(q, q, 0.0)), float(difference(at_mode, q, 0.0))


def check(rng: np.random.Generator) -> Check:
    """Find the smallest counterexample, both signs, and compare every sign with the condition."""
    smallest = smallest_counterexample()
    worst, figures, deepest = 0.0, {}, 0.0
    for delta in BUDGETS:
        for size in (3, 20, 300):
            p, q = extreme_pairs(rng, 1500, size)
            gap = difference(p, q, delta)
            worst = max(worst, float(np.max(np.abs(gap - predicted(p, q, delta)))))
            deepest = min(deepest, float(gap.min()))
            if size == 20:
                name = f"δ = {delta:g}" if delta else "strict"
                figures[f"share of rows where typical accepts less, {name}"] = float(
                    np.mean(gap < -SMALLEST_GAP)
                )
                figures[f"share where it accepts more, {name}"] = float(np.mean(gap > SMALLEST_GAP))
    low, high = extremes(1_000_000, 0.85)
    figures |= {"p = q, V = 10⁶, tail 0.85": low, "p at the mode of the same verifier": high}
    survives = smallest is None or worst > TOLERANCE  # an unexplained sign refutes nothing
    return Check(
        "search over all fractions by size and denominator; every sign against the condition",
        len(BUDGETS) * 3 * 1500,
        -deepest,
        survives,
        {"smallest": smallest, "largest error of the condition": worst},
        figures,
    )


CLAIM = Claim(
    number="R4",
    name="typical accepts more",
    statement="Typical acceptance accepts more than strict sampling, or than Cactus.",
    source="often said of the rule of Medusa 2401.10774; users of serving engines measured less",
    expected="refuted",
    derive=derive,
    check=check,
    notebook="05",
    instead=(
        "It accepts more iff Σ_S (p − γ)₊ > Σ_{Sᶜ} min(p, γ), with S its accept set and γ = q for "
        "strict sampling: it wins where a confident draft exceeds the verifier on S; it loses "
        "where the compared rule rejects less than Σ_{Sᶜ} min(p, γ), always for a perfect draft "
        "p = q with q(Sᶜ) > 0. The difference takes every value in (−1, 1)."
    ),
)
