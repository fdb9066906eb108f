"""Families of synthetic draft/verifier rows: a draft p and a verifier q per row.

A family is a frozen dataclass of hyper-parameters; `sample` draws a batch of rows from it. Every
row is a float64 distribution that sums to 1 within 1e-12 and holds no NaN, for every parameter that
is accepted: where logits leave the range of float64 they are shifted first, which softmax ignores.
Draws use only the generator that is handed in: `generators` spawns one for each batch of a sweep,
so that a batch holds the same rows whichever process computes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from sim.checks import require_between, require_count, shortest, unknown_name
from sim.pairs.filters import filter_probabilities, softmax

__all__ = [
    "FAMILIES",
    "Amplification",
    "Dirichlet",
    "Disjoint",
    "Family",
    "Filtered",
    "Gaussian",
    "NearEqual",
    "PairBatch",
    "Zipf",
    "generators",
    "make_family",
]


_LEAST = 1e-300  # a smaller concentration has logarithms beyond float64


@dataclass(frozen=True)
class PairBatch:
    """Rows of a draft and a verifier, each [R, V]; `*_raw` are those before any sampling filter."""

    p: np.ndarray
    q: np.ndarray
    p_raw: np.ndarray | None = None
    q_raw: np.ndarray | None = None


@dataclass(frozen=True)
class Family:
    """A family of (p, q) rows. Subclasses define the parameters and how rows are drawn."""

    name: ClassVar[str] = ""
    smallest_vocab: ClassVar[int] = 1

    @property
    def label(self) -> str:
        """The parameters as text, as in "exponent=1.1, noise=0.7"; "" where there are none."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name}={shortest(value)}" for name, value in values.items())

    def check_vocab(self, vocab: int) -> None:
        """Raise ValueError where the family has no rows of `vocab` tokens."""
        require_count("vocab", vocab, self.smallest_vocab, f" for the family {self.name!r}")

    def sample(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        """Draw `rows` independent pairs of rows over `vocab` tokens.

        Returns a `PairBatch` of float64 arrays [rows, vocab]. Raises ValueError, naming the
        argument and its value, where `rows` is negative or `vocab` is too small for the family.
        """
        require_count("rows", rows, 0)
        self.check_vocab(vocab)
        return self._draw(int(rows), int(vocab), rng)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        raise NotImplementedError


@dataclass(frozen=True)
class Dirichlet(Family):
    """Both rows are Dirichlet(c, …, c); a share of the gamma variables behind them is common.

    Gamma(c·s) + Gamma(c·(1−s)) is Gamma(c), so each row has the Dirichlet law exactly, while p = q
    at shared = 1 and p is independent of q at shared = 0. Drawn in logarithms, so that no row
    underflows to 0 at a small concentration.
    """

    name: ClassVar[str] = "dirichlet"
    concentration: float = 0.1
    shared: float = 0.7

    def __post_init__(self) -> None:
        require_between("concentration", self.concentration, 0, np.inf, open_low=True)
        require_between("concentration", self.concentration, _LEAST, np.inf)
        require_between("shared", self.shared, 0, 1)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        shape = (rows, vocab)
        common = _log_gamma(self.concentration * self.shared, shape, rng)
        own = [_log_gamma(self.concentration * (1 - self.shared), shape, rng) for _ in range(2)]
        p, q = (softmax(np.logaddexp(common, part)) for part in own)
        return PairBatch(p, q)


@dataclass(frozen=True)
class Zipf(Family):
    """A Zipf verifier, r^(−exponent) at rank r with shuffled ranks; the draft is ∝ q·exp(noise·z).

    z is standard normal per token, so `noise` is the spread of log p − log q in nats.
    """

    name: ClassVar[str] = "zipf"
    exponent: float = 1.1
    noise: float = 0.7

    def __post_init__(self) -> None:
        require_between("exponent", self.exponent, 0, np.inf)
        require_between("noise", self.noise, 0, np.inf)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        ranks = (self.exponent, _shuffled(-np.log(np.arange(1.0, vocab + 1)), rows, rng))
        noise = (self.noise, rng.standard_normal((rows, vocab)))
        return PairBatch(softmax(_combined(ranks, noise)), softmax(_combined(ranks)))


@dataclass(frozen=True)
class Gaussian(Family):
    """Gaussian logits of standard deviation `scale`, correlated between draft and verifier."""

    name: ClassVar[str] = "gaussian"
    scale: float = 2.0
    correlation: float = 0.9

    def __post_init__(self) -> None:
        require_between("scale", self.scale, 0, np.inf)
        require_between("correlation", self.correlation, -1, 1)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        draft, verifier = _gaussian_logits(self.scale, self.correlation, rows, vocab, rng)
        return PairBatch(softmax(draft), softmax(verifier))


@dataclass(frozen=True)
class Filtered(Family):
    """Gaussian logits as decoders use them: temperature, then top-k, then top-p, on both sides.

    p and q are the filtered rows (their supports differ in general), p_raw and q_raw the rows at
    temperature 1 without filters, which the cascades read. top_k = 0 keeps every token.
    """

    name: ClassVar[str] = "filtered"
    temperature: float = 0.6
    top_k: int = 20
    top_p: float = 0.95
    scale: float = 2.5
    correlation: float = 0.95

    def __post_init__(self) -> None:
        require_between("temperature", self.temperature, 0, np.inf, open_low=True)
        require_count("top_k", self.top_k, 0)
        require_between("top_p", self.top_p, 0, 1, open_low=True)
        require_between("scale", self.scale, 0, np.inf)
        require_between("correlation", self.correlation, -1, 1)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        draft, verifier = _gaussian_logits(self.scale, self.correlation, rows, vocab, rng)
        p, q = (
            filter_probabilities(softmax(_cooled(logits, self.temperature)), self.top_k, self.top_p)
            for logits in (draft, verifier)
        )
        return PairBatch(p, q, softmax(draft), softmax(verifier))


@dataclass(frozen=True)
class NearEqual(Family):
    """A Zipf verifier and a draft that differs from it by `epsilon` nats per token, or not at all.

    Divergences are of order epsilon², where formulas that subtract nearly equal numbers fail.
    """

    name: ClassVar[str] = "near_equal"
    epsilon: float = 0.01
    exponent: float = 1.1

    def __post_init__(self) -> None:
        require_between("epsilon", self.epsilon, 0, np.inf)
        require_between("exponent", self.exponent, 0, np.inf)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        return Zipf(self.exponent, self.epsilon)._draw(rows, vocab, rng)


@dataclass(frozen=True)
class Disjoint(Family):
    """Two supports of ⌊V/2⌋ tokens each, of which the share `overlap` is common to both.

    Weights are exponential variables of mean 1 on each support, independent for p and q. At
    overlap = 0 no drafted token can be accepted without leaving the support of the verifier.
    """

    name: ClassVar[str] = "disjoint"
    smallest_vocab: ClassVar[int] = 2
    overlap: float = 0.5

    def __post_init__(self) -> None:
        require_between("overlap", self.overlap, 0, 1)

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        size = vocab // 2
        start = size - round(self.overlap * size)
        place = _shuffled(np.arange(vocab), rows, rng)
        sides = []
        for first in (start, 0):
            weights = np.log(rng.standard_exponential((rows, vocab)))
            inside = (place >= first) & (place < first + size)
            sides.append(softmax(np.where(inside, weights, -np.inf)))
        return PairBatch(*sides)


@dataclass(frozen=True)
class Amplification(Family):
    """A uniform verifier, and a draft of 2/V on half of the tokens: no budget bounds the output.

    With γ exact and δ = d_KL(2/V, 1/V) ≈ 0.386/V every drafted token is accepted, so the output is
    the draft and lies log 2 nats from the verifier. `vocab` must be even.
    """

    name: ClassVar[str] = "amplification"
    smallest_vocab: ClassVar[int] = 2

    def check_vocab(self, vocab: int) -> None:
        """Raise ValueError where `vocab` is less than 2 or odd."""
        super().check_vocab(vocab)
        if vocab % 2:
            raise ValueError(f"vocab must be even for the family {self.name!r}, got {vocab}")

    def _draw(self, rows: int, vocab: int, rng: np.random.Generator) -> PairBatch:
        place = _shuffled(np.arange(vocab), rows, rng)
        return PairBatch(
            np.where(place % 2 == 0, 2 / vocab, 0.0), np.full((rows, vocab), 1 / vocab)
        )


FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (Dirichlet, Zipf, Gaussian, Filtered, NearEqual, Disjoint, Amplification)
}


def make_family(name: str, **parameters: Any) -> Family:
    """The family called `name` with the given parameters, others at their defaults.

    Raises ValueError for an unknown family or parameter (with the nearest known name) and for a
    value out of range.
    """
    if not isinstance(name, str) or name not in FAMILIES:
        raise unknown_name("family", str(name), FAMILIES)
    known = {field.name: field.type for field in fields(FAMILIES[name])}
    for parameter in parameters:
        if parameter not in known:
            raise unknown_name(f"parameter of the family {name!r}:", parameter, known)
    return FAMILIES[name](**parameters)


def generators(seed: np.random.SeedSequence | int, count: int) -> Iterator[np.random.Generator]:
    """`count` independent generators spawned from one seed, the same in every process."""
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return (np.random.default_rng(child) for child in root.spawn(count))


def _shuffled(values: np.ndarray, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Each row holds `values` in an order of its own; [rows, V], contiguous along the row."""
    return rng.permuted(np.tile(values, (rows, 1)), axis=-1)


def _gaussian_logits(
    scale: float, correlation: float, rows: int, vocab: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    verifier = rng.standard_normal((rows, vocab))
    other = rng.standard_normal((rows, vocab))
    draft = correlation * verifier + np.sqrt((1 - correlation) * (1 + correlation)) * other
    return _combined((scale, draft)), _combined((scale, verifier))


def _combined(*parts: tuple[float, np.ndarray]) -> np.ndarray:
    """Σ factor·values as logits [rows, V]; up to a shift of each row where that overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        plain = sum(factor * values for factor, values in parts)
        if np.all(np.isfinite(plain)):
            return plain
        largest = max(factor for factor, _ in parts)
        small = sum(factor / largest * values for factor, values in parts)
        return largest * (small - np.max(small, axis=-1, keepdims=True))


def _cooled(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Logits at a temperature; up to a shift of each row where that overflows."""
    with np.errstate(over="ignore"):
        plain = logits / temperature
        if np.all(np.isfinite(plain)):
            return plain
        return (logits - np.max(logits, axis=-1, keepdims=True)) / temperature


def _log_gamma(shape: float, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(shape) variables; −∞ at shape 0. Gamma(c) is Gamma(c+1)·U^(1/c)."""
    if shape == 0:
        return np.full(size, -np.inf)
    scale = rng.standard_gamma(shape + 1, size)
    with np.errstate(over="ignore"):
        return np.log(scale) - rng.standard_exponential(size) / shape
