r"""Claim 21: what a verification of a block can be.

Let A(v) be the probability that v or more of the drafts is accepted, E(v, y) that exactly v is and
y follows. With a fresh start behind it the texts have the law h iff A(v) h(y|v) = A(vy) + E(v, y);
only drafts are accepted, so that A(vy) ≤ p(vy); and E ≥ 0 says A(vy) ≤ A(v) h(y|v). Conversely any
such A can be had: accept v given that it was drafted with A(v)/p(v), level by level from the
leaves, and emit y behind it with E(v, y).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import linprog

from theory.ledger.derivations.block_rounds import Kernel, Prefix
from theory.ledger.verdicts import Check, Claim, Step

TOLERANCE = 1e-8
TREES, GAINS = 10, 3
PATHS = [(a, b) for a in (0, 1) for b in (0, 1)]
PREFIXES: list[Prefix] = [(0,), (1,), *PATHS]  # of two drafts of two tokens, but the empty one


def derive() -> list[Step]:
    """Write the text's law of two places in A and E, and read the bounds off it."""
    h0, h1 = Fraction(2, 5), Fraction(1, 4)
    alive, accepted = Fraction(1, 3), Fraction(1, 20)
    ends = alive * h1 - accepted  # E(v, y)
    return [
        Step(
            "What is emitted behind an alive prefix v is a draft that is accepted or a token that "
            "follows: A(vy) + E(v, y) = A(v) h(y|v); E ≥ 0 is A(vy) ≤ A(v) h(y|v).",
            accepted + ends == alive * h1 and ends >= 0,
        ),
        Step(
            "What is not alive at v, h(v) − A(v), goes on by h, so that vy is emitted with "
            "A(vy) + E(v, y) + (h(v) − A(v)) h(y|v) = h(v) h(y|v).",
            accepted + ends + (h0 - alive) * h1 == h0 * h1,
        ),
    ]


def check(rng: np.random.Generator) -> Check:
    """Maximise random gains of A over all P(τ, Y | draft), and over the A within the bounds."""
    worst, where = 0.0, {}
    for tree in range(TREES):
        rows = random_tree(rng, zeros=tree % 3 == 2)
        draft, target = (lambda v, r=rows: r[v][0]), (lambda v, r=rows: r[v][1])
        for _ in range(GAINS):
            gain = dict(zip(PREFIXES, rng.normal(size=len(PREFIXES)).tolist()))
            off = abs(over_verifications(draft, target, gain) - over_alive(draft, target, gain))
            if not off <= worst:
                worst, where = off, {"tree": tree}
    return Check(
        "programmes over P(τ, Y | draft)", TREES * GAINS, worst, bool(worst <= TOLERANCE), where
    )


def random_tree(rng: np.random.Generator, *, zeros: bool) -> dict[Prefix, Any]:
    """Rows p and h at every prefix of up to two tokens of two."""
    rows: dict[Prefix, Any] = {}
    for prefix in [(), *PREFIXES]:
        p, h = rng.dirichlet(np.ones(2), size=2)
        if zeros and prefix == (0,):
            h = np.array([0.0, 1.0])
        rows[prefix] = p.tolist(), h.tolist()
    return rows


def over_verifications(draft: Kernel, target: Kernel, gain: dict[Prefix, float]) -> float:
    """max Σ gain(v) A(v) over all lossless P(τ = i, Y = y | path)."""
    events = [(path, stop, y) for path in PATHS for stop in (0, 1, 2) for y in (0, 1)]
    weight = {path: draft(())[path[0]] * draft(path[:1])[path[1]] for path in PATHS}
    rows = [[float(own == path) for own, _, _ in events] for path in PATHS]
    limits = [1.0] * len(PATHS)
    for prefix in [(), *PREFIXES]:
        place = len(prefix)
        for y in (0, 1):  # E(v, y) + A(vy) − A(v) h(y|v) = 0
            row = []
            for path, stop, token in events:
                mass = weight[path] * float(path[:place] == prefix)
                ends = mass * float(stop == place and token == y)
                goes = mass * float(stop > place and path[: place + 1] == (*prefix, y))
                row.append(ends + goes - mass * float(stop >= place) * target(prefix)[y])
            rows.append(row)
            limits.append(0.0)
    gains = [
        -weight[path] * sum(gain[path[:i]] for i in range(1, stop + 1)) for path, stop, _ in events
    ]
    found: Any = linprog(gains, A_eq=np.array(rows), b_eq=limits, method="highs")
    return -float(found.fun)


def over_alive(draft: Kernel, target: Kernel, gain: dict[Prefix, float]) -> float:
    """max Σ gain(v) A(v) over A with both bounds."""
    index = {prefix: n for n, prefix in enumerate(PREFIXES)}
    rows, limits, bounds = [], [], []
    for prefix in PREFIXES:
        drawn = 1.0
        for place, n in enumerate(prefix):
            drawn *= draft(prefix[:place])[n]
        bounds.append((0.0, drawn))
        share = target(prefix[:-1])[prefix[-1]]
        row = np.zeros(len(PREFIXES))
        row[index[prefix]] = 1.0
        if len(prefix) > 1:
            row[index[prefix[:-1]]] = -share
        rows.append(row)
        limits.append(share if len(prefix) == 1 else 0.0)
    gains = [-gain[prefix] for prefix in PREFIXES]
    found: Any = linprog(gains, A_ub=np.array(rows), b_ub=limits, bounds=bounds, method="highs")
    return -float(found.fun)


CLAIM = Claim(
    number=21,
    name="what a verification can be",
    statement=(
        "A verification of a block has the law h, with a fresh start behind it, iff its alive mass "
        "has A(root) = 1, A(vy) ≤ p(vy) and A(vy) ≤ A(v) h(y|v); every such A can be had."
    ),
    source="in substance 2602.16961 (linear programme); the two bounds derived here",
    expected="proved",
    derive=derive,
    check=check,
    notebook="09",
)
