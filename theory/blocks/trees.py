r"""The exact law of a round on a drafted tree, by enumeration: small vocabularies, few children.

Behind every node, up to the depth m, K children are drawn from the draft's row there, independently
or without replacement. The tree itself is never drawn: a child is reached when those before it are
given up, and how probable that is depends on their tokens alone, not on what is below them (see
`traversal`). What is left of an independent one does not even depend on the token.

One by one (SpecInfer, 2305.09781) goes down to the first child that is accepted and never comes
back: s = 1 at every node that is reached. It is lossless as well. With K = 1 traversal is block
verification and one by one is token by token: both are those of `round_law`. Traversal accepts at
least as much at every prefix where children are independent; without replacement not always.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.blocks.enumerated import Kernel, Prefix, RoundLaw
from theory.blocks.traversal import NodeState, check_scheme

__all__ = ["TREE_VERIFICATIONS", "tree_law"]

TREE_VERIFICATIONS = ("traversal", "one_by_one")
MOST = 200_000  # nodes that are gone through

Reached = tuple[Prefix, float, float]  # a node, the probability that it is reached, and its s


def tree_law(
    draft: Kernel,
    target: Kernel,
    drafts: int,
    count: int,
    scheme: str = "independent",
    verification: str = "traversal",
    *,
    bonus: Kernel,
) -> RoundLaw:
    r"""Return the law of a round by enumeration: which prefix is accepted, and what follows it.

    Parameters
    ----------
    draft, target, bonus : callable
        From a prefix to a row [V] of float64. Behind m drafts the next token comes from ``bonus``;
        with that of the target the round is lossless.
    drafts : int
        The depth m ≥ 1.
    count : int
        K ≥ 1 children of every node; without replacement no more than tokens that the draft gives.
    scheme : str
        "independent" or "without_replacement".
    verification : str
        "traversal" or "one_by_one".

    Returns
    -------
    RoundLaw
        float64, exact up to rounding.

    Raises
    ------
    ValueError
        For another scheme or verification, numbers that are no positive integers, and more than
        200,000 nodes.

    Notes
    -----
    Sources: 2505.12398, 2305.09781; claim 28 of the ledger.
    """
    check_scheme(scheme)
    if verification not in TREE_VERIFICATIONS:
        known = ", ".join(TREE_VERIFICATIONS)
        raise ValueError(f"no verification {verification!r} of trees; there are {known}")
    vocabulary = len(draft(()))
    _check_size(vocabulary, drafts, count, scheme)
    walk = _Walk(draft, target, count, scheme, verification)
    ends: dict[Prefix, Any] = {}
    reached: list[Reached] = [((), 1.0, 1.0)]
    for _ in range(drafts):
        reached = [child for node in reached for child in walk.below(node, ends)]
    for prefix, mass, scale in reached:
        _add(ends, prefix, mass * scale, bonus(prefix))
    return _law(ends, vocabulary, drafts)


@dataclass(frozen=True)
class _Walk:
    """What every node of the trees has in common."""

    draft: Kernel
    target: Kernel
    count: int
    scheme: str
    verification: str

    def below(self, node: Reached, ends: dict[Prefix, Any]) -> Iterator[Reached]:
        """The children of an inner node; what ends at the node is added to ``ends``."""
        prefix, mass, scale = node
        p, h = (np.asarray(kernel(prefix), np.float64) for kernel in (self.draft, self.target))
        states = [(mass, NodeState(scale, p, h))]
        for _ in range(self.count):
            behind: list[tuple[float, NodeState]] = []
            for chance, state in states:
                tokens = [int(token) for token in np.flatnonzero(state.p)]
                shares = [state.share(token) for token in tokens]
                masses = [chance * float(state.p[token]) for token in tokens]
                for token, share, drawn in zip(tokens, shares, masses):
                    yield self._child((*prefix, token), drawn, share)
                lost = [drawn * (1.0 - share) for drawn, share in zip(masses, shares)]
                behind += self._given_up(state, tokens, lost) if tokens else [(chance, state)]
            states = behind
        for chance, state in states:
            _add(ends, prefix, chance * state.scale, state.h)

    def _child(self, prefix: Prefix, drawn: float, share: float) -> Reached:
        if self.verification == "one_by_one":
            return prefix, drawn * share, 1.0
        return prefix, drawn, share

    def _given_up(
        self, state: NodeState, tokens: list[int], lost: list[float]
    ) -> list[tuple[float, NodeState]]:
        """The node without the child: one state, or one for each token that it lost."""
        if self.scheme == "independent":
            return [(sum(lost), state.given_up(tokens[0], self.scheme))]
        given_up = [(mass, token) for mass, token in zip(lost, tokens) if mass > 0]
        return [(mass, state.given_up(token, self.scheme)) for mass, token in given_up]


def _add(ends: dict[Prefix, Any], prefix: Prefix, mass: float, row: Any) -> None:
    ends[prefix] = ends.get(prefix, 0.0) + mass * np.asarray(row, np.float64)


def _law(ends: dict[Prefix, Any], vocabulary: int, drafts: int) -> RoundLaw:
    """The law of what ends where; A(v) is what ends at v or behind it."""
    every = [
        list(itertools.product(range(vocabulary), repeat=length)) for length in range(drafts + 1)
    ]
    ends = {prefix: ends.get(prefix, np.zeros(vocabulary)) for row in every for prefix in row}
    alive = {prefix: float(np.sum(row)) for prefix, row in ends.items()}
    for row in every[:0:-1]:
        for prefix in row:
            alive[prefix[:-1]] += alive[prefix]
    return RoundLaw(drafts, alive, ends)


def _check_size(vocabulary: int, drafts: int, count: int, scheme: str) -> None:
    for name, number in (("drafts", drafts), ("count", count)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {number!r}")
    if drafts * math.log(_tests(vocabulary, count, scheme)) > math.log(MOST):
        raise ValueError(
            f"{vocabulary} tokens, {count} children and {drafts} drafts are too many nodes; "
            f"at most {MOST} are gone through"
        )


def _tests(vocabulary: int, count: int, scheme: str) -> int:
    """How many ways there are to come to a child of one node; beyond MOST, some number there."""
    if scheme == "independent":
        return vocabulary * count
    found, draws = 0, 1
    for place in range(min(count, vocabulary)):
        draws *= vocabulary - place
        found += draws
        if found > MOST:
            break
    return found
