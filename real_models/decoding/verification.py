"""The rule's step of a decoding round: test the drafted tokens, and correct the first rejection.

A candidate n is accepted iff u·p_n < b_n·p_n. Behind the first rejection nothing counts; the
rejected token is replaced by one of the rule's recovery distribution. Where all drafts are accepted
the bonus token is drawn from q. Any registered rule runs here through `accept_at` and `recover`.
One that accepts whatever strict sampling accepts is asked only where u·p_n ≥ q_n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from real_models.decoding.placed_rules import PlacedRules
from real_models.laws.distributions import native, sample_tokens
from theory import Pair, Rule
from theory.arrays import take_rows

__all__ = ["Candidates", "Place", "Verdict", "check_drafts", "verify"]

Place = tuple[int, int]  # (text, place in its draft)

_PLACES_AT_ONCE = {"cpu": 1}  # of each text; on other devices all of them


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
        drafted, verified = self._rows(places)
        chosen = {"p": (self.p, drafted), "q": (self.q, verified)}
        if self.p_raw is not None and self.q_raw is not None:
            chosen |= {"p_raw": (self.p_raw, drafted), "q_raw": (self.q_raw, verified)}
        rows = {name: native(_take(values, index)) for name, (values, index) in chosen.items()}
        # Every row comes from one function of logits, which has checked them.
        return Pair.prepare(**rows, validate=False, sort=sort)

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
        return _take(self.q, [self._starts[i] + len(self.tokens[i]) + i for i in texts])


@dataclass(frozen=True)
class Verdict:
    """How many drafts of a text were accepted, and the token that follows them."""

    accepted: int
    token: int


def verify(rule: Rule | PlacedRules, candidates: Candidates, uniforms: np.ndarray) -> list[Verdict]:
    """Test the drafts of every text and draw the token that follows the accepted ones.

    rule : one for all places, or a schedule of them.
    uniforms : [texts, m + 1, 2] in [0, 1), m at least the longest draft: for the test of the draft
    at each place, and for the token drawn there. Which of them are read depends on what happens;
    what each one means does not.

    Raises ValueError for a draft that was not drawn from its row of p: an id outside the
    vocabulary, or one to which p gives no mass; and for rows that are not one for each draft.
    """
    _require_drafts(candidates)
    rules = PlacedRules.of(rule)
    texts = range(len(candidates.tokens))
    step = _PLACES_AT_ONCE.get(candidates.p.device.type)
    open_ = _open_places(rules, candidates, uniforms)
    ended: dict[int, Verdict] = {}
    while any(open_):
        # A place behind a rejection is tested for nothing. On a CPU that costs time; on other
        # devices many small steps cost more.
        places = [(text, place) for text in texts for place in open_[text][:step]]
        for rule, group in rules.groups(places):
            found = _rejections(rule, candidates, [places[i] for i in group], uniforms)
            for text, verdict in found.items():
                if text not in ended or verdict.accepted < ended[text].accepted:
                    ended[text] = verdict
        open_ = [[] if text in ended or not step else open_[text][step:] for text in texts]
    whole = [(text, len(candidates.tokens[text])) for text in texts if text not in ended]
    if whole:
        law = candidates.bonus([text for text, _ in whole])
        for (text, count), token in zip(whole, sample_tokens(law, _at(uniforms, whole, 1))):
            ended[text] = Verdict(count, token)
    return [ended[text] for text in texts]


def check_drafts(candidates: Candidates) -> None:
    """Raise ValueError for drafts that were not drawn from their rows of p."""
    _require_drafts(candidates)
    lengths = [len(drafted) for drafted in candidates.tokens]
    places = [(text, place) for text, count in enumerate(lengths) for place in range(count)]
    if places:
        _require_mass(candidates, places, candidates.probabilities(places)[0])


def _require_drafts(candidates: Candidates) -> None:
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


def _require_mass(candidates: Candidates, places: list[Place], mass: Any) -> None:
    """Raise ValueError for a token without mass: u·p < q would accept what the rule never does."""
    if bool((mass > 0).all()):
        return
    at = [drawn > 0 for drawn in mass.tolist()].index(False)
    (text, place), token = places[at], candidates.drafted_at(places)[at]
    raise ValueError(f"text {text}: p gives no mass to the token {token} drafted at place {place}")


def _open_places(
    rules: PlacedRules, candidates: Candidates, uniforms: np.ndarray
) -> list[list[int]]:
    """The places of each text that only the rule can decide."""
    lengths = [len(drafted) for drafted in candidates.tokens]
    places = [(text, place) for text, count in enumerate(lengths) for place in range(count)]
    if not places:
        return [[] for _ in lengths]
    p, q = candidates.probabilities(places)
    _require_mass(candidates, places, p)
    if not all(rule.keeps_strict for rule in rules.rules):
        return [list(range(count)) for count in lengths]
    kept = _beside(_at(uniforms, places, 0), p) * p < q
    open_: list[list[int]] = [[] for _ in lengths]
    for (text, place), settled in zip(places, kept.tolist()):
        if not settled:
            open_[text].append(place)
    return open_


def _rejections(
    rule: Rule, candidates: Candidates, places: list[Place], uniforms: np.ndarray
) -> dict[int, Verdict]:
    """The verdict of each text that a draft at one of these places is rejected in."""
    pair, drafted = candidates.pair(places), candidates.drafted_at(places)
    index = pair.locate(_beside(drafted, pair.q))
    passed = _test(rule, pair, index, drafted, _at(uniforms, places, 0))
    first: dict[int, int] = {}  # by text, the row of its first rejection
    for row, ((text, _), kept) in enumerate(zip(places, passed)):
        if not kept:
            first.setdefault(text, row)
    if not first:
        return {}
    rows = list(first.values())
    law = torch.as_tensor(_take(rule.recover(pair, index), rows))
    drawn = sample_tokens(law, _at(uniforms, [places[row] for row in rows], 1))
    tokens = pair.token[rows, drawn].tolist()
    return {text: Verdict(places[row][1], new) for (text, row), new in zip(first.items(), tokens)}


def _test(
    rule: Rule, pair: Pair, index: Any, drafted: list[int], uniforms: list[float]
) -> list[bool]:
    """u·p_n < b_n·p_n for one drafted token n per row; ValueError where b_n is no probability."""
    probability = rule.accept_at(pair, index)
    wrong = ~((probability >= 0) & (probability <= 1 + 1e-9))
    if bool(wrong.any()):
        row = wrong.tolist().index(True)
        raise ValueError(
            f"{rule!r} accepts token {drafted[row]} with {float(probability[row])}, which is no "
            "probability"
        )
    mass = take_rows(pair.xp, pair.p, index[:, None])[:, 0]
    return (_beside(uniforms, mass) * mass < probability * mass).tolist()


def _at(uniforms: np.ndarray, places: Sequence[Place], purpose: int) -> list[float]:
    texts, where = zip(*places)
    return uniforms[list(texts), list(where), purpose].tolist()


def _beside(values: list[Any], rows: Any) -> Any:
    """Numbers as an array of the kind of the rows, in double precision or as integers.

    Never by way of single precision, in which a uniform just below 1 is 1.
    """
    array = np.array(values)  # Python's numbers: float64 or int64
    return array if isinstance(rows, np.ndarray) else torch.as_tensor(array, device=rows.device)


def _take(rows: Any, index: list[int]) -> Any:
    """Some rows; neighbours are not copied."""
    first, behind = index[0], index[0] + len(index)
    return rows[first:behind] if index == list(range(first, behind)) else rows[index]
