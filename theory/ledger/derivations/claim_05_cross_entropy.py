r"""Claim 5 (Equation 10): H(h, q) = KL(h‖q) + H(h), so a budget of cross-entropy rewards collapse.

A target h may spend KL(h‖q) ≤ B − H(h): every nat of entropy that it gives up buys one nat of
divergence. The verifier itself costs H(q); the cheapest distribution of all is not the verifier but
its mode, at −log max q ≤ H(q), because a linear functional is smallest at a vertex of the simplex.
The target of typical acceptance, the one-hot at n, has entropy 0 and divergence −log q_n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy.optimize import linprog
from scipy.stats import entropy

import theory
from theory.ledger.derivations.common import extreme_pairs, vanishes
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-9


def derive() -> list[Step]:
    """Derive the identity, the limit at a one-hot, and the collapse of the cheapest target."""
    h, q, s = sympy.symbols("h q s", positive=True)
    identity = -h * sympy.log(q) - (h * sympy.log(h / q) - h * sympy.log(h))
    x = sympy.Symbol("x", positive=True)  # 1 − h_n, shared by the others as x·r_i
    r1, r2 = sympy.symbols("r1 r2", positive=True)
    parts = [(1 - x, q), (x * r1, s), (x * r2, h)]  # three tokens of verifier mass q, s, h
    own = sum(-a * sympy.log(a) for a, _ in parts)
    divergence = sum(a * sympy.log(a / b) for a, b in parts)
    return [
        Step(
            "−h log q = h log(h/q) − h log h, token by token; the sum is H(h, q) = KL(h‖q) + H(h).",
            vanishes(sympy.expand_log(identity, force=True)),
        ),
        Step(
            "At the one-hot (h_n → 1 on any straight path): H(h) → 0 and KL(h‖q) → −log q_n.",
            sympy.limit(own, x, 0, "+") == 0
            and vanishes(sympy.limit(divergence, x, 0, "+") + sympy.log(q)),
        ),
        *_collapse(),
    ]


def _collapse() -> list[Step]:
    h = sympy.symbols("h1:4", nonnegative=True)
    q = sympy.symbols("q1:4", nonnegative=True)
    lowest, *rises = sympy.symbols("s_m r2 r3", nonnegative=True)
    surprise = [lowest, lowest + rises[0], lowest + rises[1]]
    excess = sum(a * b for a, b in zip(h, surprise)) - lowest * sum(h)
    saving = sum(a * b for a, b in zip(q, surprise)) - lowest * sum(q)
    mix = sympy.Symbol("m", positive=True)
    toward = sum(((1 - mix) * a + mix * b) * s for a, b, s in zip(q, (sum(q), 0, 0), surprise))
    return [
        Step(
            "H(h, q) − (−log max q) = Σ h_x (s_x − s_m) ≥ 0, s = −log q: the mode is cheapest.",
            bool(sympy.expand(excess).is_nonnegative),
        ),
        Step(
            "Moving from q toward its mode changes the cost at the rate −Σ q_x (s_x − s_m) ≤ 0: "
            "collapse is paid for, although KL grows from 0.",
            vanishes(sympy.diff(toward, mix) + saving) and bool((-saving).expand().is_nonpositive),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Check identity and one-hot cost on extreme rows, and the cheapest target by a programme."""
    worst, where, points = 0.0, {}, 0
    for size in (2, 5, 30):
        h, q = extreme_pairs(rng, 2000, size)
        off = np.maximum(_identity_error(h, q), _one_hot_error(q))
        points += len(q)
        row = int(np.argmax(off))
        if not off[row] <= worst:
            worst, where = float(off[row]), {"h": h[row].tolist(), "q": q[row].tolist()}
    _, rows = extreme_pairs(rng, 100, 5)
    cheapest = max(_cheapest_error(q) for q in rows)
    lost = _entropy_lost(rng)
    return Check(
        "cross-entropy term by term; one-hot rows; the cheapest target by a linear programme",
        points + len(rows),
        max(worst, cheapest),
        max(worst, cheapest) <= TOLERANCE,
        where,
        {
            "mean entropy of the verifier minus the output's, typical": lost["typical"],
            "the same for cactus at δ = 0.1": lost["cactus"],
        },
    )


def _identity_error(h: Any, q: Any) -> Any:
    """Return |H(h, q) − KL(h‖q) − H(h)| per row, 0 where both sides are infinite."""
    spent = theory.divergence("kl", h, q)
    leaks = np.any((h > 0) & (q == 0), axis=-1)
    safe = np.where(q > 0, q, 1.0)
    cost = -np.sum(h * np.log(safe), axis=-1)
    error = np.abs(cost - np.where(leaks, 0.0, spent) - entropy(h, axis=-1))
    return np.where(leaks, np.where(np.isinf(spent), 0.0, np.inf), error)


def _one_hot_error(q: Any) -> Any:
    """Return |KL(e_n‖q) + log q_n| for the mode and for the rarest token of the support."""
    rarest = np.argmin(np.where(q > 0, q, 2.0), axis=-1)
    error = np.zeros(len(q))
    for n in (np.argmax(q, axis=-1), rarest):
        own = np.take_along_axis(q, n[:, None], axis=-1)[:, 0]
        spent = theory.divergence("kl", np.eye(q.shape[-1])[n], q)
        error = np.maximum(error, np.abs(spent + np.log(own)))
    return error


def _cheapest_error(q: Any) -> float:
    """Return the error of −log max q as the least cross-entropy, found by a linear programme.

    The programme's solution is also what typical acceptance recovers from.
    """
    support = np.flatnonzero(q > 0)
    surprise = -np.log(q[support])
    found: Any = linprog(surprise, A_eq=np.ones((1, surprise.size)), b_eq=[1.0])
    if not found.success:
        return float("inf")
    cheapest = np.zeros_like(q)
    cheapest[support] = found.x
    recovered = theory.make_rule("typical").recovery(q, q, 0)
    off = abs(float(found.fun) - float(surprise.min()))
    return max(off, float(np.max(np.abs(recovered - cheapest))))


def _entropy_lost(rng: np.random.Generator) -> dict[str, float]:
    """Return the mean fall of entropy from the verifier to the output of two rules."""
    p, q = rng.dirichlet(np.full(20, 0.3), size=(2, 500))
    rules = {
        "typical": theory.make_rule("typical"),
        "cactus": theory.make_rule("cactus", delta=0.1),
    }
    before = entropy(q, axis=-1)
    return {
        name: float(np.mean(before - entropy(rule.output(p, q), axis=-1)))
        for name, rule in rules.items()
    }


CLAIM = Claim(
    number=5,
    name="cross-entropy and collapse",
    statement=(
        "H(h, q) = KL(h‖q) + H(h): a budget B of cross-entropy admits KL(h‖q) up to B − H(h), most "
        "for one-hot targets, which have entropy 0 and cost −log q_n; the cheapest distribution of "
        "all is the verifier's mode, not the verifier."
    ),
    source="2604.04987 Equation 10",
    expected="proved",
    derive=derive,
    check=check,
    notebook="05",
)
