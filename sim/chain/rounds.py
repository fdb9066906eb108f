"""One round on a Markov pair as a graph: alive states by place, and what leaves each.

A node of place i is a state of the pair and, in blocks, the scale s = A(v)/p(v) of the drafts that
led there. Of what is alive at a node the share c(y) goes on by the draft y: token by token c is
what the rule accepts of each token, in blocks of a kernel h it is min(p/s, h), and the scale behind
is min(1, s·h/p) (claim 22). What h has beyond c ends the round with that token. Behind m accepted
drafts a bonus token of the verifier's own row follows. The kernel of a block may know the scale, as
the scaled clip does (claim 33).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import sparse

from sim.chain.markov import MarkovPair
from theory import Pair, Rule, divergence, one_steps
from theory.blocks import VERIFICATIONS, scaled_clip

__all__ = [
    "MOST_BRANCHES",
    "BlockKernel",
    "Kernel",
    "Place",
    "ScaledClip",
    "kernels",
    "of_rounds",
    "places",
]

MOST_BRANCHES = 4_000_000
_DIGITS = 12  # scales that agree to so many digits of their logarithm are one


class BlockKernel(Protocol):
    """What is emitted at the nodes of a place, by state and scale: enough for a block."""

    def at(self, place: int, state: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The law h of the next token at each node, [N, V]."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """What a rule accepts of each draft, p·b, and what it emits in all: both [S, V]."""

    accepted: np.ndarray
    output: np.ndarray

    def at(self, place: int, state: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The rule's output, which knows neither place nor scale."""
        return self.output[state]


@dataclass(frozen=True, eq=False)
class ScaledClip:
    """clip(p/s, b·q, a·q) with one multiplier log(a/b) ≥ 0 of KL at every node (claim 33)."""

    pair: MarkovPair
    multiplier: float

    def at(self, place: int, state: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The clip at the scale of each node."""
        p, q, s = self.pair.draft[state], self.pair.verifier[state], scale[:, None]
        clip = scaled_clip(Pair.prepare(p, q), s, np.full_like(s, self.multiplier))
        return np.minimum(np.maximum(p / s, clip.below * q), clip.above * q)


@dataclass(frozen=True, eq=False)
class Place:
    """The nodes of one place of a round.

    state : [N], the state of the pair at each node
    output: [N, V], the law of the next token there
    spent : [N], its KL from the verifier's row, in nats; 0 at the last place
    go    : [N, N of the next place], sparse: the chance that the next draft is accepted, by where
            it leads
    leave : [N, S], sparse: the chance that the round ends with the next token, by the state behind
    """

    state: np.ndarray
    output: np.ndarray
    spent: np.ndarray
    go: sparse.csr_array
    leave: sparse.csr_array


def kernels(pair: MarkovPair, rules: Iterable[Rule]) -> list[Kernel]:
    """The one-step laws of rules in every state at once; exact, as `theory.one_steps`."""
    rules = list(rules)
    laws = one_steps(rules, pair.draft, pair.verifier)
    return [
        Kernel(pair.draft * rule.accept_prob(pair.draft, pair.verifier), law.output)
        for rule, law in zip(rules, laws)
    ]


def places(
    pair: MarkovPair, kernel: Kernel | BlockKernel, drafts: int, verification: str = "token"
) -> list[Place]:
    """The `drafts` + 1 places of a round that may start in any state; exact.

    The nodes of the first place are the states in order. Token by token every place has S nodes.
    In blocks the scales that paths lead to are enumerated, and equal ones merged: a place may have
    V times the nodes of the one before. A `BlockKernel` is one of blocks alone.

    Raises ValueError for an unknown verification, drafts below 1, and blocks of more than
    4,000,000 branches in a place.
    """
    if verification not in VERIFICATIONS:
        raise ValueError(f"no verification {verification!r}; there are {', '.join(VERIFICATIONS)}")
    if type(drafts) is not int or drafts < 1:
        raise ValueError(f"drafts must be a whole number of at least 1, got {drafts!r}")
    found, state, scale = [], np.arange(pair.states), np.ones(pair.states)
    for place in range(drafts):
        if state.size * pair.draft.shape[1] > MOST_BRANCHES:
            told = f"{state.size} scales and states × {pair.draft.shape[1]} tokens"
            raise ValueError(f"drafts: a block has {told} at place {place + 1}; take fewer drafts")
        h = kernel.at(place, state, scale)
        if verification == "token":
            accepted, behind = kernel.accepted[state], np.ones_like(h)
        else:
            accepted, behind = _scaled(pair.draft[state], h, scale)
        follow = pair.follow[state]
        target, after, behind = _merged(follow, behind, accepted > 0, verification)
        left = np.maximum(h - accepted, 0.0)
        go, leave = _flow(accepted, target, len(after)), _flow(left, follow, pair.states)
        spent = np.asarray(divergence("kl", h, pair.verifier[state], validate=False))
        found.append(Place(state, h, spent, go, leave))
        state, scale = after, behind
    bonus = pair.verifier[state]
    last, nothing = _flow(bonus, pair.follow[state], pair.states), np.zeros(len(state))
    return [*found, Place(state, bonus, nothing, sparse.csr_array((len(state), 0)), last)]


def of_rounds(found: list[Place]) -> tuple[np.ndarray, np.ndarray]:
    """Accepted length and divergence of a round by its first state, from the last place back."""
    accepted = spent = np.zeros(len(found[-1].state))
    for place in reversed(found[:-1]):
        accepted = place.go @ (1.0 + accepted)
        spent = place.spent + place.go @ spent
    return accepted, spent


def _scaled(p: np.ndarray, h: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a block accepts of each token at a scale, and the scale behind it."""
    s = scale[:, None]
    ratio = np.divide(s * h, p, out=np.ones_like(h), where=p > 0)
    return np.minimum(p / s, h), np.minimum(ratio, 1.0)


def _merged(
    follow: np.ndarray, behind: np.ndarray, alive: np.ndarray, verification: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The next node of every branch [N, V], and the states and scales of the next nodes."""
    if verification == "token":
        states = int(follow.shape[0])
        return follow, np.arange(states), np.ones(states)
    with np.errstate(divide="ignore"):
        digits = np.round(np.log(behind[alive]), _DIGITS)
    keys = np.stack([follow[alive].astype(np.float64), digits])
    _, first, inverse = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    target = np.zeros(follow.shape, dtype=np.int64)
    target[alive] = np.ravel(inverse)
    return target, follow[alive][first], behind[alive][first]


def _flow(mass: np.ndarray, target: np.ndarray, size: int) -> sparse.csr_array:
    """A sparse matrix [N, size] of the mass [N, V] of branches by where they lead."""
    row, token = np.nonzero(mass)
    return sparse.csr_array(
        (mass[row, token], (row, target[row, token])), shape=(mass.shape[0], size)
    )
