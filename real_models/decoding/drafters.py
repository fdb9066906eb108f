"""What proposes tokens to a verifier: a model that samples or takes its likeliest token, a lookup.

A drafter proposes up to `count` tokens for each text of a batch, with the distribution that each
one was drawn from. A deterministic proposal (greedy drafting, prompt lookup) was drawn from a
one-hot distribution, and that is the p of the test, whatever the draft model thought.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from real_models.errors import UserError
from real_models.laws.distributions import sample_tokens
from real_models.laws.settings_laws import Laws
from real_models.models.cached_model import CachedModel
from real_models.models.logits import CutMass
from sim.checks import shorten

__all__ = [
    "Drafter",
    "ModelDrafter",
    "NoDrafter",
    "PromptLookup",
    "Proposal",
    "by_text",
    "parse_lookup",
    "until_end",
]

_PREFIX = "lookup"


@dataclass(frozen=True)
class Proposal:
    """The drafted tokens of each text, and the rows they were drawn from, text after text.

    tokens : one list per text, in the order of the texts.
    p      : [N, V] with N tokens in all, float64; p_raw : the same before temperature and filters,
             None unless asked for.
    """

    tokens: list[list[int]]
    p: torch.Tensor
    p_raw: torch.Tensor | None = None


class Drafter(Protocol):
    """The texts come in the same order at every call; `keep_rows` goes on with some of them."""

    def prefill(self, texts: Sequence[list[int]]) -> None:
        """Compute what depends on all but the last token of the texts."""

    def propose(self, texts: Sequence[list[int]], count: int, uniforms: np.ndarray) -> Proposal:
        """Up to `count` tokens per text; `uniforms` [texts, count] decide what is sampled."""

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with some of the texts, in the order given."""


class ModelDrafter:
    """Drafts token by token from a language model; a draft stops behind an end token.

    raw : give the distributions before temperature and filters too.
    """

    def __init__(
        self, model: CachedModel, laws: Laws, end_tokens: Sequence[int], *, raw: bool = False
    ) -> None:
        self._model, self._laws, self._raw = model, laws, raw
        self.ends = frozenset(end_tokens)

    @property
    def cut(self) -> CutMass:
        """How much of the draft's distributions lay beyond the vocabulary, so far."""
        return self._model.cut

    def check_texts(self, count: int) -> None:
        """Raise UserError where the draft cannot follow so many texts side by side."""
        self._model.check_texts(count)

    def prefill(self, texts: Sequence[list[int]]) -> None:
        self._model.logits([text[:-1] for text in texts], [1] * len(texts))

    def propose(self, texts: Sequence[list[int]], count: int, uniforms: np.ndarray) -> Proposal:
        grown, laws, raw = [list(text) for text in texts], [], []
        for place in range(count):
            logits = torch.cat(self._model.logits(grown, [1] * len(grown)))
            laws.append(self._laws.draft(logits, grown))
            if self._raw:
                raw.append(self._laws.raw(logits))
            for text, token in zip(grown, sample_tokens(laws[-1], uniforms[:, place])):
                text.append(token)
            if all(self.ends.intersection(g[len(t) :]) for g, t in zip(grown, texts)):
                break
        tokens = [until_end(g[len(t) :], self.ends) for g, t in zip(grown, texts)]
        lengths = [len(drafted) for drafted in tokens]
        return Proposal(tokens, by_text(laws, lengths), by_text(raw, lengths) if raw else None)

    def branch(
        self,
        texts: Sequence[list[int]],
        nodes: Sequence[list[int]],
        children: int,
        contexts: Sequence[list[int]],
    ) -> torch.Tensor:
        """What the children of a tree's last level are drawn from, [contexts, V].

        contexts : each text with the path to each node of that level, text after text.
        """
        logits = self._model.branch(texts, nodes, children, len(contexts) // len(texts))
        return self._laws.draft(logits.flatten(0, 1), contexts)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self._model.keep_rows(rows)


class PromptLookup:
    """Proposes what followed the last tokens of a text where they stood before.

    The most recent occurrence of the longest sequence counts, from `longest` tokens down to 1; a
    text without a repetition gets no proposal. The proposal is certain: p is one-hot. It costs no
    forward pass, and pays where a text repeats its prompt: editing, summarising, code.
    """

    def __init__(
        self, vocabulary: int, device: torch.device, end_tokens: Sequence[int], longest: int = 3
    ) -> None:
        if longest < 1:
            raise UserError(f"a lookup needs sequences of at least one token, got {longest}")
        self._vocabulary, self._device = vocabulary, device
        self._ends = frozenset(end_tokens)
        self.longest = longest

    def prefill(self, texts: Sequence[list[int]]) -> None:
        pass

    def propose(self, texts: Sequence[list[int]], count: int, uniforms: np.ndarray) -> Proposal:
        tokens = [until_end(self._continuation(text, count), self._ends) for text in texts]
        flat = [token for drafted in tokens for token in drafted]
        rows = torch.zeros(len(flat), self._vocabulary, dtype=torch.float64, device=self._device)
        rows[range(len(flat)), flat] = 1.0
        return Proposal(tokens, rows, rows)

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass

    def _continuation(self, text: list[int], count: int) -> list[int]:
        """The tokens behind the latest earlier occurrence of the text's own end, up to `count`."""
        ids = np.asarray(text)
        for size in range(min(self.longest, len(ids) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], size)
            places = np.flatnonzero((windows == ids[-size:]).all(axis=-1))
            if places.size:
                start = int(places[-1]) + size
                return text[start : start + count]
        return []


class NoDrafter:
    """Proposes nothing: every token is the verifier's own, which is the plain decoding loop."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._empty = torch.zeros(0, vocabulary, dtype=torch.float64, device=device)

    def prefill(self, texts: Sequence[list[int]]) -> None:
        pass

    def propose(self, texts: Sequence[list[int]], count: int, uniforms: np.ndarray) -> Proposal:
        return Proposal([[] for _ in texts], self._empty, self._empty)

    def keep_rows(self, rows: Sequence[int]) -> None:
        pass


def parse_lookup(text: str) -> int | None:
    """The longest sequence that `lookup` (3) or `lookup:5` looks for; None for other texts.

    Raises UserError when what follows `lookup:` is not a positive integer.
    """
    name, found, number = text.partition(":")
    if name != _PREFIX:
        return None
    if not found:
        return 3
    if not number.isdecimal() or len(number) > 9 or int(number) < 1:
        raise UserError(f"draft {shorten(text)!r} is not like 'lookup' or 'lookup:3'")
    return int(number)


def until_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens up to the first end token, that one included: behind it there is no text."""
    places = (place for place, token in enumerate(tokens, start=1) if token in ends)
    return tokens[: next(places, len(tokens))]


def by_text(steps: list[torch.Tensor], lengths: list[int]) -> torch.Tensor:
    """Rows [B, V] per place → [N, V], the first lengths[i] places of each text after another."""
    stacked = torch.stack(steps, dim=1)
    return torch.cat([rows[:length] for rows, length in zip(stacked, lengths)])
