"""A tree of drafts behind a text: its shape, and what each of its nodes may attend to.

Every node has K children, in breadth-first order: the children of node n are K·(n + 1) … K·(n + 1)
+ K − 1, and those of the text's end, which is −1, are 0 … K − 1. One pass over all nodes reads them
all if each attends to the text and to the nodes on its own path alone.
"""

from collections.abc import Sequence

import numpy as np

__all__ = ["depths", "path_to", "tree_mask", "tree_size"]


def tree_size(children: int, depth: int) -> int:
    """How many nodes a tree of `depth` levels below the text's end has, K + K² + … ."""
    return sum(children**level for level in range(1, depth + 1))


def path_to(node: int, children: int) -> list[int]:
    """The nodes from the first level to a node, that one included; none for the end, −1."""
    found = []
    while node >= 0:
        found.append(node)
        node = node // children - 1
    return found[::-1]


def depths(nodes: int, children: int) -> np.ndarray:
    """The level of each node, 0 for the children of the text's end."""
    return np.array([len(path_to(node, children)) - 1 for node in range(nodes)], dtype=np.int64)


def tree_mask(
    columns: Sequence[Sequence[int]],
    held: int,
    starts: Sequence[int],
    new: int,
    nodes: tuple[int, int],
    children: int,
) -> np.ndarray:
    """What each new column may attend to, [texts, new columns, all columns], True or False.

    The columns are: `held` of the cache, the nodes[0] nodes of the tree that it holds as its last;
    `new` tokens of the texts, aligned to the right; and the nodes[0] … nodes[1] − 1.

    columns : of each text, the columns of the cache that hold its tokens.
    starts  : of each text, where its own tokens begin among the new ones.
    """
    known, size = nodes
    paths = _paths(size, children)
    allowed = np.zeros((len(columns), new + size - known, held + new + size - known), dtype=bool)
    causal = np.tril(np.ones((new, new), dtype=bool))
    for text, (own, start) in enumerate(zip(columns, starts)):
        allowed[text][:, list(own)] = True
        allowed[text, :new, held : held + new] = causal
        allowed[text, new:, held : held + new] = True
        allowed[text, :, held : held + start] = False
    allowed[:, new:, held - known : held] = paths[known:, :known]
    allowed[:, new:, held + new :] = paths[known:, known:]
    return allowed


def _paths(size: int, children: int) -> np.ndarray:
    """[N, N]: whether a node lies on the path to another, itself included."""
    on = np.eye(size, dtype=bool)
    for node in range(children, size):
        on[node] |= on[node // children - 1]
    return on
