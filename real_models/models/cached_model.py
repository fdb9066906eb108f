"""A language model that follows growing texts: it computes what its cache does not hold yet.

    model = CachedModel(pair.verifier, pair.vocabulary)
    logits = model.logits(texts, counts)  # what the model says after each of the last tokens
    logits = model.branch(texts, nodes, children, count)  # and behind the nodes of a tree

The cache is a memo of the texts. Each call compares them with what is cached, forgets the tail that
is no longer there (rejected drafts) and computes the tail that is new, so that no caller counts
positions. Texts of a batch differ in length: new tokens are aligned to the right, and places that
hold nothing of a text are masked. In float32 the result does not depend on what was cached, up to
rounding; in bfloat16 it does by a percent of total variation. Layers with a sliding window keep the
whole text too, so that any tail of it can be forgotten: see `rollback`. The nodes of a tree stand
behind all columns of the texts, and are forgotten with the next text.
"""

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import torch
from transformers import PreTrainedModel

from real_models.models.branches import depths, path_to, tree_mask
from real_models.models.compatibility import head_of, model_device
from real_models.models.logits import CutMass, LogitReader
from real_models.models.rollback import check_texts, rollback_cache, takes, takes_trees

__all__ = ["CachedModel"]

# Columns without a token are dropped when a cache has this many for each token of the longest text.
_SPARSE = 2


class CachedModel:
    """One model, its cache, and the texts whose keys and values the cache holds.

    model      : a causal language model in evaluation mode.
    vocabulary : the leading columns of its logits that count; `cut` is the mass of the others.
    role       : `draft` or `verifier`, for error messages.

    Raises UserError naming the model where it has a state that cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int, role: str = "model") -> None:
        self.device = model_device(model)
        self._model = model
        self._reader = LogitReader(vocabulary, role)
        self._cache = rollback_cache(model, role)
        self._held: list[list[int]] = []  # the cached tokens of each text
        self._columns: list[list[int]] = []  # and the column of the cache where each one is
        self._nodes: list[list[int]] = []  # the tree of each text that the last columns hold
        self._width = 0  # columns of the cache
        self._takes_trees = takes_trees(model, role)

    @property
    def vocabulary(self) -> int:
        """The columns of the logits that count."""
        return self._reader.vocabulary

    @property
    def cut(self) -> CutMass:
        """How much of the distributions lay on columns beyond the vocabulary, so far."""
        return self._reader.cut

    def check_texts(self, count: int) -> None:
        """Raise UserError where the model cannot follow so many texts side by side."""
        check_texts(self._model, self._reader.role, count)

    @torch.inference_mode()
    def logits(self, texts: Sequence[list[int]], counts: Sequence[int]) -> list[torch.Tensor]:
        """The logits that follow each of the last `counts[i]` ≥ 1 tokens of text i.

        One tensor [counts[i], V] per text, in the order of the texts, which must be that of the
        calls before (see `keep_rows`). Raises UserError where a model whose cache cannot hold texts
        of different length is given more than one, and LogitsError where the model's output is no
        distribution.
        """
        if not self._held:
            self.check_texts(len(texts))
            self._held, self._columns = [[] for _ in texts], [[] for _ in texts]
        self._forget(texts, counts)
        new = [text[len(held) :] for text, held in zip(texts, self._held)]
        logits = self._forward(new, max(counts)).logits
        if self._cache is not None:
            self._remember(new)
        return [
            self._reader.read(rows[len(rows) - count :], len(text) - count + 1, place)
            for place, (rows, text, count) in enumerate(zip(logits, texts, counts))
        ]

    @torch.inference_mode()
    def branch(
        self, texts: Sequence[list[int]], nodes: Sequence[list[int]], children: int, count: int
    ) -> torch.Tensor:
        """The logits behind the last `count` of a text's end and the nodes of its tree.

        nodes : the tokens of each text's tree, breadth first, all levels whole (see `branches`).

        One tensor [B, count, V]; from the end of the text on where count is 1 + the nodes. All
        nodes go through one pass, with those that the call before had computed kept, where the
        model's attention takes a mask for each node; else each path is a text of its own.
        """
        if not self._takes_trees:
            return self._along_paths(texts, nodes, children, count)
        self._grow_from(texts, nodes, count)
        new = [text[len(held) :] for text, held in zip(texts, self._held)]
        logits = self._forward(new, count, nodes, children).logits
        self._remember(new, nodes)
        return torch.stack(
            [
                self._reader.read(rows[len(rows) - count :], len(text), place)
                for place, (rows, text) in enumerate(zip(logits, texts))
            ]
        )

    def _along_paths(
        self, texts: Sequence[list[int]], nodes: Sequence[list[int]], children: int, count: int
    ) -> torch.Tensor:
        """The same leaf by leaf: what two paths share is in the cache."""
        size = len(nodes[0])
        inner = (size - children) // children if size else -1  # the nodes that have children
        first, found = size - count, {}
        for leaf in range(max(inner, 0), size) if size else [-1]:
            path = [-1, *path_to(leaf, children)]
            asked = [node for node in path if node >= first and node not in found]
            if asked:
                whole = [t + [n[node] for node in path[1:]] for t, n in zip(texts, nodes)]
                rows = self.logits(whole, [len(asked)] * len(whole))
                found |= dict(zip(asked, torch.stack(rows, dim=1)))
        return torch.stack([found[node] for node in range(first, size)], dim=1)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with some of the texts, in the order given."""
        if self._cache is not None and list(rows) != list(range(len(self._held))):
            self._cache.batch_select_indices(torch.tensor(rows, device=self.device))
        self._held = [self._held[row] for row in rows]
        self._columns = [self._columns[row] for row in rows]
        self._nodes = [self._nodes[row] for row in rows] if self._nodes else []

    def _grow_from(
        self, texts: Sequence[list[int]], nodes: Sequence[list[int]], count: int
    ) -> None:
        """Keep the cached part of the trees, or drop it where it is asked for or is another."""
        known = len(self._nodes[0]) if self._nodes else 0
        cached = self._nodes or [[] for _ in texts]
        grows = [tree[:known] for tree in nodes] == cached and self._held == list(texts)
        if not (grows and count <= len(nodes[0]) - known):
            if not self._held:
                self.check_texts(len(texts))
                self._held, self._columns = [[] for _ in texts], [[] for _ in texts]
            self._forget(texts, [1] * len(texts))

    def _forget(self, texts: Sequence[list[int]], counts: Sequence[int]) -> None:
        """Drop cached tokens that the texts have not, or whose logits are asked for again.

        Trees stand behind all texts, so that the cut drops them as well.
        """
        self._nodes = []
        for held, columns, text, count in zip(self._held, self._columns, texts, counts):
            length = min(_common(held, text), len(text) - count)
            del held[length:], columns[length:]
        width = max((columns[-1] + 1 for columns in self._columns if columns), default=0)
        if self._cache is not None:
            self._cache.crop(width - self._width)
            self._width = width
            longest = max(map(len, self._held))
            if width > _SPARSE * longest > 0:
                self._compact(longest)

    def _forward(
        self,
        new: list[list[int]],
        count: int,
        nodes: Sequence[list[int]] | None = None,
        children: int = 1,
    ):
        """One pass over the new tokens and nodes, with the logits at the last `count` columns."""
        width, known = max(map(len, new)), len(self._nodes[0]) if self._nodes else 0
        size = len(nodes[0]) if nodes else 0
        ids = np.zeros((len(new), width + size - known), dtype=np.int64)
        places = np.zeros_like(ids)
        mask = np.zeros((len(new), self._width + width), dtype=np.int64)
        for row, (tokens, held, columns) in enumerate(zip(new, self._held, self._columns)):
            start, length = width - len(tokens), len(held) + len(tokens)
            ids[row, start:width] = tokens
            places[row, start:width] = range(len(held), length)
            mask[row, columns] = 1
            mask[row, self._width + start :] = 1
            if nodes:
                ids[row, width:] = nodes[row][known:]
                places[row, width:] = length + depths(size, children)[known:]
        if nodes and size > known:
            starts = [width - len(tokens) for tokens in new]
            shape = (self._width, starts, width, (known, size), children)
            attended = self._added(tree_mask(self._columns, *shape))
        else:
            attended = None if mask.all() else torch.from_numpy(mask).to(self.device)
        more = {} if self._cache is None else {"cache": self._cache, "use_cache": True}
        if takes(self._model, "position_ids"):
            more["position_ids"] = torch.from_numpy(places).to(self.device)
        return self._model(
            input_ids=torch.from_numpy(ids).to(self.device),
            attention_mask=attended,
            **more,
            **head_of(self._model, count),
        )

    def _added(self, allowed: np.ndarray) -> torch.Tensor:
        """A mask [B, 1, Q, K] that is added to the scores of attention."""
        kind = self._model.dtype
        mask = torch.full(allowed.shape, torch.finfo(kind).min, dtype=kind)
        return mask.masked_fill_(torch.from_numpy(allowed), 0.0)[:, None].to(self.device)

    def _remember(self, new: list[list[int]], nodes: Sequence[list[int]] | None = None) -> None:
        """Note which tokens the cache holds now, and where."""
        end = self._width + max(map(len, new))
        for held, columns, tokens in zip(self._held, self._columns, new):
            columns += range(end - len(tokens), end)
            held += tokens
        self._width = end
        if nodes:
            known = len(self._nodes[0]) if self._nodes else 0
            self._width = end + len(nodes[0]) - known
            self._nodes = [list(tree) for tree in nodes]

    def _compact(self, longest: int) -> None:
        """Move the tokens of every text to the last `longest` columns, in place of all columns."""
        index = torch.zeros(len(self._held), longest, dtype=torch.int64)
        for row, columns in enumerate(self._columns):
            index[row, longest - len(columns) :] = torch.tensor(columns)
            columns[:] = range(longest - len(columns), longest)
        index = index.to(self.device)[:, None, :, None]
        for layer in self._cache.layers:
            if layer.keys is None:  # a layer that shares the states of another
                continue
            layer.keys = _gathered(layer.keys, index)
            layer.values = _gathered(layer.values, index)
        self._width = longest


def _gathered(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Columns `index` [B, 1, W, 1] of cached values [B, H, L, D]."""
    heads, size = values.shape[1], values.shape[3]
    return values.gather(2, index.to(values.device).expand(-1, heads, -1, size))


def _common(held: list[int], text: list[int]) -> int:
    """How many leading tokens two texts share; they differ at most near the end."""
    shorter = min(len(held), len(text))
    differing = takewhile(lambda n: held[:n] != text[:n], range(shorter, 0, -1))
    return shorter - sum(1 for _ in differing)
