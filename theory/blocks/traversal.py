r"""Traversal verification of one drafted tree (2505.12398), for any target kernel.

A node that is reached has a scale s and a target h of its own: with probability s the round ends at
it or below it, and what follows it then has the law h. The root has s = 1 and the row of the
kernel. The child x that is tested next, drawn from p, has

    s_x = min(1, s·h(x)/p(x)),

so that p(x) s_x = min(p(x), s·h(x)) of the law goes through it. What is left, (s·h − p)₊ with the
sum R, has to come from the share 1 − s + R in which the child is given up: for the next child

    s ← R/(R + 1 − s),  h ← norm((s·h − p)₊),  and without replacement p ← norm(p without x).

A node without children left is accepted with probability s, and the next token is drawn from h; the
root's s is 1 always. Only the tokens of children that were given up enter, not what was below them,
so the round is lossless for every kernel h. Along a single path it is block verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from theory.arrays import (
    Array,
    check_distribution,
    check_elementwise,
    check_same_place,
    coerce,
    device_of,
    namespace,
    normalised_or,
)

__all__ = ["TREE_SCHEMES", "NodeState", "Traversal", "check_scheme", "traverse"]

TREE_SCHEMES = ("independent", "without_replacement")


class Traversal(NamedTuple):
    """What becomes of one drafted tree.

    path  : the accepted nodes, from the root's child on; empty where none is.
    law   : [V] float64, what the next token is drawn from.
    tests : (node, chance) of every test that was made, in order.
    """

    path: tuple[int, ...]
    law: Array
    tests: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class NodeState:
    """A node that is reached: s, h ``[V]``, and its children's row p ``[V]``, None without any."""

    scale: float
    p: Any
    h: Any

    def share(self, token: int) -> float:
        """s_x of the child that is tested next, whose token p gives."""
        return min(1.0, self.scale * float(self.h[token]) / float(self.p[token]))

    def given_up(self, token: int, scheme: str) -> NodeState:
        """The node when the child with this token has been given up; p = 0 where no other is."""
        xp = namespace(self.p, self.h)
        left = xp.maximum(self.scale * self.h - self.p, 0.0)
        over = float(xp.sum(left))
        rest = over + (1.0 - self.scale)  # in this order the root's s stays 1 exactly
        scale = over / rest if rest > 0 else 1.0  # 0/0 is met with probability 0
        p = self.p
        if scheme == "without_replacement":
            columns = xp.arange(p.shape[-1], device=device_of(p))
            others = xp.where(columns == token, 0.0, p)
            p = normalised_or(xp, others, others)
        return NodeState(scale, p, normalised_or(xp, left, self.h))


def traverse(
    p: Array,
    h: Array,
    parents: Any,
    tokens: Any,
    uniforms: Any,
    scheme: str = "independent",
    *,
    validate: bool = True,
) -> Traversal:
    r"""Verify one drafted tree: from its first leaf on, a node that fails its test is taken off.

    Node 0 is the root, where the text ends. Children stand behind their parents, and those of one
    parent in the order in which they were drawn; that is the order of the tests. A node is tested
    once, when no child of it is left, and accepted where uniforms[node] < s.

    Parameters
    ----------
    p : array [M, V]
        What the children of the first M nodes were drawn from; the nodes from M on have none. Some
        may have fewer than others, as long as none was left out for the token that was drawn.
    h : array [N, V]
        The target row behind each node; float32 or float64, computed in float64.
    parents, tokens : integers [N]
        The parent of each node, and its token; those of the root are not read.
    uniforms : floats [N]
        In [0, 1], one for the test of each node; that of the root is not read.
    scheme : str
        How the children were drawn: "independent" or "without_replacement".
    validate : bool
        False skips the checks.

    Returns
    -------
    Traversal
        Exact up to rounding; at most N − 1 tests, each with a few passes over a row.

    Raises
    ------
    ValueError
        For rows that are no distributions or do not fit each other, lengths that differ, a parent
        that is not before its child or has no row, a token that its parent's row does not give or,
        without replacement, gave to a child before, and uniforms outside [0, 1].

    Notes
    -----
    Source: 2505.12398, algorithm 1; claim 28 of the ledger. `tree_law` is its law.
    """
    check_scheme(scheme)
    p, h = coerce(p, h, names=("p", "h"))
    xp = namespace(p, h)
    parents, tokens = (_integers(*given) for given in (("parents", parents), ("tokens", tokens)))
    if validate:
        _check(p, h, parents, tokens, uniforms, scheme)
    p, h = (xp.astype(rows, xp.float64, copy=False) for rows in (p, h))
    children: list[list[int]] = [[] for _ in tokens]
    for node in range(len(tokens) - 1, 0, -1):  # the first one is the last of its list
        children[parents[node]].append(node)
    return _walk(p, h, children, tokens, uniforms, scheme)


def _walk(
    p: Array, h: Array, children: list[list[int]], tokens: list[int], uniforms: Any, scheme: str
) -> Traversal:
    """Go down to the first leaf, test it, and take it off, until one is accepted."""

    def reached(node: int, scale: float) -> NodeState:
        return NodeState(scale, p[node, :] if children[node] else None, h[node, :])

    way, tests = [(0, reached(0, 1.0))], []
    while True:
        node, state = way[-1]
        if children[node]:
            child = children[node].pop()
            way.append((child, reached(child, state.share(tokens[child]))))
            continue
        if node:
            tests.append((node, state.scale))
        if not node or float(uniforms[node]) < state.scale:
            return Traversal(tuple(node for node, _ in way[1:]), state.h, tuple(tests))
        way.pop()
        parent, above = way.pop()
        way.append((parent, above.given_up(tokens[node], scheme)))


def check_scheme(scheme: str) -> None:
    """Raise ValueError for an unknown way of drawing the children of a node."""
    if scheme not in TREE_SCHEMES:
        raise ValueError(f"no scheme {scheme!r} for trees; there are {', '.join(TREE_SCHEMES)}")


def _integers(name: str, values: Any) -> list[int]:
    row = np.asarray(values.tolist() if hasattr(values, "tolist") else values)
    if row.ndim != 1 or row.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a row of integers, one a node, got {values!r:.60}")
    return [int(n) for n in row]


def _check(
    p: Array, h: Array, parents: list[int], tokens: list[int], uniforms: Any, scheme: str
) -> None:
    shapes = tuple(p.shape), tuple(h.shape)
    fit = p.ndim == h.ndim == 2 and 1 <= h.shape[0] >= p.shape[0] and p.shape[1] == h.shape[1]
    if not fit:
        raise ValueError(f"p and h must be [M, V] and [N, V] of M <= N nodes, got {shapes}")
    check_same_place(("p", "h"), (p[:0, :], h[:0, :]))
    for name, rows in (("p", p), ("h", h)):
        check_distribution(name, rows)
    (given,) = coerce(uniforms, names=("uniforms",))
    for name, size in (
        ("parents", len(parents)),
        ("tokens", len(tokens)),
        ("uniforms", len(given)),
    ):
        if size != h.shape[0]:
            raise ValueError(f"{name} has {size} entries for {h.shape[0]} nodes, the root included")
    check_elementwise("uniforms", given, 0.0, 1.0)
    drawn = set()
    for node in range(1, len(tokens)):
        _check_node(p, node, parents[node], tokens[node])
        if scheme == "without_replacement" and (parents[node], tokens[node]) in drawn:
            raise ValueError(f"tokens[{node}] = {tokens[node]} was drawn before, by a sibling")
        drawn.add((parents[node], tokens[node]))


def _check_node(p: Array, node: int, parent: int, token: int) -> None:
    if not 0 <= parent < node:
        raise ValueError(f"parents[{node}] = {parent} is no node before it")
    if parent >= p.shape[0]:
        raise ValueError(f"parents[{node}] = {parent} has no row in p, which has {p.shape[0]}")
    if not 0 <= token < p.shape[1]:
        raise ValueError(f"tokens[{node}] = {token}, no token index in [0, {p.shape[1] - 1}]")
    if not bool(p[parent, token] > 0):
        raise ValueError(f"tokens[{node}] = {token} has no mass in p[{parent}]")
