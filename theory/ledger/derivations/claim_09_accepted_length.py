r"""Claim 9 (Leviathan et al.): accepted length, tokens per round and speed-up.

A block of m drafts is accepted up to the first rejection. If the positions are independent with
acceptance α, then P(at least k accepted) = α^k and

    E[accepted] = Σ_{k=1}^m α^k = (α − α^{m+1})/(1−α),      limit m at α = 1,
    E[tokens]   = 1 + E[accepted] = (1 − α^{m+1})/(1−α),    limit m + 1,

since every round emits one more token: the recovered or the bonus one. A round costs m drafts of
cost c and one verification, which gives the speed-up (1 − α^{m+1})/((1−α)(mc + 1)).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import sympy

import theory
from theory.ledger.derivations.common import vanishes
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-12
LONG_RUN_TOLERANCE = 1e-3  # a rate near 1 leaves the renewals almost periodic for a long time

alpha, cost, s = sympy.symbols("alpha c s", positive=True)
m, k = sympy.symbols("m k", positive=True, integer=True)
accepted = (alpha - alpha ** (m + 1)) / (1 - alpha)
emitted = (1 - alpha ** (m + 1)) / (1 - alpha)
RULES: tuple[tuple[str, dict[str, float]], ...] = (
    ("sps", {}),
    ("cactus", {"delta": 0.1}),
    ("cactus", {"delta": 100.0}),  # accepts everything: the limit α = 1
    ("lenience", {"l": 0.5}),
    ("typical", {"epsilon": 0.3}),
    ("cactus_target_only", {"delta": 0.05}),
)


def derive() -> list[Step]:
    """Sum the series, take the limits, and decide when a speed-up exists."""
    return [*_lengths(), *_limits(), *_speed_up()]


def _below_one(sum_: Any) -> Any:
    """Return the branch α ≠ 1 of a geometric sum."""
    branches = [x for x, _ in sum_.args] if isinstance(sum_, sympy.Piecewise) else [sum_]
    return branches[-1]


def _lengths() -> list[Step]:
    tails = _below_one(sympy.summation(alpha**k, (k, 1, m)))
    # The law of the length: α^k(1 − α) for k < m and α^m for k = m; mean by induction over m.
    step = sympy.simplify((accepted.subs(m, m + 1) - accepted) - alpha ** (m + 1))
    law = m * alpha**m * (1 - alpha) + (m + 1) * alpha ** (m + 1) - m * alpha**m
    return [
        Step(
            "Σ_{k=1}^m α^k = (α − α^{m+1})/(1−α).",
            vanishes(tails - accepted),
        ),
        Step(
            "The same from the law of the length, by induction: it is α for m = 1, and one more "
            "draft adds m·α^m(1−α) + (m+1)α^{m+1} − m·α^m = α^{m+1}, as the formula does.",
            vanishes(accepted.subs(m, 1) - alpha)
            and vanishes(step)
            and vanishes(sympy.expand(law) - alpha ** (m + 1)),
        ),
        Step(
            "With one token from recovery or bonus: (1−α^{m+1})/(1−α).",
            vanishes(emitted - accepted - 1),
        ),
    ]


def _limits() -> list[Step]:
    # L'Hôpital: numerator and denominator vanish at α = 1; their derivatives do not.
    ends = [
        sympy.diff(sympy.numer(x), alpha).subs(alpha, 1) / sympy.diff(sympy.denom(x), alpha)
        for x in (accepted, emitted)
    ]
    below = 1 / (1 + s)
    tail = sympy.limit((1 + s) ** (-m), m, sympy.oo)
    power = alpha ** (1 + sympy.Symbol("j", nonnegative=True, integer=True))
    return [
        Step(
            "As α → 1 the lengths tend to m and m + 1.",
            vanishes(ends[0] - m) and vanishes(ends[1] - (m + 1)),
        ),
        Step(
            "As m → ∞ they tend to α/(1−α) and 1/(1−α) for α < 1, since α^m → 0.",
            tail == 0 and vanishes((alpha / (1 - alpha)).subs(alpha, below) - 1 / s),
        ),
        Step(
            "Each α^k, k ≥ 1, increases and is convex in α, hence E[accepted] too: where α varies "
            "from round to round, the mean length is at least the formula at the mean α.",
            bool(sympy.simplify(sympy.diff(power, alpha)).is_positive)
            and bool(sympy.simplify(sympy.diff(power, alpha, 2)).is_nonnegative),
        ),
    ]


def _speed_up() -> list[Step]:
    gain = emitted / (m * cost + 1)
    slack = cost - alpha  # α = c + s or c = α + s
    one = sympy.simplify(gain.subs(m, 1)) - 1
    power = sympy.Symbol("j", nonnegative=True, integer=True)
    # 1 + mc − Σ_{k=0}^m α^k = Σ_{k=1}^m (c − α^k), and c − α^k ≥ α − α^k ≥ 0 for c ≥ α.
    term = (1 + s) ** power - 1  # (α − α^{j+1})/α^{j+1} at α = 1/(1 + s)
    increment = sympy.simplify((term.subs(power, power + 1) - term) / (1 + s) ** power)
    return [
        Step(
            "A round of m drafts costs mc + 1 verifications; with m = 1 the speed-up is "
            "(1+α)/(1+c), above 1 iff α > c.",
            vanishes(gain.subs(m, 1) - (1 + alpha) / (1 + cost))
            and bool(sympy.simplify(one.subs(alpha, cost + s)).is_positive),
        ),
        Step(
            "If α ≤ c no m helps: 1 + mc − Σ_{k=0}^m α^k = Σ_{k=1}^m (c − α^k) ≥ 0, because "
            "α^k ≤ α ≤ c.",
            bool(slack.subs(cost, alpha + s).is_positive)
            and vanishes(term.subs(power, 0))
            and bool(increment.is_positive),
        ),
    ]


def expected_accepted(rate: float, drafts: int) -> float:
    """Return (α − α^{m+1})/(1−α), m at α = 1."""
    return float(drafts) if rate == 1.0 else (rate - rate ** (drafts + 1)) / (1.0 - rate)


def check(rng: np.random.Generator) -> Check:
    """Enumerate every block of drafts and every outcome, then emit a long text exactly."""
    worst, where, points = 0.0, {}, 0
    speed = 0.0
    for name, parameters in RULES:
        rule = theory.make_rule(name, **parameters)
        for drafts in (1, 2, 4):
            p, q = rng.dirichlet(np.ones(3), size=2)
            lengths = _enumerated(rule.accept_prob(p, q), p, drafts)
            rate = float(theory.one_step(rule, p, q).acceptance)
            mean = float(lengths @ np.arange(drafts + 1))
            off = abs(mean - expected_accepted(rate, drafts))
            speed = max(speed, abs(_long_run(lengths) - 1.0 - expected_accepted(rate, drafts)))
            points += 3**drafts * (drafts + 1)
            if not off <= worst:
                worst = off
                where = {"rule": name, **parameters, "m": drafts, "p": p.tolist(), "q": q.tolist()}
    return Check(
        "all blocks of drafts and outcomes enumerated; a long text emitted by renewal equations",
        points,
        worst,
        worst <= TOLERANCE and speed <= LONG_RUN_TOLERANCE,
        where,
        {"error of tokens per round in the long run": speed},
    )


def _enumerated(accept: Any, p: Any, drafts: int) -> Any:
    """Return the law of the accepted length, over all drafted blocks and places of rejection."""
    lengths = np.zeros(drafts + 1)
    for block in itertools.product(range(len(p)), repeat=drafts):
        drafted = float(np.prod(p[list(block)]))
        passed = np.cumprod(accept[list(block)])
        passed = np.concatenate([[1.0], passed, [0.0]])
        lengths += drafted * (passed[:-1] - passed[1:])
    return lengths


def _long_run(lengths: Any, horizon: int = 4000) -> float:
    """Return the tokens per round of a long text: N(n) = 1 + Σ P(length = l) N(n − l − 1).

    N(n) is the mean number of rounds until n tokens are out; its slope is one over the tokens per
    round. The slope is averaged over a window, which evens out lengths that leave a lattice.
    """
    rounds = np.zeros(horizon + 1)
    for n in range(1, horizon + 1):
        before = np.maximum(n - 1 - np.arange(len(lengths)), 0)
        rounds[n] = 1.0 + float(lengths @ rounds[before])
    window = 60 * len(lengths)
    return window / float(rounds[horizon] - rounds[horizon - window])


CLAIM = Claim(
    number=9,
    name="accepted length",
    statement=(
        "With independent acceptance α a block of m drafts has (α − α^{m+1})/(1−α) accepted "
        "tokens and emits (1 − α^{m+1})/(1−α) in the mean, m and m + 1 at α = 1; with drafts of "
        "cost c the speed-up is (1 − α^{m+1})/((1−α)(mc + 1)), above 1 for some m iff α > c."
    ),
    source="Leviathan et al. 2211.17192, Equation 1, Theorem 3.8 and Corollary 3.9",
    expected="proved",
    derive=derive,
    check=check,
    notebook="01",
    instead=(
        "The accepted length is convex in α: where α varies from round to round the mean is at "
        "least the formula at the mean α."
    ),
)
