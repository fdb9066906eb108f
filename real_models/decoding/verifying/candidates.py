"""The drafts of a batch of texts, with the rows that they are tested on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from real_models.laws.distributions import native
from theory import Pair

__all__ = ["Candidates", "Place", "Verdict", "check_drafts", "check_mass", "check_rows", "take"]

Place = tuple[int, int]  # (text, place in its draft)


@dataclass(frozen=True)
class Candidates:
    """The drafted tokens of a batch of texts, with the rows that they are tested on.

    tokens : one list per text, k_i tokens.
    p      : [Σ k_i, V], text after text: what each token was drawn from.
    q      : [Σ (k_i + 1), V], text after text: the verifier at each token, then behind the last.
    p_raw, q_raw : the same before temperature and filters, for the rules that read them.
    """

    tokens: list[list[int]]
    p: torch.Tensor
    q: torch.Tensor
    p_raw: torch.Tensor | None = None
    q_raw: torch.Tensor | None = None

    @cached_property
    def _starts(self) -> list[int]:
        """The row of p at which the drafts of each text begin."""
        return list(accumulate((len(drafted) for drafted in self.tokens), initial=0))

    def pair(self, places: Sequence[Place], *, sort: bool = False) -> Pair:
        """The rows at some places, prepared for a rule: after top-k they are 20 tokens long."""
        chosen = self.rows(*self._rows(places))
        # Every row comes from one function of logits, which has checked them.
        rows = {name: native(values) for name, values in chosen.items()}
        return Pair.prepare(**rows, validate=False, sort=sort)

    def rows(self, drafted: Any, verified: Any) -> dict[str, torch.Tensor]:
        """Some rows of p and of q, and those before filters where there are any, by name."""
        chosen = {"p": take(self.p, drafted), "q": take(self.q, verified)}
        if self.p_raw is not None and self.q_raw is not None:
            chosen |= {"p_raw": take(self.p_raw, drafted), "q_raw": take(self.q_raw, verified)}
        return chosen

    def drafted_at(self, places: Sequence[Place]) -> list[int]:
        """The tokens drafted at some places."""
        return [self.tokens[text][place] for text, place in places]

    def probabilities(self, places: Sequence[Place]) -> tuple[Any, Any]:
        """p and q of the tokens drafted at some places."""
        drafted, verified = self._rows(places)
        tokens = self.drafted_at(places)
        return native(self.p)[drafted, tokens], native(self.q)[verified, tokens]

    def row(self, text: int, place: int) -> int:
        """The row of p at a place of a draft."""
        return self._starts[text] + place

    def _rows(self, places: Sequence[Place]) -> tuple[list[int], list[int]]:
        """The rows of p and of q at some places."""
        drafted = [self.row(text, place) for text, place in places]
        return drafted, [row + text for row, (text, _) in zip(drafted, places)]

    def bonus(self, texts: Sequence[int]) -> torch.Tensor:
        """The verifier's rows behind the whole draft of some texts."""
        return take(self.q, [self._starts[i] + len(self.tokens[i]) + i for i in texts])


@dataclass(frozen=True)
class Verdict:
    """How many drafts of a text were accepted, and the token that follows them."""

    accepted: int
    token: int


def check_drafts(candidates: Candidates) -> None:
    """Raise ValueError for drafts that were not drawn from their rows of p."""
    check_rows(candidates)
    lengths = [len(drafted) for drafted in candidates.tokens]
    places = [(text, place) for text, count in enumerate(lengths) for place in range(count)]
    if places:
        check_mass(candidates, places, candidates.probabilities(places)[0])


def check_rows(candidates: Candidates) -> None:
    """Raise ValueError for rows that are not one for each draft, and for what is no token."""
    vocabulary, drafts = candidates.q.shape[-1], sum(map(len, candidates.tokens))
    rows, wanted = (len(candidates.p), len(candidates.q)), (drafts, drafts + len(candidates.tokens))
    if rows != wanted:
        raise ValueError(f"the drafts need {wanted} rows of p and q, got {rows}")
    for text, drafted in enumerate(candidates.tokens):
        for place, token in enumerate(drafted):
            if not 0 <= token < vocabulary:
                raise ValueError(
                    f"text {text} drafts {token} at place {place}, not a token index in "
                    f"[0, {vocabulary - 1}]"
                )


def check_mass(candidates: Candidates, places: list[Place], mass: Any) -> None:
    """Raise ValueError for a token without mass: u·p < q would accept what the rule never does."""
    if bool((mass > 0).all()):
        return
    at = [drawn > 0 for drawn in mass.tolist()].index(False)
    (text, place), token = places[at], candidates.drafted_at(places)[at]
    raise ValueError(f"text {text}: p gives no mass to the token {token} drafted at place {place}")


def take(rows: Any, index: Any) -> Any:
    """Some rows, by a list, a slice or a tensor; neighbours are not copied."""
    if isinstance(index, torch.Tensor | slice):
        return rows[index]
    first, behind = index[0], index[0] + len(index)
    return rows[first:behind] if index == list(range(first, behind)) else rows[index]
