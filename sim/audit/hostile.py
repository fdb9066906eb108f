"""Blocks of rows for an audit: some that samplers have failed on before, or a file of one's own."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sim.checks import require_count
from sim.pairs.filters import filter_probabilities, softmax
from sim.rounds.inputs import checked_rows

__all__ = ["Blocks", "hostile_pairs", "read_pairs"]

_LEAST_VOCAB = 8
_MOST_ENTRIES = 2**24  # of the verifier's rows: an audit needs some 300 bytes for each


@dataclass(frozen=True)
class Blocks:
    """The rows of N blocks of m drafts.

    p : [N, m, V], what the draft at each place is drawn from.
    q : [N, m + 1, V], the verifier at each place, then behind the last draft.
    names : one for each block.
    source : the Python that gives these rows again, for the reproducer of a report.

    Raises ValueError for other shapes, and for a row that is no distribution (float64 within 1e-7,
    float32 within 1e-4), naming it.
    """

    p: np.ndarray
    q: np.ndarray
    names: tuple[str, ...] = ()
    source: str = "pairs"

    def __post_init__(self) -> None:
        p, q = checked_rows("p", self.p), checked_rows("q", self.q)
        if p.ndim != 3 or q.shape != (len(p), p.shape[1] + 1, p.shape[2]) or not p.size:
            raise ValueError(
                "blocks need p [N, m, V] and q [N, m+1, V] with N, m ≥ 1: "
                f"got p {p.shape}, q {q.shape}"
            )
        if q.size > _MOST_ENTRIES:
            raise ValueError(
                f"{len(p)} blocks of {p.shape[1]} drafts over {p.shape[2]:,} tokens are {q.size:,} "
                f"numbers; an audit holds {_MOST_ENTRIES:,}"
            )
        names = tuple(map(str, self.names)) or tuple(f"block {i}" for i in range(len(p)))
        if len(names) != len(p):
            raise ValueError(f"{len(p)} blocks need as many names, got {len(names)}")
        for name, value in (("p", p), ("q", q), ("names", names)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int, int]:
        """N blocks, m drafts, V tokens."""
        return self.p.shape

    def rounded(self, dtype: str) -> "Blocks":
        """The rows as a sampler in this precision is handed them."""
        return replace(self, p=self.p.astype(dtype), q=self.q.astype(dtype))


def hostile_pairs(vocab: int = 24, drafts: int = 3, seed: int = 0) -> Blocks:
    """Blocks of `drafts` places on which samplers have failed before, float64, one per kind.

    The kinds are those of the names that come with them: zeros in p, ties, logits of −∞, one-hots,
    faint tails, equal rows, unequal supports, a flat row whose first token lies just above the
    threshold of typical acceptance, and others. The same arguments give the same rows. Raises
    ValueError for fewer than 8 tokens or no draft.
    """
    require_count("vocab", vocab, _LEAST_VOCAB)
    require_count("drafts", drafts, 1)
    require_count("seed", seed, 0)
    fits = _MOST_ENTRIES // len(_KINDS)
    if int(vocab) * (int(drafts) + 1) > fits:
        raise ValueError(
            f"{drafts} drafts over {vocab:,} tokens are too many for {len(_KINDS)} blocks: "
            f"(drafts + 1)·vocab must be at most {fits:,}"
        )
    rng = np.random.default_rng(seed)
    blocks = [[kind(int(vocab), place, rng) for place in range(int(drafts) + 1)] for kind in _KINDS]
    return Blocks(
        np.array([[p for p, _ in rows[:-1]] for rows in blocks]),
        np.array([[q for _, q in rows] for rows in blocks]),
        tuple(kind.__name__.strip("_").replace("_", " ") for kind in _KINDS),
        f"audit.hostile_pairs(vocab={int(vocab)}, drafts={int(drafts)}, seed={int(seed)})",
    )


def read_pairs(path: Path) -> Blocks:
    """Blocks from an .npz file with p [N, m, V], q [N, m+1, V] and, if it has them, names [N].

    Raises ValueError, naming the file, for what is not there or no distribution.
    """
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz file")
        with np.load(path) as file:
            held = {name: file[name] for name in file.files}
        missing = next((name for name in ("p", "q") if name not in held), None)
        if missing:
            raise ValueError(f"it has no array {missing!r}; it has {', '.join(held) or 'none'}")
        names = tuple(held.get("names", ()))
        return Blocks(held["p"], held["q"], names, f"audit.read_pairs({str(path)!r})")
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from None


# --- the kinds: each gives p [V] and q [V] of one place ------------------------------------------

_Rng = np.random.Generator
_Rows = tuple[np.ndarray, np.ndarray]


def _normed(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def _sure(token: int, vocab: int) -> np.ndarray:
    return 1.0 * (np.arange(vocab) == token)


def _logits(vocab: int, rng: _Rng, noise: float = 1.0) -> _Rows:
    """Logits of a draft and of a verifier that agree by and large."""
    verifier = 1.5 * rng.standard_normal(vocab)
    return verifier + noise * rng.standard_normal(vocab), verifier


def _ordinary(vocab: int, place: int, rng: _Rng) -> _Rows:
    draft, verifier = _logits(vocab, rng)
    return softmax(draft), softmax(verifier)


def _filtered(vocab: int, place: int, rng: _Rng) -> _Rows:
    """Temperature 0.6, top-k, top-p, on both sides: the supports differ."""
    draft, verifier = (filter_probabilities(softmax(x / 0.6), 5, 0.95) for x in _logits(vocab, rng))
    return draft, verifier


def _zeros_in_p(vocab: int, place: int, rng: _Rng) -> _Rows:
    p, q = _ordinary(vocab, place, rng)
    return _normed(np.where(rng.permutation(vocab) < vocab // 3, p, 0)), q


def _ties(vocab: int, place: int, rng: _Rng) -> _Rows:
    """Few different weights: equal tokens, equal ratios, and several that are likeliest."""
    return _normed(rng.integers(1, 4, vocab) * 1.0), _normed(rng.integers(1, 4, vocab) * 1.0)


def _logits_of_minus_infinity(vocab: int, place: int, rng: _Rng) -> _Rows:
    """A mask of each side; the draft knows tokens that the verifier forbids."""
    sides = []
    for logits in _logits(vocab, rng):
        kept = rng.permutation(vocab) < vocab // 2
        kept[place % vocab] = True
        sides.append(softmax(np.where(kept, logits, -np.inf)))
    return sides[0], sides[1]


def _one_hots(vocab: int, place: int, rng: _Rng) -> _Rows:
    """The draft is certain, the verifier is, both are of one token; in turn."""
    p, q = _ordinary(vocab, place, rng)
    token, other = rng.permutation(vocab)[:2]
    if place % 3 == 0:
        return _sure(token, vocab), q
    sure = _sure(other, vocab)
    return (p, _sure(token, vocab)) if place % 3 == 1 else (sure, sure.copy())


def _one_hots_apart(vocab: int, place: int, rng: _Rng) -> _Rows:
    """The draft is sure of one token and the verifier of another; with alike places before it."""
    token, other = rng.permutation(vocab)[:2]
    return _sure(token, vocab), _sure(other if place % 3 == 2 else token, vocab)


def _faint_tails(vocab: int, place: int, rng: _Rng) -> _Rows:
    """From rank to rank a factor of ten; the order of the two sides differs a little."""
    rank = np.arange(vocab) * min(2.3, 600 / vocab)
    return softmax(-rank), softmax(-rank[np.argsort(rank + rng.normal(0, 4, vocab))])


def _equal_rows(vocab: int, place: int, rng: _Rng) -> _Rows:
    p, _ = _ordinary(vocab, place, rng)
    return p, p.copy()


def _nearly_equal_rows(vocab: int, place: int, rng: _Rng) -> _Rows:
    p, _ = _ordinary(vocab, place, rng)
    return p, _normed(p * (1 + 1e-3 * rng.standard_normal(vocab)))


def _unequal_supports(vocab: int, place: int, rng: _Rng) -> _Rows:
    """The supports share one token, or, at every second place, none."""
    weights = rng.standard_exponential((2, vocab)) + 0.05
    half, at = vocab // 2, np.arange(vocab)
    return _normed(weights[0] * (at < half)), _normed(weights[1] * (at >= half - 1 + place % 2))


def _flat(vocab: int, place: int, rng: _Rng) -> _Rows:
    """A flat verifier, but for token 0: a tenth above 0.3·exp(−H), and drafted half the time."""
    q = np.full(vocab, 1.0)
    q[0] = 1.1 * 0.3
    p = np.full(vocab, 0.5 / (vocab - 1))
    p[0] = 0.5
    return p, _normed(q)


def _sure_drafts(vocab: int, place: int, rng: _Rng) -> _Rows:
    """The draft is nearly certain of a token that the verifier gives 0.3."""
    token = int(rng.integers(vocab))
    p, q = _ordinary(vocab, place, rng)
    p[token] = q[token] = 0
    sure = _sure(token, vocab)
    return 0.05 * _normed(p) + 0.95 * sure, 0.7 * _normed(q) + 0.3 * sure


def _first_and_last_token(vocab: int, place: int, rng: _Rng) -> _Rows:
    p, q = np.zeros((2, vocab))
    p[[0, -1]], q[[0, -1]] = [(0.6, 0.4), (0.3, 0.7), (0.8, 0.2)][place % 3], (0.4, 0.6)
    return p, q if place % 2 else q[::-1]


def _few_tokens(vocab: int, place: int, rng: _Rng) -> _Rows:
    """Two or three tokens of a vocabulary that is nearly unused."""
    p, q = np.zeros((2, vocab))
    if place % 2:
        p[1:4], q[1:4] = (0.05, 0.8, 0.15), (0.3, 0.35, 0.35)
    else:
        p[1:3], q[1:3] = (2 / 3, 1 / 3), (1 / 3, 2 / 3)
    return p, np.roll(q, 1) if place % 4 == 3 else q


_KINDS: tuple[Callable[[int, int, _Rng], _Rows], ...] = (
    _ordinary,
    _filtered,
    _zeros_in_p,
    _ties,
    _logits_of_minus_infinity,
    _one_hots,
    _one_hots_apart,
    _faint_tails,
    _equal_rows,
    _nearly_equal_rows,
    _unequal_supports,
    _flat,
    _sure_drafts,
    _first_and_last_token,
    _few_tokens,
)
