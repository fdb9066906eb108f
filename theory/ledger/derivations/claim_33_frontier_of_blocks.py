r"""Claim 33: the best of a block is a clip of the draft that is raised by what was over-supplied.

In blocks an accepted prefix is held by what was drafted, A(vy) ≤ p(vy), not by A(v) p(y|v):

    max Σ_v A(v) − 1 − λ Σ_v A(v) KL(h(·|v)‖q(·|v)),   A(vy) ≤ min(p(vy), A(v) h(y|v)),

convex in (A, E), E = A h, as in claim 31. With a price ν_v of Σ_y E(v, y) = A(v), γ of A ≤ E and β
of A ≤ p the conditions are −λ(log(h/q) + 1) + γ − ν_v = 0 and β + γ = r, where r_y = 1 + λ + ν_vy
is what one more unit of A(vy) is worth. So h = b q where h > p/s, γ = 0; h = a_y q where h < p/s,
β = 0; and p/s between them: with s = A(v)/p(v), h = clip(p/s, b·q, a_y·q), log(a_y/b) = r_y/λ. And
as ν_vy = −λ(1 + log b_vy), r_y = 1 − λ log b_vy: behind the last place r_y = 1.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import sympy
from scipy.optimize import brentq

import theory
from theory.blocks import round_law, scaled_clip
from theory.ledger.derivations.claim_31_worth_of_a_place import token_value
from theory.ledger.derivations.solvers import has_conic_solver, solved
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-6
LAWS = 1e-4  # of laws that are read off a solution: a value is flat at its optimum
TREES, TOKENS, DRAFTS = 4, 3, 2
PRICES = (1.0, 2.5)
Prefix = tuple[int, ...]
Tree = dict[Prefix, Any]


def derive() -> list[Step]:
    """Derive the conditions of a token, and what one more accepted unit is worth."""
    h, q, lam, nu, gamma, log_b = sympy.symbols("h q lambda nu gamma B", real=True, positive=True)
    condition = -lam * (sympy.log(h / q) + 1) + gamma - nu
    found = sympy.solve(condition, h)[0]
    gap = sympy.expand_log(sympy.log(found / found.subs(gamma, 0)), force=True)
    emitted, alive = sympy.symbols("E A", positive=True)
    spent = lam * emitted * sympy.log(emitted / (alive * q))
    free = sympy.symbols("nu", real=True)
    worth = 1 + lam + free
    return [
        Step(
            "−λ(log(h/q) + 1) + γ − ν = 0: with γ = 0 h = b q, with γ = r h = a q, and "
            "log(a/b) = r/λ; for γ between, h lies between.",
            bool(sympy.simplify(gap - gamma / lam) == 0)
            and bool(sympy.diff(found, gamma).is_positive),
        ),
        Step(
            "−Σ λ E log(E/(A q)) has the slope λ Σ E/A = λ in A, so that one more unit of A(vy) "
            "is worth r = 1 + λ + ν_vy.",
            bool(sympy.simplify(-sympy.diff(spent, alive) - lam * emitted / alive) == 0),
        ),
        Step(
            "With log b = −ν/λ − 1 that is r = 1 − λ log b_vy.",
            bool(sympy.simplify(worth.subs(free, -lam * (1 + log_b)) - (1 - lam * log_b)) == 0),
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Compare the conditions' own solution with the programme, block verification and the clip."""
    worst, where, gains, apart = 0.0, {}, [], []
    for tree, price in itertools.product(range(TREES), PRICES):
        rows = {v: rng.dirichlet(np.ones(TOKENS), size=2) for v in _prefixes()}
        found = _Block(rows, price)
        kernel = found.kernel()
        value = _value(rows, kernel, price)
        beside = (0.0, 0.0)
        if has_conic_solver():
            beside = _beside_programme(rows, price, kernel, value)
        apart.append(beside[1])
        offs = {
            "programme": beside[0],
            "last place": _last_place(rows, found, price),
            "token by token": max(0.0, token_value(rows, (), price) - value),
        }
        gains.append(value / _value(rows, _token_kernel(rows, price), price) - 1.0)
        for name, off in offs.items():
            if not off <= worst:
                worst, where = off, {"tree": tree, "price": price, "beside": name}
    return Check(
        "conic programme over a tree, value and laws; block verification of h by enumeration; "
        "scaled_clip; the best token by token, which is not above it",
        TREES * len(PRICES),
        worst,
        bool(worst <= TOLERANCE and max(apart) <= LAWS),
        where,
        {
            "gain over one multiplier in blocks, least": min(gains),
            "most": max(gains),
            "laws off the programme's, most": max(apart),
        },
    )


def _prefixes() -> list[Prefix]:
    return [v for n in range(DRAFTS) for v in itertools.product(range(TOKENS), repeat=n)]


class _Block:
    """The solution of the conditions: log b of a prefix at a scale, from the leaves."""

    def __init__(self, rows: Tree, price: float) -> None:
        self.rows, self.price = rows, price

    def log_b(self, v: Prefix, scale: float) -> float:
        """log b where Σ h = 1; 0 behind the last place, where r is 1."""
        if v not in self.rows:
            return 0.0
        span = (1.0 + len(self.rows)) / self.price  # log(a/b) is less: no round is longer
        root: Any = brentq(
            lambda b: float(self.law(v, scale, b).sum()) - 1.0, -span, 0.0, xtol=1e-14, rtol=1e-13
        )
        return float(root)

    def law(self, v: Prefix, scale: float, log_b: float) -> Any:
        """clip(p/s, b·q, a_y·q); a_y depends on b behind the token, and so on what it emits."""
        return np.array([self._emitted(v, scale, log_b, y) for y in range(TOKENS)])

    def _emitted(self, v: Prefix, scale: float, log_b: float, y: int) -> float:
        p, q = (float(row[y]) for row in self.rows[v])
        most, least = p / scale, float(np.exp(log_b)) * q
        if most <= least:
            return least

        def excess(h: float) -> float:  # log(h/q) − log a_y, rising
            worth = 1.0 / self.price - self.log_b((*v, y), min(1.0, scale * h / p))
            return float(np.log(h / q)) - log_b - worth

        if excess(most) <= 0:
            return most
        root: Any = brentq(excess, least, most, xtol=1e-14, rtol=1e-13)
        return float(root)

    def kernel(self) -> Tree:
        """h behind every prefix, at the scale at which it is reached."""
        found: Tree = {}
        scales: dict[Prefix, float] = {(): 1.0}
        for v in _prefixes():
            p, scale = self.rows[v][0], scales[v]
            h = self.law(v, scale, self.log_b(v, scale))
            found[v] = h / h.sum()
            scales |= {(*v, y): min(1.0, scale * h[y] / p[y]) for y in range(TOKENS)}
        return found


def _value(rows: Tree, kernel: Tree, price: float) -> float:
    """Accepted drafts less the price of what is spent, by block verification of a kernel."""
    law = round_law(
        lambda v: rows[v][0], lambda v: kernel[v], DRAFTS, bonus=lambda v: np.ones(TOKENS) / TOKENS
    )
    spent = sum(law.alive[v] * float(theory.divergence("kl", kernel[v], rows[v][1])) for v in rows)
    return law.accepted_length - price * spent


def _token_kernel(rows: Tree, price: float) -> Tree:
    """The clip with the multiplier 1/λ at every place, which knows no scale."""
    rule = theory.make_rule("frontier_corpus", multiplier=1.0 / price)
    return {v: np.asarray(theory.one_step(rule, p, q).output) for v, (p, q) in rows.items()}


def _beside_programme(rows: Tree, price: float, kernel: Tree, value: float) -> tuple[float, float]:
    """How far the programme's value is, and its laws, each by how often its prefix is reached."""
    best, laws = programme_laws(rows, price)
    apart = [alive * float(np.max(np.abs(h - kernel[v]))) for v, (alive, h) in laws.items()]
    return abs(value - best), max(apart)


def _last_place(rows: Tree, found: _Block, price: float) -> float:
    """How far theory.blocks.scaled_clip is from the conditions at a last place."""
    worst = 0.0
    for scale in (1.0, 0.6):
        p, q = rows[0,]
        h = found.law((0,), scale, found.log_b((0,), scale))
        ends = np.full((1, 1), scale), np.full((1, 1), 1.0 / price)
        clip = scaled_clip(theory.Pair.prepare(p, q), *ends)
        other = np.clip(p / scale, clip.below[0, 0] * q, clip.above[0, 0] * q)
        worst = max(worst, float(np.max(np.abs(h - other))))
    return worst


def programme(rows: Tree, price: float) -> float:
    """Solve for all accepted and emitted masses of a block at once; the value."""
    return programme_laws(rows, price)[0]


def programme_laws(rows: Tree, price: float) -> tuple[float, Tree]:
    """Solve the programme; its value, and (A(v), h(·|v)) as they are read off the masses."""
    lib: Any = importlib.import_module("cvxpy")
    alive: dict[Prefix, Any] = {(): 1.0}
    drawn: dict[Prefix, float] = {(): 1.0}
    masses: dict[Prefix, Any] = {}
    limits, value = [], 0.0
    for v, (p, q) in rows.items():
        size = len(p)
        emitted, kept = lib.Variable(size, nonneg=True), lib.Variable(size, nonneg=True)
        limits += [lib.sum(emitted) == alive[v], kept <= emitted, kept <= drawn[v] * p]
        value += lib.sum(kept) - price * lib.sum(lib.rel_entr(emitted, alive[v] * q))
        masses[v] = emitted
        alive |= {(*v, y): kept[y] for y in range(size)}
        drawn |= {(*v, y): drawn[v] * float(p[y]) for y in range(size)}
    problem = lib.Problem(lib.Maximize(value), limits)
    if not solved(problem):
        raise RuntimeError(f"the programme of a block was not solved: {problem.status}")
    found: Any = problem.value
    rest = {v: np.asarray(emitted.value) for v, emitted in masses.items()}
    return float(found), {v: (mass.sum(), mass / mass.sum()) for v, mass in rest.items()}


CLAIM = Claim(
    number=33,
    name="frontier of blocks",
    statement=(
        "The most accepted tokens of one round in blocks at a price λ of a nat are those of "
        "h = clip(p/s, b·q, a_y·q), s = A(v)/p(v), log(a_y/b) = 1/λ − log b_vy: the draft's row "
        "raised by what was over-supplied before, and b_vy the factor behind the token, 1 behind "
        "the last place. Block verification of h attains it."
    ),
    source="derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="11",
)
