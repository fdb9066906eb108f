"""Several candidates for a place: a tree of drafts, and the one path of it that is tested.

The draft draws K candidates behind its text, K behind each of these, and so on: K + K² + … Kᵐ
nodes, which the verifier reads in one pass. From the text's end on one of K candidates is chosen
with `theory.candidates.select`, whose law g is known, and the choice goes on behind it. So the path
is one draft from g, and every rule and both verifications run on (g, q) as they do on (p, q): the
rule reads g wherever it reads p, and what it emits is exactly `one_step(rule, g, q).output`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from real_models.decoding.drafters import ModelDrafter, Proposal, by_text, until_end
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from real_models.laws.distributions import sample_tokens
from real_models.laws.settings_laws import Laws
from real_models.models.branches import path_to, tree_size
from theory.candidates import select

__all__ = ["MOST_DRAFTS", "DraftTree", "check_candidates", "chosen_path", "grow_tree"]

MOST_DRAFTS = 1024
"""Nodes of a tree at most."""

Watch = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class DraftTree:
    """The drafts behind each text, all levels whole, in the order of `models.branches`.

    nodes : the tokens of each text's tree.
    p     : [B, 1 + inner nodes, V], what the children of the text's end and of each node that has
            children were drawn from.
    """

    nodes: list[list[int]]
    p: torch.Tensor
    children: int
    depth: int

    def path(self, text: int, node: int) -> list[int]:
        """The tokens on the way to a node, that of the node included."""
        return [self.nodes[text][place] for place in path_to(node, self.children)]


def check_candidates(rule: PlacedRules, drafter: object, candidates: int, drafts: int) -> None:
    """Raise UserError for several candidates where they are not defined, with the reason."""
    if candidates == 1 or not drafts:
        return
    if drafts > 64 or tree_size(candidates, drafts) > MOST_DRAFTS:
        raise UserError(
            f"candidates: {candidates} for each of {drafts} places are more than {MOST_DRAFTS} "
            "drafts a round; take fewer of either"
        )
    if rule.reads_raw:
        raise UserError(
            f"candidates: {rule.name} reads the draft's rows before temperature and filters, and "
            "the law of a chosen candidate has none; take one candidate"
        )
    if not isinstance(drafter, ModelDrafter):
        raise UserError(
            "candidates are drawn from a draft model; a lookup proposes one continuation"
        )


def grow_tree(
    drafter: ModelDrafter,
    texts: Sequence[list[int]],
    depth: int,
    children: int,
    uniforms: np.ndarray,
) -> DraftTree:
    """Draw the tree level by level; `uniforms` [texts, nodes] decide the token of each node."""
    tree = DraftTree([[] for _ in texts], torch.empty(0), children, depth)
    rows = []
    for level in range(depth):
        first = tree_size(children, level)
        parents = range(first - children**level, first) if level else range(-1, 0)
        contexts = [text + tree.path(i, n) for i, text in enumerate(texts) for n in parents]
        law = drafter.branch(texts, tree.nodes, children, contexts)
        drawn = uniforms[:, first : tree_size(children, level + 1)]
        for nodes, tokens in zip(tree.nodes, _drawn(law, drawn, children)):
            nodes += tokens
        rows.append(law.reshape(len(texts), len(parents), -1))
    return DraftTree(tree.nodes, torch.cat(rows, dim=1), children, depth)


def chosen_path(
    tree: DraftTree,
    logits: torch.Tensor,
    texts: Sequence[list[int]],
    laws: Laws,
    uniforms: np.ndarray,
    ends: frozenset[int],
    watch: Watch,
) -> tuple[Proposal, torch.Tensor, torch.Tensor]:
    """Choose one candidate at each place; the drafts are (path, g), then q and logits beside them.

    logits   : [texts, 1 + nodes, V], the verifier's behind the text's end and each node.
    uniforms : [texts, m] in [0, 1), one for each choice.
    """
    here, every = [-1] * len(texts), range(len(texts))
    paths: list[list[int]] = [[] for _ in texts]
    g, q, seen = [], [], []
    for place in range(tree.depth + 1):
        at = [node + 1 for node in here]
        seen.append(logits[every, at])
        with watch("distributions"):
            q.append(laws.verifier(seen[-1], [t + p for t, p in zip(texts, paths)]))
        if place == tree.depth:
            break
        with watch("rule"):
            choice = select(tree.p[every, at], q[-1], tree.children)
            drawn = [tree.nodes[i][k * tree.children :][: tree.children] for i, k in enumerate(at)]
            taken = choice.choose(np.array(drawn), uniforms[:, place])
        g.append(choice.law)
        here = [k * tree.children + int(one) for k, one in zip(at, taken)]
        for path, candidates, one in zip(paths, drawn, taken):
            path.append(candidates[int(one)])
    tokens = [until_end(path, ends) for path in paths]
    lengths = [len(path) for path in tokens]
    beside = [length + 1 for length in lengths]
    return Proposal(tokens, by_text(g, lengths)), by_text(q, beside), by_text(seen, beside)


def _drawn(law: torch.Tensor, uniforms: np.ndarray, children: int) -> list[list[int]]:
    """One list of tokens per text: `children` from each of its rows, row after row."""
    asked = uniforms.reshape(len(law), children)
    columns = [sample_tokens(law, asked[:, child]) for child in range(children)]
    return np.stack(columns, axis=1).reshape(len(uniforms), -1).tolist()
