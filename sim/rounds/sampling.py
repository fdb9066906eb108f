"""Monte Carlo rounds of draft-and-verify, for any rule, vectorised over rounds.

The sampler reads a rule only through `accept_prob` and `recovery`, never through its law, so that
comparing its frequencies with `rule.output` is a check of that law. A candidate n ~ p is accepted
iff u·p_n < b_n·p_n, u uniform on [0, 1): a token of probability zero under the target is never
accepted, u = 0 included.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sim.checks import require_count
from sim.rounds.blocks import NO_TOKEN, Block, require_tokens, verify_block, verify_greedy
from sim.rounds.inputs import checked_rows, plain_array, whole_numbers
from sim.rounds.metrics import (
    AcceptanceMetrics,
    acceptance_metrics,
    accepted_from_emitted,
    expected_accepted,
    speed_up,
    tokens_per_round,
)

__all__ = [
    "AcceptanceMetrics",
    "Block",
    "StepSample",
    "acceptance_metrics",
    "accepted_from_emitted",
    "expected_accepted",
    "sample_block",
    "sample_rounds",
    "sample_step",
    "speed_up",
    "tokens_per_round",
    "verify_block",
    "verify_greedy",
]

_CHUNK = 2**22  # entries of recovery rows held at once


@dataclass(frozen=True)
class StepSample:
    """Emitted tokens, flags and candidates of one position that was sampled often; all [count]."""

    tokens: np.ndarray
    accepted: np.ndarray
    candidates: np.ndarray


def sample_step(
    rule: Any, p: ArrayLike, q: ArrayLike, count: int, rng: np.random.Generator, **raw: ArrayLike
) -> StepSample:
    """Draft, test and, on rejection, recover one token; `count` independent times.

    p, q: one draft and one verifier row, [V]; `raw` (p_raw, q_raw, [V]) goes to rules that read the
    rows before the filters. The tokens follow `rule.output(p, q)` exactly, and are accepted at its
    acceptance. Raises ValueError for a row that is no distribution, unequal shapes, more than one
    row and a negative count.
    """
    require_count("count", count, 0)
    for name, row in {"p": p, "q": q, **raw}.items():
        if np.ndim(row) != 1:
            raise ValueError(f"{name} must be one row [V], got shape {np.shape(row)}")
    pairs = _Pairs.stack(rule, p, q, raw)
    rows = np.zeros(int(count), dtype=np.int64)
    candidates = _draw(pairs.p, rows, rng)
    accepted = pairs.test(rows, candidates, rng)
    tokens = candidates.copy()
    tokens[~accepted] = pairs.recover(rows[~accepted], candidates[~accepted], rng)
    return StepSample(tokens, accepted, candidates)


def sample_rounds(
    rule: Any,
    p: ArrayLike,
    q: ArrayLike,
    rounds: int,
    draft_tokens: int,
    rng: np.random.Generator,
    **raw: ArrayLike,
) -> Block:
    """Rounds of `draft_tokens` drafts and, where all are accepted, a bonus token from q.

    p, q (and raw): [R, V] or [V]. Each position of each round takes one of the R pairs at random,
    so positions are independent and `expected_accepted` holds exactly. Returns a `Block` over
    [rounds]. Raises ValueError for a row that is no distribution, unequal shapes and negative
    counts.
    """
    require_count("rounds", rounds, 0)
    require_count("draft_tokens", draft_tokens, 0)
    pairs = _Pairs.stack(rule, p, q, raw)
    if not pairs.p.shape[0]:
        raise ValueError(f"p must have rows, got shape {pairs.p.shape}")
    rows = rng.integers(pairs.p.shape[0], size=(int(rounds), int(draft_tokens) + 1))
    drafts = _draw(pairs.p, rows[:, :-1], rng)
    return _verify(pairs, rows[:, :-1], drafts, _draw(pairs.q, rows[:, -1], rng), rng)


def sample_block(
    rule: Any,
    p: ArrayLike,
    q: ArrayLike,
    draft_tokens: ArrayLike,
    rng: np.random.Generator,
    **raw: ArrayLike,
) -> Block:
    """Verify one block of k drafted tokens against the verifier's k + 1 rows.

    p [k, V]: the distributions that `draft_tokens` [k] were drawn from. q [k+1, V]: row i belongs
    to draft i, the last one to the bonus token; raw [k, V]. Raises ValueError for other shapes, a
    row that is no distribution (that of the bonus token included), a token outside the vocabulary,
    and a drafted token to which p gives no mass: it was drawn from another distribution.
    """
    p, q = plain_array("p", p), plain_array("q", q)
    drafts = plain_array("draft_tokens", draft_tokens)
    k = drafts.size
    if drafts.ndim != 1 or p.ndim != 2 or p.shape[0] != k or q.shape != (k + 1, p.shape[1]):
        raise ValueError(
            f"{k} drafts need {k} draft rows and {k + 1} verifier rows: "
            f"got draft_tokens {drafts.shape}, p {p.shape}, q {q.shape}"
        )
    drafts = whole_numbers("draft_tokens", drafts)
    require_tokens("draft_tokens", drafts, np.ones(k, dtype=bool), p.shape[1])
    p, q = checked_rows("p", p), checked_rows("q", q)
    undrafted = p[np.arange(k), drafts] <= 0
    if np.any(undrafted):
        place = int(np.argmax(undrafted))
        raise ValueError(f"draft_tokens: p gives no mass to token {drafts[place]} at {place}")
    bonus = _draw(q[-1:], np.zeros(1, dtype=np.int64), rng)
    pairs = _Pairs.stack(rule, p, q[:-1], raw)
    block = _verify(pairs, np.arange(k)[None], drafts[None], bonus, rng)
    return Block(block.tokens[0], block.accepted[0])


@dataclass(frozen=True)
class _Pairs:
    """A rule on rows p, q [R, V], read at lists of (row, candidate)."""

    rule: Any
    p: np.ndarray
    q: np.ndarray
    raw: dict[str, np.ndarray]

    @classmethod
    def stack(cls, rule: Any, p: ArrayLike, q: ArrayLike, raw: dict[str, ArrayLike]) -> "_Pairs":
        rows = {
            name: np.atleast_2d(plain_array(name, value))
            for name, value in {"p": p, "q": q, **raw}.items()
        }
        if len({values.shape for values in rows.values()}) > 1:
            shapes = ", ".join(f"{name} {values.shape}" for name, values in rows.items())
            raise ValueError(f"distributions must have equal shapes, got {shapes}")
        if rows["p"].ndim != 2:
            raise ValueError(f"p must have shape [R, V] or [V], got {rows['p'].shape}")
        rows = {name: checked_rows(name, values) for name, values in rows.items()}
        return cls(rule, rows.pop("p"), rows.pop("q"), rows)

    def test(
        self, rows: np.ndarray, candidates: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """One flag per candidate, u·p_n < b_n·p_n; shapes as `rows`."""
        accept = np.asarray(self.rule.accept_prob(self.p, self.q, **self.raw))
        drafted = self.p[rows, candidates]
        return rng.random(rows.shape) * drafted < accept[rows, candidates] * drafted

    def recover(
        self, rows: np.ndarray, candidates: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """One token for each rejected candidate [N]; equal rejections share one recovery row."""
        vocab = self.p.shape[-1]
        keys, which = np.unique(rows * vocab + candidates, return_inverse=True)
        tokens = np.empty(rows.shape, dtype=np.int64)
        step = max(1, _CHUNK // vocab)
        for start in range(0, keys.size, step):
            row, candidate = np.divmod(keys[start : start + step], vocab)
            raw = {name: values[row] for name, values in self.raw.items()}
            recovery = self.rule.recovery(self.p[row], self.q[row], candidate, **raw)
            here = (which >= start) & (which < start + step)
            tokens[here] = _draw(np.asarray(recovery), which[here] - start, rng)
        return tokens


def _verify(
    pairs: _Pairs,
    rows: np.ndarray,
    drafts: np.ndarray,
    bonus: np.ndarray,
    rng: np.random.Generator,
) -> Block:
    """Test drafts [T, k] of the pairs `rows` [T, k]; recover at the first rejection of a round."""
    rejected = ~pairs.test(rows, drafts, rng)
    first = rejected & (np.cumsum(rejected, axis=-1) == 1)
    recovery = np.full_like(drafts, NO_TOKEN)
    recovery[first] = pairs.recover(rows[first], drafts[first], rng)
    return verify_block(drafts, ~rejected, recovery, bonus)


def _draw(probabilities: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One token from the distribution of each listed row, by inversion of its cumulative sum.

    The sum is taken in double precision: in single precision a long tail loses a tenth of its mass.
    The first index whose sum exceeds u·total, u < 1, has positive probability.
    """
    uniform = rng.random(rows.shape)
    tokens = np.empty(rows.shape, dtype=np.int64)
    for row in np.unique(rows):
        here = rows == row
        mass = np.cumsum(probabilities[row], dtype=np.float64)
        tokens[here] = np.searchsorted(mass, uniform[here] * mass[-1], side="right")
    return tokens
