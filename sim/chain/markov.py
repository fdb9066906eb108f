"""Markov pairs: a draft and a verifier whose next token depends on a state of the last tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from theory.arrays import check_distribution

__all__ = ["MOST_STATES", "MarkovPair", "ngram_pair", "random_pair"]

MOST_STATES = 400
_LEAST_TEXT = 100


@dataclass(frozen=True, eq=False)
class MarkovPair:
    """Rows of a draft and of a verifier by state, and the state behind each token.

    draft, verifier : [S, V], float64 distributions of the next token in each state
    follow          : [S, V], the state that a token leads to
    tokens          : what each of the V tokens is called

    Raises ValueError for shapes that differ, rows that are no distributions, and states that are
    not there.
    """

    draft: np.ndarray
    verifier: np.ndarray
    follow: np.ndarray
    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("draft", "verifier"):
            rows = np.asarray(getattr(self, name), dtype=np.float64)
            if rows.shape != np.shape(self.follow) or rows.ndim != 2:
                told = f"{name} has shape {rows.shape}, follow {np.shape(self.follow)}"
                raise ValueError(f"{told}; both are [S, V]")
            check_distribution(name, rows)
            object.__setattr__(self, name, rows)
        states, size = self.follow.shape
        if np.min(self.follow) < 0 or np.max(self.follow) >= states:
            raise ValueError(f"follow holds a state outside [0, {states - 1}]")
        if len(self.tokens) != size:
            raise ValueError(f"{len(self.tokens)} tokens are named, the rows have {size}")

    @property
    def states(self) -> int:
        """How many states S there are."""
        return len(self.draft)

    @classmethod
    def first_order(
        cls, draft: np.ndarray, verifier: np.ndarray, tokens: Sequence[str] | None = None
    ) -> "MarkovPair":
        """The pair of two transition matrices [S, S]: the state is the last token."""
        size = np.shape(draft)[-1]
        follow = np.broadcast_to(np.arange(size), np.shape(draft))
        return cls(draft, verifier, follow, tuple(tokens or map(str, range(size))))


def random_pair(
    states: int, seed: int = 0, *, concentration: float = 0.5, agreement: float = 0.5
) -> MarkovPair:
    """A first-order pair of Dirichlet rows, alike by seed.

    The draft's rows are the mixture agreement · verifier + (1 − agreement) · rows of its own.
    Raises ValueError for states outside [2, 400], a concentration that is not positive, and an
    agreement outside [0, 1].
    """
    if type(states) is not int or not 2 <= states <= MOST_STATES:
        raise ValueError(f"states must be 2 to {MOST_STATES}, got {states!r}")
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration must be a positive number, got {concentration!r}")
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement must lie in [0, 1], got {agreement!r}")
    rng = np.random.default_rng(seed)
    verifier, own = rng.dirichlet(np.full(states, concentration), size=(2, states))
    return MarkovPair.first_order(agreement * verifier + (1 - agreement) * own, verifier)


def ngram_pair(text: str, *, tokens: int = 12, smoothing: float = 0.1) -> MarkovPair:
    """Characters of a text: the verifier knows the last two, the draft only the last.

    The `tokens` − 1 characters that occur most are tokens, in lower case, and all others are one
    more, "…". A state is the last two tokens, V² in all. With counts c the draft is that of one
    character smoothed by `smoothing` to each token; the verifier adds 2V·smoothing counts of the
    draft's row to those of two characters. A state that never occurs has the draft's row twice.

    Raises ValueError for a text below 100 characters, fewer than two tokens or more than 20, and a
    smoothing that is not positive.
    """
    if len(text) < _LEAST_TEXT:
        raise ValueError(f"the text has {len(text)} characters; {_LEAST_TEXT} are the least")
    if type(tokens) is not int or not 2 <= tokens <= int(MOST_STATES**0.5):
        raise ValueError(f"tokens must be 2 to {int(MOST_STATES**0.5)}, got {tokens!r}")
    if not 0 < smoothing < np.inf:
        raise ValueError(f"smoothing must be a positive number, got {smoothing!r}")
    read, names = _read(text.lower(), tokens)
    size = len(names)
    pairs = read[:-1] * size + read[1:]
    once = np.bincount(pairs, minlength=size**2).reshape(size, size) + smoothing
    draft = np.tile(once / once.sum(axis=1, keepdims=True), (size, 1))  # by the last token
    twice = np.bincount(pairs[:-1] * size + read[2:], minlength=size**3).reshape(size**2, size)
    weighed = twice + 2 * size * smoothing * draft
    verifier = weighed / weighed.sum(axis=1, keepdims=True)
    state = np.arange(size**2)[:, None]
    return MarkovPair(draft, verifier, state % size * size + np.arange(size), names)


def _read(text: str, tokens: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The tokens of a text, and their names; the last stands for all that are rare."""
    letters, where, counts = np.unique(list(text), return_inverse=True, return_counts=True)
    likeliest = np.argsort(-counts, kind="stable")[: tokens - 1]
    place = np.full(len(letters), len(likeliest))
    place[likeliest] = np.arange(len(likeliest))
    return place[where], (*map(str, letters[likeliest]), "…")
