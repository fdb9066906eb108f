"""Rounds on drafted trees, one tree at a time, plainly written: nothing of theory.blocks is used.

A tree is a tuple of its root's children, each (token, tuple of its children), in the order in which
they are tested. A kernel is a function of a prefix; numbers of any kind go through, fractions too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from theory.ledger.derivations.block_rounds import Kernel, Prefix

Tree = tuple[tuple[int, Any], ...]


def drafted_trees(draft: Kernel, depth: int, count: int, scheme: str) -> list[tuple[Tree, Any]]:
    """Every tree of a depth with its probability; the nodes of each level are drawn alike."""
    return _trees(draft, (), depth, count, scheme != "independent")


def _trees(
    draft: Kernel, prefix: Prefix, depth: int, count: int, apart: bool
) -> list[tuple[Tree, Any]]:
    if depth == 0:
        return [((), 1)]
    row, found = draft(prefix), []
    tokens = [n for n in range(len(row)) if row[n] > 0]
    behind = {n: _trees(draft, (*prefix, n), depth - 1, count, apart) for n in tokens}
    draws = (
        itertools.permutations(tokens, min(count, len(tokens)))
        if apart
        else itertools.product(tokens, repeat=count)
    )
    for drawn in draws:
        mass, left = 1, sum(row[n] for n in tokens)
        for n in drawn:
            mass, left = mass * row[n] / left, left - (row[n] if apart else 0)
        for below in itertools.product(*(behind[n] for n in drawn)):
            weight = mass
            for _, share in below:
                weight *= share
            found.append((tuple((n, tree) for n, (tree, _) in zip(drawn, below)), weight))
    return found


def _traversal(
    tree: Tree, draft: Kernel, target: Kernel, bonus: Kernel, depth: int, scheme: str
) -> dict[Prefix, Any]:
    """E(v, ·) given the tree: from the first leaf on (2505.12398), the uniforms integrated out."""
    found: dict[Prefix, Any] = {}
    chance, way = 1, [_node((), 1, draft, target, tree)]
    while True:
        node = way[-1]
        if node["children"]:  # down to the first leaf
            token, below = node["children"].pop(0)
            s = min(1, node["s"] * node["h"][token] / node["p"][token])
            way.append(_node((*node["prefix"], token), s, draft, target, below))
            continue
        row = bonus(node["prefix"]) if len(way) == depth + 1 else node["h"]
        old = found.get(node["prefix"], [0] * len(row))
        found[node["prefix"]] = [o + chance * node["s"] * y for o, y in zip(old, row)]
        chance *= 1 - node["s"]
        way.pop()
        if not way or chance == 0:
            return found
        _take_off(way[-1], node["prefix"][-1], scheme)


def _node(prefix: Prefix, s: Any, draft: Kernel, target: Kernel, below: Tree) -> dict[str, Any]:
    p = draft(prefix) if below else None
    return {"prefix": prefix, "s": s, "h": target(prefix), "p": p, "children": list(below)}


def _take_off(node: dict[str, Any], token: int, scheme: str) -> None:
    """What a node is when the child that was tested has been taken off."""
    over = [max(node["s"] * b - a, 0) for a, b in zip(node["p"], node["h"])]
    left = sum(over)
    if left > 0:
        node["h"] = [x / left for x in over]
    node["s"] = left / (left + (1 - node["s"])) if left > 0 else 0
    if scheme != "independent":
        rest = [0 if n == token else x for n, x in enumerate(node["p"])]
        node["p"] = [x / sum(rest) for x in rest] if sum(rest) > 0 else rest


def _one_by_one(
    tree: Tree, draft: Kernel, target: Kernel, bonus: Kernel, depth: int, scheme: str
) -> dict[Prefix, Any]:
    """E(v, ·) given the tree: from the root down to the first child that is accepted, and so on."""
    found: dict[Prefix, Any] = {}
    at = [(1, _node((), 1, draft, target, tree))]
    while at:
        chance, node = at.pop()
        for token, below in node["children"]:
            accepted = min(1, node["h"][token] / node["p"][token])
            at.append((chance * accepted, _node((*node["prefix"], token), 1, draft, target, below)))
            chance *= 1 - accepted
            _take_off(node, token, scheme)
        row = bonus(node["prefix"]) if len(node["prefix"]) == depth else node["h"]
        old = found.get(node["prefix"], [0] * len(row))
        found[node["prefix"]] = [o + chance * y for o, y in zip(old, row)]
    return found


def tree_rounds(
    draft: Kernel, target: Kernel, depth: int, count: int, scheme: str, bonus: Kernel
) -> dict[Prefix, Any]:
    """E(v, ·) of traversal verification as lists by prefix v, over all drafted trees."""
    return _over_trees(_traversal, draft, target, depth, count, scheme, bonus)


def one_by_one(
    draft: Kernel, target: Kernel, depth: int, count: int, scheme: str, bonus: Kernel
) -> dict[Prefix, Any]:
    """E(v, ·) of the children tested one after another, as lists by prefix v, over all trees."""
    return _over_trees(_one_by_one, draft, target, depth, count, scheme, bonus)


def _over_trees(
    given: Callable[..., dict[Prefix, Any]],
    draft: Kernel,
    target: Kernel,
    depth: int,
    count: int,
    scheme: str,
    bonus: Kernel,
) -> dict[Prefix, Any]:
    found: dict[Prefix, Any] = {}
    for tree, weight in drafted_trees(draft, depth, count, scheme):
        for prefix, row in given(tree, draft, target, bonus, depth, scheme).items():
            old = found.get(prefix, [0] * len(row))
            found[prefix] = [o + weight * x for o, x in zip(old, row)]
    return found


def longest(draft: Kernel, target: Kernel, depth: int, count: int, scheme: str) -> float:
    """max E τ over every lossless P(accepted prefix, next token | drafted tree).

    Trees with the same prefixes in them are one: what a verification does with the order, or with
    the second of two equal nodes, can be averaged over the trees of one set of prefixes.
    """
    sets: dict[frozenset[Prefix], float] = defaultdict(float)
    for tree, weight in drafted_trees(draft, depth, count, scheme):
        sets[frozenset(_prefixes(tree))] += float(weight)
    tokens = range(len(target(())))
    events = [(s, v, y) for s, held in enumerate(sets) for v in sorted(held) for y in tokens]
    pairs = itertools.product(sorted(set().union(*sets)), tokens)
    laws = {pair: len(sets) + n for n, pair in enumerate(pairs)}
    cells = []
    for column, (s, v, y) in enumerate(events):
        cells += [(s, column, 1.0), (laws[v, y], column, 1.0)]  # P(tree), E(v, y)
        for place, n in enumerate(v):
            cells.append((laws[v[:place], n], column, 1.0))  # + A(vⁱn)
        for place, n in itertools.product(range(len(v) + 1), tokens):
            cells.append((laws[v[:place], n], column, -float(target(v[:place])[n])))  # − A(vⁱ) h
    rows, columns, values = map(np.array, zip(*cells))
    shape = len(sets) + len(laws), len(events)
    solve: Any = linprog  # its stubs know no sparse matrix
    found = solve(
        [-float(len(v)) for _, v, _ in events],
        A_eq=csr_array((values, (rows, columns)), shape=shape),
        b_eq=[*sets.values(), *[0.0] * len(laws)],
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the linear programme failed: {found.message}")
    return -float(found.fun)


def _prefixes(tree: Tree, prefix: Prefix = ()) -> set[Prefix]:
    """The prefixes that a tree holds, the empty one included."""
    found = {prefix}
    for token, below in tree:
        found |= _prefixes(below, (*prefix, token))
    return found
