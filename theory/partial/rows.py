r"""Rows of which only the likeliest tokens are listed, and the two rows that bracket all of them.

A server that answers with the top K log-probabilities leaves a rest: mass that lies somewhere on
the unlisted tokens. A *completion* spreads it, with no unlisted token above the least listed one.
Call A the tokens that both lists know, P and Q what draft and verifier have outside A. Then every
completion lies between two rows that are known entirely,

    merged   A and one token (P, Q)          split   A and two tokens (P, 0), (0, Q):

merging all tokens outside A turns the completion into the first, and merging tokens of the second
turns it into a completion (each token (p, q) is (p, 0) and (0, q) merged). What a merge cannot
increase, as a divergence, is therefore at least its value on the merged row and at most that on the
split one; what a merge cannot decrease, as the overlap Σ min(p, q) and the frontier's acceptance,
the other way round (claim 36).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from theory.arrays import SUM_TOLERANCE, refuse_unfit, to_numpy
from theory.pair import Pair

OVERSHOOT = SUM_TOLERANCE["float32"]  # by which a listed row may sum to more than 1
NOTHING = 2e-15  # a rest below it is rounding: the list is the whole row


@dataclass(frozen=True, eq=False)
class PartialRows:
    """Draft and verifier rows by the tokens that are listed; float64, ``[R, L]`` and ``[R]``.

    Column j of a row stands for one token of either list, or for none (all zero). ``known`` says
    whether both probabilities are known there; p, q are 0 where they are not.
    """

    p: Any
    q: Any
    p_known: Any
    q_known: Any
    p_rest: Any  # the mass that no list names, of the draft and of the verifier
    q_rest: Any
    p_cap: Any  # the most that an unlisted token can have
    q_cap: Any
    unlisted: Any  # how many tokens neither list names
    token: Any  # token index of each column, −1 for none
    vocabulary: int
    p_lifted: Any = False  # whether a rest is all that rounding allows, and may be nothing, [R]
    q_lifted: Any = False

    @classmethod
    def of(
        cls,
        draft: tuple[Any, Any],
        verifier: tuple[Any, Any],
        vocabulary: int,
        *,
        caps: tuple[Any, Any] | None = None,
        rounding: float = 0.0,
    ) -> PartialRows:
        """Join the listed tokens ``[R, K]`` and their probabilities of both models, row by row.

        Parameters
        ----------
        draft, verifier : (tokens, probabilities)
            Integer token indices, −1 for no token, and probabilities of the whole row, which sum
            to at most 1; the rest is what is missing. The two may list different numbers.
        vocabulary : int
            V: the number of tokens of a whole row.
        caps : (array [R], array [R]), optional
            The most that an unlisted token can have; by default the least listed probability.
        rounding : float
            By how much the listed may be off in sum: a smaller rest, of a row that has unlisted
            tokens, may be anything up to it. At 0 a list that sums to 1 is the whole row, as that
            of filtered rows is. Softmax rows end nowhere: behind a list that sums to 1 by rounding
            stand tokens that are not at 0, and where the other model has mass rules tell the two
            apart.

        Raises
        ------
        ValueError
            Naming the model, row and value: a token outside the vocabulary or listed twice, a
            probability that is none, a row that sums to more than 1.
        """
        lists = {"draft": _listed("draft", draft, vocabulary)}
        lists["verifier"] = _listed("verifier", verifier, vocabulary)
        count = [len(tokens) for tokens, _ in lists.values()]
        if count[0] != count[1]:
            raise ValueError(f"draft has {count[0]} rows and verifier has {count[1]}")
        token, places = _union([tokens for tokens, _ in lists.values()])
        sides = []
        for number, (name, (tokens, values)) in enumerate(lists.items()):
            dense, known = np.zeros(token.shape), np.zeros(token.shape, dtype=bool)
            rows, columns = np.nonzero(tokens >= 0)
            at = places[number][rows, columns]
            dense[rows, at], known[rows, at] = values[rows, columns], True
            cap = None if caps is None else caps[number]
            sides.append(_side(name, dense, known, vocabulary, cap, rounding))
        (p, p_known, *p_left), (q, q_known, *q_left) = sides
        unlisted, blank = vocabulary - np.count_nonzero(token >= 0, axis=-1), token < 0
        (p_rest, p_cap, p_lifted), (q_rest, q_cap, q_lifted) = p_left, q_left
        return cls(
            p, q, p_known | blank, q_known | blank, p_rest, q_rest, p_cap, q_cap,
            unlisted, token, vocabulary, p_lifted, q_lifted,
        )  # fmt: skip

    def settled(self) -> tuple[Any, PartialRows | None]:
        """Which rows have a rest that may be nothing, and these rows where it is; None for none."""
        at = np.flatnonzero(self.p_lifted | self.q_lifted)
        if not at.size:
            return at, None
        part = {f.name: getattr(self, f.name) for f in fields(self)}
        part = {name: value if name == "vocabulary" else value[at] for name, value in part.items()}
        for side in ("p", "q"):
            lifted = part.pop(f"{side}_lifted")
            part[f"{side}_known"] = part[f"{side}_known"] | lifted[:, None]
            for name in (f"{side}_rest", f"{side}_cap"):
                part[name] = np.where(lifted, 0.0, part[name])
        return at, PartialRows(**part)

    @cached_property
    def known(self) -> Any:
        """Where both probabilities are known: the tokens A, ``[R, L]``."""
        return self.p_known & self.q_known

    @cached_property
    def core_p(self) -> Any:
        """Draft probabilities of A, 0 elsewhere."""
        return np.where(self.known, self.p, 0.0)

    @cached_property
    def core_q(self) -> Any:
        """Verifier probabilities of A, 0 elsewhere."""
        return np.where(self.known, self.q, 0.0)

    @cached_property
    def p_outside(self) -> Any:
        """P, the draft's mass outside A: the rest, and what the draft alone lists."""
        return self.p_rest + np.sum(np.where(self.known, 0.0, self.p), axis=-1)

    @cached_property
    def q_outside(self) -> Any:
        """Q, the verifier's mass outside A."""
        return self.q_rest + np.sum(np.where(self.known, 0.0, self.q), axis=-1)

    @cached_property
    def outside(self) -> Any:
        """How many tokens of each row lie outside A."""
        return self.unlisted + np.count_nonzero(~self.known, axis=-1)

    @cached_property
    def p_max(self) -> Any:
        """The largest draft probability of each row: a list holds the likeliest token."""
        return np.max(self.p, axis=-1)

    @cached_property
    def q_max(self) -> Any:
        """The largest verifier probability of each row."""
        return np.max(self.q, axis=-1)

    @cached_property
    def merged(self) -> Pair:
        """A and one token (P, Q), as a prepared pair."""
        return self._with(self.p_outside[:, None], self.q_outside[:, None])

    @cached_property
    def split(self) -> Pair:
        """A and two tokens (P, 0) and (0, Q), as a prepared pair."""
        nothing = np.zeros_like(self.p_outside)
        return self._with(
            np.stack([self.p_outside, nothing], axis=-1),
            np.stack([nothing, self.q_outside], axis=-1),
        )

    def _with(self, p: Any, q: Any) -> Pair:
        rows = (np.concatenate(pair, axis=-1) for pair in ((self.core_p, p), (self.core_q, q)))
        return Pair.prepare(*rows, validate=False, compress=False)


def _listed(name: str, given: tuple[Any, Any], vocabulary: int) -> tuple[Any, Any]:
    """The list of a model as arrays, checked entry by entry."""
    tokens, values = given
    refuse_unfit(f"{name} probabilities", values)
    tokens, values = np.asarray(to_numpy(tokens)), np.asarray(to_numpy(values), dtype=np.float64)
    if tokens.ndim != 2 or tokens.shape != values.shape or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be integer tokens [R, K] and probabilities of one shape, got "
            f"{tokens.dtype} {tokens.shape} and {values.shape}"
        )
    tokens = tokens.astype(np.int64)
    _refuse(name, "token", tokens, (tokens < -1) | (tokens >= vocabulary), f"of {vocabulary}")
    listed = tokens >= 0
    wrong = listed & ~((values >= 0) & (values <= 1 + OVERSHOOT))
    _refuse(name, "probability", values, wrong, "which is none")
    ordered = np.sort(tokens, axis=-1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    _refuse(name, "token", ordered[:, 1:], twice, "twice")
    return tokens, np.where(listed, values, 0.0)


def _refuse(name: str, what: str, values: Any, wrong: Any, told: str) -> None:
    if np.any(wrong):
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"{name} row {row} lists the {what} {values[row, column]!s} {told}")


def _union(lists: list[Any]) -> tuple[Any, list[Any]]:
    """The distinct tokens of each row ``[R, L]``, −1 for none, and where each list's are."""
    together = np.concatenate(lists, axis=-1)
    order = np.argsort(together, axis=-1, kind="stable")
    ordered = np.take_along_axis(together, order, axis=-1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    rank = np.cumsum(new & (ordered >= 0), axis=-1) - 1
    width = max(int(rank.max(initial=-1)) + 1, 1)
    token = np.full((len(together), width), -1, dtype=np.int64)
    rows, columns = np.nonzero(ordered >= 0)
    token[rows, rank[rows, columns]] = ordered[rows, columns]
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.maximum(rank, 0), axis=-1)
    return token, np.split(places, [lists[0].shape[1]], axis=-1)


def _side(
    name: str, values: Any, known: Any, vocabulary: int, cap: Any, rounding: float
) -> tuple[Any, ...]:
    """Values, where they are known, the rest mass and its cap, of one model."""
    total = values.sum(axis=-1)
    if np.any(total > 1 + OVERSHOOT):
        row = int(np.argmax(total))
        raise ValueError(f"{name} row {row} lists probabilities that sum to {total[row]:.9g}")
    if cap is None:
        cap = np.min(np.where(known, values, 1.0), axis=-1, initial=1.0)
    cap = np.asarray(cap, dtype=float)
    rest = np.where(1 - total <= NOTHING, 0.0, 1 - total)
    places = vocabulary - np.count_nonzero(known, axis=-1)
    least = np.minimum(rounding, places * cap)
    lifted, rest = rest < least, np.where(places > 0, np.maximum(rest, least), 0.0)
    # Where nothing is left, every unlisted token is known to have 0.
    return values, known | (rest == 0)[:, None], rest, np.minimum(cap, rest), lifted
