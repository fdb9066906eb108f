"""How far a text itself is from the verifier's: below what its places spend, exact where short.

What the places of a text spend bounds its divergence (claim 30). The reader of a text does not see
where rounds begin, and what that hides is all that lies between the two.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from sim.chain.longrun import priced
from sim.chain.markov import MarkovPair
from sim.chain.rounds import BlockKernel, Kernel, Place, places
from sim.checks import require_count

__all__ = ["MOST_TEXTS", "TextDivergence", "text_divergence", "token_step"]

MOST_TEXTS = 200_000


@dataclass(frozen=True)
class TextDivergence:
    """Of the first tokens of a text, in nats.

    own   : KL of their law from the verifier's
    spent : Σ KL(h‖q) over the places that rounds visit among them, an upper bound of it
    """

    own: float
    spent: float


def text_divergence(
    pair: MarkovPair,
    kernel: Kernel | BlockKernel,
    drafts: int,
    length: int,
    verification: str = "token",
    *,
    start: int = 0,
) -> TextDivergence:
    """The divergence of the first `length` tokens behind a state in which a round starts; exact.

    By enumeration of all texts, with the law of what is hidden, place and scale, beside each.
    Raises ValueError as `places`, for more than 200,000 texts, a start that is no state, and a pair
    in which two tokens lead from one state to the same.
    """
    require_count("length", length, 1)
    require_count("start", start, 0, high=pair.states - 1)
    vocabulary = pair.draft.shape[1]
    if vocabulary**length > MOST_TEXTS:
        raise ValueError(f"length: {vocabulary} tokens have more than {MOST_TEXTS:,} texts")
    if any(len(set(row)) < vocabulary for row in pair.follow.tolist()):
        raise ValueError("follow: two tokens lead to one state; the states must tell them apart")
    found = places(pair, kernel, drafts, verification)
    nodes = np.concatenate([place.state for place in found])
    step, spent = token_step(found), np.concatenate([place.spent for place in found])
    hidden = np.zeros(len(nodes))
    hidden[start] = 1.0
    paid, states, beliefs, references = 0.0, [start], hidden[None], [1.0]
    for _ in range(length):
        paid += priced(beliefs.sum(axis=0), spent)
        states, beliefs, references = _longer(pair, nodes, step, states, beliefs, references)
    masses = beliefs.sum(axis=1)
    met = masses > 0
    own = float(np.sum(masses[met] * np.log(masses[met] / np.array(references)[met])))
    return TextDivergence(max(own, 0.0), paid)


def token_step(found: list[Place]) -> sparse.csr_array:
    """From node to node of all places by one token: to the next one, or to the start of a round."""
    sizes = [len(place.state) for place in found]
    starts, total = np.cumsum([0, *sizes]), sum(sizes)
    rows = []
    for number, place in enumerate(found):
        behind = starts[number + 1] if number + 1 < len(found) else total
        ends = (place.go, behind), (place.leave, 0)
        rows.append(sum(_moved(flow, first, total) for flow, first in ends))
    return sparse.csr_array(sparse.vstack(rows))


def _moved(flow: sparse.csr_array, first: int, size: int) -> sparse.csr_array:
    """The same flow where its targets begin at a node of all."""
    parts = flow.data, flow.indices + first, flow.indptr
    return sparse.csr_array(parts, shape=(flow.shape[0], size))


def _longer(
    pair: MarkovPair,
    nodes: np.ndarray,
    step: sparse.csr_array,
    states: list[int],
    beliefs: np.ndarray,
    references: list[float],
) -> tuple[list[int], np.ndarray, list[float]]:
    """All texts with one token more: their states, what is hidden [texts, nodes], and q of them."""
    moved = np.asarray(beliefs @ step)
    new_states, new_beliefs, new_references = [], [], []
    for state, belief, reference in zip(states, moved, references):
        for token, target in enumerate(pair.follow[state].tolist()):
            new_states.append(target)
            new_beliefs.append(np.where(nodes == target, belief, 0.0))
            new_references.append(reference * float(pair.verifier[state, token]))
    return new_states, np.array(new_beliefs), new_references
