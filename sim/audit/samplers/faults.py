"""Samplers with one known fault each, rebuilt in a few lines of numpy: an audit has to find them.

Each is what some public sampler does or did, with the claim that it breaks. They show what an audit
says, and serve as controls that must fail.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sim.audit.samplers.calling import Sampler
from sim.audit.samplers.reference import drawn, finished
from sim.pairs.filters import filter_probabilities, softmax
from theory import Rule, make_rule

__all__ = ["FaultySampler", "faulty_samplers"]

_Array = np.ndarray
_Rng = np.random.Generator


@dataclass(frozen=True)
class FaultySampler:
    """A sampler, what it claims to be, and what is wrong with it.

    rule and verification are the claim; `wide` says that the fault shows on rows of so many tokens
    only (`hostile_pairs(vocab=…)`), `rare` that it is too rare to be found in 10⁵ rounds.
    """

    name: str
    fault: str
    sampler: Sampler
    rule: Rule = field(default_factory=lambda: make_rule("sps"))
    verification: str = "token"
    wide: int = 0
    rare: bool = False


def faulty_samplers() -> dict[str, FaultySampler]:
    """The catalogue, by name."""
    return {found.name: found for found in _catalogue()}


def _catalogue() -> list[FaultySampler]:
    top_k = make_rule("top_k", k=4)
    mentored = make_rule("mentored", level=0.05)
    found = partial(FaultySampler, verification="block")
    return [
        FaultySampler("reused_for_recovery", "the uniform of the test also draws the recovery",
                      _strict(reuse="recovery")),
        FaultySampler("reused_over_places", "one uniform serves the tests of all places",
                      _strict(reuse="places")),
        FaultySampler("shared_by_rows", "one uniform serves all rows of a batch",
                      _strict(reuse="rows")),
        FaultySampler("recovery_from_q", "a rejection is followed by a draw from q, not from "
                      "norm((q − p)₊)", _strict(residual=lambda p, q: q)),
        FaultySampler("argmax_recovery", "a rejection is followed by the residual's likeliest "
                      "token", _strict(residual=lambda p, q: _likeliest(np.maximum(q - p, 0)))),
        FaultySampler("bonus_one_row_early", "the bonus is drawn from the verifier's row of the "
                      "last draft", _strict(bonus=-2)),
        FaultySampler("temperature_on_q", "T = 0.8 is applied once more, on the verifier's side",
                      _strict(verifier=lambda q: _powered(q, 1 / 0.8))),
        FaultySampler("filter_after_draft", "top-k 3 is applied to the draft's rows after the "
                      "draft", _strict(draft=lambda p: filter_probabilities(p, 3))),
        FaultySampler("swapped", "p and q are swapped", _swapped),
        FaultySampler("softmax_twice", "a softmax is taken of the verifier's probabilities",
                      _strict(verifier=softmax)),
        found("uncapped_block", "the test of the whole block is the plain product of the ratios",
              partial(_block, uncapped=True)),
        found("block_residual_early", "the tests sum the residual of place i instead of i + 1",
              partial(_block, shift=1)),
        FaultySampler("bisection_wrong_way", "the search for a target within the budget runs the "
                      "wrong way, to a target that accepts all that q knows",
                      partial(_mentored, level=0.05), mentored),
        FaultySampler("top_k_short_support", "where fewer than k tokens are left by a filter, all "
                      "are accepted, q = 0 included", partial(_top_k, k=4), top_k),
        FaultySampler("entropy_offset", "the entropy is that of log(q + 1e−5)", _typical,
                      make_rule("typical"), wide=20_000),
        FaultySampler("zero_uniform", "u ≤ q/p with u in single precision: u = 0 accepts q = 0",
                      _strict(test=_single_precision), rare=True),
    ]  # fmt: skip


# --- strict sampling, with one thing done wrong --------------------------------------------------


def _strict(
    reuse: str = "",
    residual: Callable[[_Array, _Array], _Array] = lambda p, q: np.maximum(q - p, 0),
    bonus: int = -1,
    draft: Callable[[_Array], _Array] = lambda p: p,
    verifier: Callable[[_Array], _Array] = lambda q: q,
    test: Callable[[_Array, _Array, _Array], _Array] = lambda u, p, q: u * p < q,
) -> Sampler:
    """Strict speculative sampling but for what is given."""

    def sampler(p: _Array, q: _Array, drafted: _Array, generator: _Rng) -> tuple[Any, Any]:
        p, q = draft(p), verifier(q)
        count, places = drafted.shape
        shape = {"places": (count, 1), "rows": (1, places)}.get(reuse, (count, places))
        uniform = np.broadcast_to(generator.random(shape), (count, places))
        passed = test(uniform, _at(p, drafted), _at(q[:, :-1], drafted))
        accepted = passed.cumprod(-1).sum(-1)
        row, rejected = np.arange(count), accepted < places
        law = q[:, bonus].copy()
        at = row[rejected], accepted[rejected]
        law[rejected] = residual(p[at], q[at])
        second = generator.random(count)
        if reuse == "recovery":
            second[rejected] = uniform[at]
        return finished(drafted, accepted, _drawn(law, second))

    return sampler


def _single_precision(u: _Array, p: _Array, q: _Array) -> _Array:
    """u as 24 random bits: 0 once in 16.8 million draws."""
    return np.floor(u * 2**24) / 2**24 * p <= q


def _swapped(p: _Array, q: _Array, drafted: _Array, generator: _Rng) -> tuple[Any, Any]:
    verifier = np.concatenate([p, q[:, -1:]], axis=1)
    return _strict()(q[:, :-1], verifier, drafted, generator)


def _block(
    p: _Array,
    q: _Array,
    drafted: _Array,
    generator: _Rng,
    uncapped: bool = False,
    shift: int = 0,
) -> tuple[Any, Any]:
    """Block verification (2403.10444), from the last place back, with one of two mistakes."""
    count, places = drafted.shape
    ratio = _at(q[:, :-1], drafted) / _at(p, drafted)
    scale = np.ones((count, places + 1))
    for i in range(places):
        scale[:, i + 1] = np.minimum(1, scale[:, i] * ratio[:, i])
    test = np.ones_like(scale)
    for i in range(1, places):
        left = np.maximum(scale[:, i, None] * q[:, i - shift] - p[:, i - shift], 0).sum(-1)
        missing = left + 1 - scale[:, i]
        test[:, i] = np.where(missing > 0, left / np.where(missing > 0, missing, 1), 1)
    test[:, -1] = np.minimum(1, ratio.prod(-1)) if uncapped else scale[:, -1]
    passed = generator.random(scale.shape) < test
    accepted = places - np.argmax(passed[:, ::-1], axis=-1)
    row, law = np.arange(count), q[:, -1].copy()
    back = accepted < places
    at = row[back], accepted[back]
    law[back] = np.maximum(scale[at][:, None] * q[at] - p[at], 0)
    return finished(drafted, accepted, _drawn(law, generator.random(count)))


# --- other rules ---------------------------------------------------------------------------------


def _mentored(
    p: _Array, q: _Array, drafted: _Array, generator: _Rng, level: float
) -> tuple[Any, Any]:
    """clip(p, b·q, q/α), the largest α with KL(q‖h) ≤ level; the search goes the wrong way."""
    verifier = q[:, :-1]
    low, high = np.full((*p.shape[:2], 1), 1e-6), np.ones((*p.shape[:2], 1))
    for _ in range(8):
        alpha = (low + high) / 2
        target = _clipped(p, verifier, alpha)
        surprise = np.log(np.where(verifier > 0, verifier / np.where(verifier > 0, target, 1), 1))
        spent = (verifier * surprise).sum(axis=-1, keepdims=True)
        # A target that costs too much needs a larger α, and is given a smaller one.
        low, high = np.where(spent > level, low, alpha), np.where(spent > level, alpha, high)
    rows = np.concatenate([_clipped(p, verifier, low), q[:, -1:]], axis=1)
    return _strict()(p, rows, drafted, generator)


def _clipped(p: _Array, q: _Array, alpha: _Array) -> _Array:
    """clip(p, b·q, q/α) of mass 1, by a bisection of b."""
    low, high = np.zeros_like(alpha), np.ones_like(alpha)
    capped = np.minimum(p, q / alpha)
    for _ in range(12):
        b = (low + high) / 2
        short = np.maximum(capped, b * q).sum(axis=-1, keepdims=True) < 1
        low, high = np.where(short, b, low), np.where(short, high, b)
    return np.maximum(capped, high * q)


def _top_k(p: _Array, q: _Array, drafted: _Array, generator: _Rng, k: int) -> tuple[Any, Any]:
    """The k-th largest of a row with fewer than k tokens is 0, and q ≥ 0 holds for all."""
    verifier = q[:, :-1]
    kth = np.partition(verifier, -k, axis=-1)[..., -k, None]
    return _accept_set(
        verifier >= kth, np.where(verifier >= kth, verifier, 0), q, drafted, generator
    )


def _typical(p: _Array, q: _Array, drafted: _Array, generator: _Rng) -> tuple[Any, Any]:
    verifier = q[:, :-1]
    entropy = -(verifier * np.log(verifier + 1e-5)).sum(-1, keepdims=True)
    member = verifier > np.minimum(0.09, 0.3 * np.exp(-entropy))
    return _accept_set(member, _likeliest(verifier), q, drafted, generator)


def _accept_set(
    member: _Array, recovery: _Array, q: _Array, drafted: _Array, generator: _Rng
) -> tuple[Any, Any]:
    """The tokens of a set are accepted for certain."""
    accepted = _at(member, drafted).cumprod(-1).sum(-1)
    row, rejected = np.arange(len(drafted)), accepted < drafted.shape[1]
    law = q[:, -1].copy()
    law[rejected] = recovery[row[rejected], accepted[rejected]]
    return finished(drafted, accepted, _drawn(law, generator.random(len(drafted))))


# --- what they share -----------------------------------------------------------------------------


def _at(rows: _Array, drafted: _Array) -> _Array:
    return np.take_along_axis(rows, drafted[..., None], axis=-1)[..., 0]


def _drawn(rows: _Array, uniform: _Array) -> _Array:
    """As right samplers draw; from an empty row, which a fault may leave, evenly."""
    empty = rows.sum(axis=-1, keepdims=True) <= 0
    return drawn(np.where(empty, 1.0, rows), uniform)


def _likeliest(rows: _Array) -> _Array:
    return 1.0 * (np.arange(rows.shape[-1]) == rows.argmax(axis=-1)[..., None])


def _powered(rows: _Array, power: float) -> _Array:
    raised = rows**power
    return raised / raised.sum(axis=-1, keepdims=True)
