"""Rows of which only the likeliest tokens are known, as servers tell them.

A server tells the log-probabilities of the K likeliest tokens, at temperature 1 and before any
filter, and that of the token that stands in the text, which need not be among them. What the
others have is known in sum only:

    rest = 1 − Σ exp(logprob),        each of them at most the least of the likeliest.

Nothing is renormalised: a rest that is negative by rounding counts as none, and a sum beyond
1 + OVERSHOOT is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from real_models.errors import UserError

__all__ = ["OVERSHOOT", "ROUNDING", "Listed", "check_listed"]

OVERSHOOT = 1e-4
"""How far a sum of probabilities may exceed 1: the rounding of single precision."""
ROUNDING = 2e-5
"""How far the sum of a softmax in single precision is from 1: a smaller rest may be as large."""


@dataclass(frozen=True, eq=False)
class Listed:
    """The known tokens of n rows over a vocabulary of V.

    tokens   : int64 [n, K + 1]. The first K are the likeliest, in descending order, −1 where a row
               lists fewer; the last is the text's own token where it is none of them, else −1.
    logprobs : float64 [n, K + 1], log-probabilities at temperature 1; −∞ where there is no token.
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    vocabulary: int

    @property
    def counts(self) -> np.ndarray:
        """How many of the likeliest tokens each row lists, [n]; at most K."""
        return (self.tokens[:, :-1] >= 0).sum(axis=-1)

    @property
    def known(self) -> np.ndarray:
        """How many tokens of each row are known, the text's own included, [n]."""
        return (self.tokens >= 0).sum(axis=-1)

    @cached_property
    def mass(self) -> np.ndarray:
        """The probability of the tokens that are known, [n]."""
        return np.exp(self.logprobs).sum(axis=-1)

    @property
    def rest(self) -> np.ndarray:
        """The probability of all tokens that are not known, [n]; 0 where all of them are."""
        return np.where(self.known < self.vocabulary, np.maximum(1.0 - self.mass, 0.0), 0.0)

    @property
    def least(self) -> np.ndarray:
        """The log-probability of the last of the likeliest tokens, [n]."""
        return np.take_along_axis(self.logprobs, self.counts[:, None] - 1, axis=-1)[:, 0]

    @property
    def most(self) -> np.ndarray:
        """The most that one token can have that is not known, [n]: min(exp least, rest)."""
        return np.minimum(np.exp(self.least), self.rest)

    def rows(self, start: int | None = None, stop: int | None = None) -> "Listed":
        """Rows start … stop−1."""
        return Listed(self.tokens[start:stop], self.logprobs[start:stop], self.vocabulary)

    def logits_of_the_list(self) -> torch.Tensor:
        """Logits [n, V]: the known log-probabilities, −∞ at every other token.

        Their law is the model's under settings that the list decides, and under no others: see
        `real_models.traces.decided`.
        """
        return self._scattered(np.full(len(self.tokens), -np.inf))

    def logits_of_an_even_rest(self) -> torch.Tensor:
        """Logits [n, V]: the known log-probabilities, and the rest spread evenly over the others.

        One of the distributions that agree with the list. It has the model's own largest
        probability, and its own probability of every token that is known.
        """
        others = np.maximum(self.vocabulary - self.known, 1)
        with np.errstate(divide="ignore"):
            return self._scattered(np.log(self.rest / others))

    def _scattered(self, others: np.ndarray) -> torch.Tensor:
        """[n, V] with the known log-probabilities, `others` [n] elsewhere."""
        wide = np.repeat(others[:, None], self.vocabulary + 1, axis=1)
        # What is no token has the number −1: it goes to a column behind the last, which is cut.
        np.put_along_axis(wide, self.tokens, self.logprobs, axis=1)
        return torch.from_numpy(np.ascontiguousarray(wide[:, :-1]))


def check_listed(listed: Listed, where: Callable[[int], str]) -> None:
    """Raise UserError, with `where(row)` and the value, for the first row that is no such list.

    Tokens lie within the vocabulary, once each; log-probabilities are numbers, descend, and are of
    something; the text's own is not above the likeliest; the sum does not exceed 1 beyond
    OVERSHOOT, and the tokens that are not known can hold the rest.
    """
    tokens, logprobs, likely = listed.tokens, listed.logprobs, listed.logprobs[:, :-1]
    _refuse(tokens >= listed.vocabulary, where, lambda at: (
        f"token id {tokens[at]} is outside the vocabulary of {listed.vocabulary}"))  # fmt: skip
    _refuse(~(logprobs < np.inf), where, lambda at: f"a log-probability is {logprobs[at]}")
    _refuse((tokens < 0) & (logprobs > -np.inf), where, lambda at: f"token id {tokens[at]}")
    ordered = np.sort(tokens, axis=-1)
    _refuse((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0), where, lambda at: (
        f"token id {ordered[at[0], at[1] + 1]} is listed twice"))  # fmt: skip
    _refuse(~np.isfinite(likely[:, 0]), where, lambda at: "no token is listed that can come")
    _refuse(likely[:, 1:] > likely[:, :-1], where, lambda at: (
        f"the log-probability {likely[at[0], at[1] + 1]} stands behind {likely[at]}"))  # fmt: skip
    _refuse(logprobs[:, -1] > listed.least, where, lambda at: (
        f"the text's own token has the log-probability {logprobs[at[0], -1]}, more than the "
        f"{listed.least[at]} of one that is listed"))  # fmt: skip
    _refuse(listed.mass > 1.0 + OVERSHOOT, where, lambda at: (
        f"the listed probabilities sum to {listed.mass[at]:.9g}, more than 1"))  # fmt: skip
    short = 1.0 - listed.mass - (listed.vocabulary - listed.known) * np.exp(listed.least)
    _refuse(short > OVERSHOOT, where, lambda at: (
        f"the listed probabilities sum to {listed.mass[at]:.9g}, and what is missing does not go "
        f"into the {listed.vocabulary - listed.known[at]} other tokens of the vocabulary, each "
        f"at most {np.exp(listed.least[at]):.3g}"))  # fmt: skip


def _refuse(wrong: np.ndarray, where: Callable[[int], str], fault: Callable[..., str]) -> None:
    """Raise UserError for the first entry that is wrong."""
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise UserError(f"{where(place[0])}: {fault(place)}")
