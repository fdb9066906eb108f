"""The rule's step of a decoding round: test the drafted tokens, and correct the first rejection.

A candidate n is accepted iff u·p_n < b_n·p_n. Behind the first rejection nothing counts; the
rejected token is replaced by one of the rule's recovery distribution. Where all drafts are accepted
the bonus token is drawn from q. Any registered rule runs here through `accept_at` and `recover`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from real_models.distributions import sample_tokens
from theory import Pair, Rule

__all__ = ["Candidates", "Verdict", "verify"]

Place = tuple[int, int]  # (text, place in its draft)

_PLACES_AT_ONCE = {"cpu": 1}  # of each text; on other devices all


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
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = np.array([len(drafted) for drafted in self.tokens])
        object.__setattr__(self, "_starts", np.cumsum(lengths) - lengths)

    def pair(self, places: Sequence[Place], *, sort: bool = False) -> Pair:
        """The rows at some places, prepared for a rule: after top-k they are 20 tokens long."""
        drafted = [int(self._starts[text]) + place for text, place in places]
        verified = [row + text for row, (text, _) in zip(drafted, places)]
        chosen = {"p": (self.p, drafted), "q": (self.q, verified)}
        if self.p_raw is not None and self.q_raw is not None:
            chosen |= {"p_raw": (self.p_raw, drafted), "q_raw": (self.q_raw, verified)}
        rows = {name: _native(values[index]) for name, (values, index) in chosen.items()}
        # Every row comes from one function of logits, which has checked them.
        return Pair.prepare(**rows, validate=False, sort=sort)

    def drafted_at(self, places: Sequence[Place]) -> list[int]:
        """The tokens drafted at some places."""
        return [self.tokens[text][place] for text, place in places]

    def bonus(self, texts: Sequence[int]) -> torch.Tensor:
        """The verifier's rows behind the whole draft of some texts."""
        return self.q[[int(self._starts[i]) + len(self.tokens[i]) + i for i in texts]]


@dataclass(frozen=True)
class Verdict:
    """How many drafts of a text were accepted, and the token that follows them."""

    accepted: int
    token: int


def verify(rule: Rule, candidates: Candidates, uniforms: np.ndarray) -> list[Verdict]:
    """Test the drafts of every text and draw the token that follows the accepted ones.

    uniforms : [texts, m + 1, 2] in [0, 1), m at least the longest draft: for the test of the draft
    at each place, and for the token drawn there. Which of them are read depends on what happens;
    what each one means does not.
    """
    texts = range(len(candidates.tokens))
    accepted, token = [0] * len(texts), [-1] * len(texts)
    open_ = [i for i in texts if candidates.tokens[i]]
    while open_:
        places = _next_places(candidates, open_, accepted)
        pair = candidates.pair(places)
        passed = _test(rule, pair, candidates.drafted_at(places), _at(uniforms, places, 0))
        rejected = _count(places, passed, accepted)
        if rejected:
            pair = pair if rejected == places else candidates.pair(rejected)
            candidate = pair.locate(_index(pair, candidates.drafted_at(rejected)))
            law = rule.recover(pair, candidate)
            drawn = _index(pair, _draw(law, _at(uniforms, rejected, 1)))
            for (text, _), recovered in zip(rejected, pair.tokens_at(drawn).tolist()):
                token[text] = recovered
        open_ = [i for i in open_ if token[i] < 0 and accepted[i] < len(candidates.tokens[i])]
    whole = [i for i in texts if token[i] < 0]
    if whole:
        at = [(i, len(candidates.tokens[i])) for i in whole]
        for text, drawn in zip(whole, _draw(candidates.bonus(whole), _at(uniforms, at, 1))):
            token[text] = drawn
    return [Verdict(*found) for found in zip(accepted, token)]


def _next_places(
    candidates: Candidates, texts: Sequence[int], accepted: Sequence[int]
) -> list[Place]:
    """The places to test now: the next one of each text, or all that are left.

    A place behind a rejection is tested for nothing. On a CPU that costs time; on other devices
    many small steps cost more.
    """
    step = _PLACES_AT_ONCE.get(candidates.p.device.type, math.inf)
    ends = {i: min(accepted[i] + step, len(candidates.tokens[i])) for i in texts}
    return [(i, place) for i in texts for place in range(accepted[i], ends[i])]


def _count(places: list[Place], passed: list[bool], accepted: list[int]) -> list[Place]:
    """Add what was accepted of each text up to its first rejection; return the rejected places."""
    rejected = []
    for text, tested in groupby(zip(places, passed), key=lambda found: found[0][0]):
        flags = [kept for _, kept in tested]
        kept = flags.index(False) if False in flags else len(flags)
        accepted[text] += kept
        if kept < len(flags):
            rejected.append((text, accepted[text]))
    return rejected


def _test(rule: Rule, pair: Pair, drafted: list[int], uniforms: np.ndarray) -> list[bool]:
    """u·p_n < b_n·p_n for one drafted token n per row; ValueError where b_n is no probability."""
    index = pair.locate(_index(pair, drafted))
    probability = _tensor(rule.accept_at(pair, index))
    wrong = ~((probability >= 0) & (probability <= 1 + 1e-9))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{rule!r} accepts token {drafted[row]} with {float(probability[row])}, which is no "
            "probability"
        )
    mass = _tensor(pair.p).gather(-1, _tensor(index)[:, None])[:, 0]
    u = torch.tensor(uniforms, dtype=mass.dtype, device=mass.device)
    return (u * mass < probability * mass).tolist()


def _draw(law: Any, uniforms: np.ndarray) -> list[int]:
    return sample_tokens(_tensor(law), uniforms.tolist())


def _at(uniforms: np.ndarray, places: Sequence[Place], purpose: int) -> np.ndarray:
    texts, where = zip(*places)
    return uniforms[list(texts), list(where), purpose]


def _index(pair: Pair, tokens: list[int]) -> Any:
    """Integers as an array beside the rows."""
    ids = torch.tensor(tokens)
    return ids.numpy() if isinstance(pair.q, np.ndarray) else ids.to(pair.q.device)


def _native(rows: torch.Tensor) -> Any:
    """The same memory as a numpy array where that is faster: on a CPU."""
    return rows.numpy() if rows.device.type == "cpu" else rows


def _tensor(rows: Any) -> torch.Tensor:
    return torch.as_tensor(rows)
