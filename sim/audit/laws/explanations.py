"""The laws of samplers with a known fault: what an audit holds against what it sees.

Each is the exact law of a round in which one thing is done wrong, on the same rows. The one that
makes the outcomes likeliest says what the fault looks like.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sim.audit.hostile import Blocks
from sim.audit.laws.rounds import (
    LARGEST_TABLE,
    ByBlock,
    RoundLaw,
    Table,
    TokenByToken,
)
from sim.audit.laws.uniforms import OneUniform, SameUniform
from sim.pairs.filters import filter_probabilities, softmax
from theory import Rule, make_rule
from theory.arrays import normalised_or

__all__ = ["Explanation", "explanations"]

_TEMPERATURES = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)
_TOP_K = (1, 2, 3, 5, 10, 20)
_TOP_P = (0.5, 0.8, 0.9, 0.95)
_SIDES = {"the draft's rows only": (True, False), "the verifier's rows only": (False, True),
          "the rows of both sides": (True, True)}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """A fault in words, and the law of a sampler that has it."""

    name: str
    law: RoundLaw


def explanations(rule: Rule, blocks: Blocks, claim: RoundLaw) -> list[Explanation]:
    """The laws of known faults of a sampler that claims this law of the rule.

    None where the rows are too long for tables (N·m·V² over 4 million).
    """
    p, q = (rows.astype(np.float64) for rows in (blocks.p, blocks.q))
    if p.size * p.shape[-1] > LARGEST_TABLE:
        return []
    of_parts = _of_a_block if isinstance(claim, ByBlock) else _of_tests
    named = [
        *of_parts(rule, p, q, claim),
        *_of_the_bonus(p, q, claim),
        *_of_rows(rule, p, q, claim),
    ]
    return [Explanation(name, law) for name, law in named]


_Named = Iterator[tuple[str, RoundLaw]]


# --- one thing is wrong, token by token ----------------------------------------------------------


def _of_tests(rule: Rule, p: np.ndarray, q: np.ndarray, claim: TokenByToken) -> _Named:
    verifier = q[:, :-1]
    strict = np.where(p > 0, np.minimum(1, verifier / np.where(p > 0, p, 1)), 1.0 * (verifier > 0))
    for name, accept in (
        ("every draft is accepted", np.ones_like(p)),
        ("every draft that the verifier knows is accepted", 1.0 * (verifier > 0)),
        ("every draft is rejected", np.zeros_like(p)),
        ("drafts are accepted as strict sampling does, min(1, q/p)", strict),
        ("drafts are accepted with probability q, whatever p", verifier),
        ("drafts are accepted where the probability exceeds ½, without chance",
         1.0 * (claim.accept > 0.5)),
        ("drafts are accepted where the verifier's likeliest token is drafted",
         1.0 * (verifier == verifier.max(axis=-1, keepdims=True))),
        ("drafts are accepted with the square of the probability", claim.accept**2),
    ):  # fmt: skip
        yield name, replace(claim, accept=accept)
    yield from _of_recoveries(p, q, claim)
    yield "one uniform serves the tests of all places", OneUniform(claim)
    table = claim.recovery
    if isinstance(table, Table):
        yield "the uniform of the test also draws the recovery", SameUniform.of(claim, table.kept)
    yield "the block is verified as a whole", ByBlock.of(rule, p, q)


def _of_recoveries(p: np.ndarray, q: np.ndarray, claim: TokenByToken) -> _Named:
    verifier, behind = q[:, :-1], q[:, 1:]
    count, places, vocab = p.shape
    others = verifier[:, :, None, :] * (1 - np.eye(vocab))
    for name, weights in (
        ("the recovery is drawn from the verifier's row q, not from the residual", verifier),
        ("the recovery is drawn from norm((q − p)₊), as strict sampling does",
         np.maximum(verifier - p, 0)),
        ("the recovery is drawn from norm((p − q)₊), the sides swapped",
         np.maximum(p - verifier, 0)),
        ("the recovery is drawn from norm(|q − p|)", np.abs(verifier - p)),
        ("the recovery is drawn from the draft's row p", p),
        ("the recovery is drawn from q without the rejected token", others),
        ("the recovery is drawn from the verifier's row of the next place", behind),
        ("the recovery is the verifier's likeliest token", _likeliest(verifier)),
        ("the recovery is the likeliest token of norm((q − p)₊)",
         _likeliest(np.maximum(verifier - p, 0))),
        ("the rejected token is emitted after all", np.broadcast_to(
            np.eye(vocab), (count, places, vocab, vocab))),
    ):  # fmt: skip
        wide = weights if weights.ndim == 4 else weights[:, :, None, :]
        rows = normalised_or(np, wide, np.broadcast_to(verifier[:, :, None, :], wide.shape))
        yield name, replace(claim, recovery=Table(rows))
    if isinstance(claim.recovery, Table):
        likeliest = Table(_likeliest(claim.recovery.kept))
        yield "the recovery is the residual's likeliest token", replace(claim, recovery=likeliest)


# --- one thing is wrong, block by block ----------------------------------------------------------


def _of_a_block(rule: Rule, p: np.ndarray, q: np.ndarray, claim: ByBlock) -> _Named:
    yield ("the test of the whole block is not capped (the product of all ratios)",
           replace(claim, uncapped=True))  # fmt: skip
    yield ("the tests sum the residual of place i instead of i + 1", replace(claim, shift=1))
    yield "one uniform serves the tests of all places", replace(claim, one_uniform=True)
    yield "each draft is verified by itself", TokenByToken.of(rule, p, q)
    verifier = q[:, :-1]
    for name, rows in (
        ("the recovery is drawn from the verifier's row q, not from the residual", verifier),
        ("the recovery is drawn from norm((h − p)₊), without the scale of the block",
         normalised_or(np, np.maximum(claim.h - p, 0), claim.h)),
        ("the recovery is the verifier's likeliest token", _likeliest(verifier)),
        ("the recovery is drawn from the verifier's row of the next place", q[:, 1:]),
    ):  # fmt: skip
        yield name, _Mended(claim, recovery=rows)


@dataclass(frozen=True)
class _Mended(RoundLaw):
    """A law of another, but for the rows that recovery [N, m, V] or bonus [N, V] are drawn from."""

    claim: RoundLaw
    recovery: np.ndarray | None = None
    bonus: np.ndarray | None = None

    def chances(self, block: np.ndarray, drafts: np.ndarray) -> np.ndarray:
        return self.claim.chances(block, drafts)

    def token_law(self, block: np.ndarray, drafts: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        law = self.claim.token_law(block, drafts, accepted)
        ended = accepted == drafts.shape[1]
        if self.bonus is not None:
            law[ended] = self.bonus[block[ended]]
        if self.recovery is not None:
            law[~ended] = self.recovery[block[~ended], accepted[~ended]]
        return law


# --- the bonus, and the rows of all --------------------------------------------------------------


def _of_the_bonus(p: np.ndarray, q: np.ndarray, claim: RoundLaw) -> _Named:
    rows = {"the verifier's row of the last draft, one place too early": q[:, -2],
            "the verifier's row of the first place": q[:, 0],
            "the draft's last row": p[:, -1],
            "the residual of the last draft": normalised_or(np, np.maximum(q[:, -2] - p[:, -1], 0),
                                                        q[:, -2])}  # fmt: skip
    for name, bonus in rows.items():
        yield f"the bonus is drawn from {name}", _Mended(claim, bonus=bonus)
    yield "the bonus is the verifier's likeliest token", _Mended(claim, bonus=_likeliest(q[:, -1]))


def _of_rows(rule: Rule, p: np.ndarray, q: np.ndarray, claim: RoundLaw) -> _Named:
    def law(rule: Rule, p: np.ndarray, q: np.ndarray) -> RoundLaw:
        return type(claim).of(rule, p, q)  # type: ignore[attr-defined]

    shifted = np.concatenate([q[:, 1:], q[:, -1:]], axis=1)
    late = np.concatenate([q[:, :1], q[:, :-1]], axis=1)
    yield "p and q are swapped", law(rule, q[:, :-1], np.concatenate([p, q[:, -1:]], axis=1))
    yield "each place reads the verifier's row of the next one", law(rule, p, shifted)
    yield "each place reads the verifier's row of the one before", law(rule, p, late)
    yield (
        "each place reads the draft's row of the next one",
        law(rule, np.concatenate([p[:, 1:], p[:, -1:]], axis=1), q),
    )
    if rule.name != "sps":
        yield "it is strict sampling", law(make_rule("sps"), p, q)
    for name, change in _changes(p.shape[-1]):
        changed = change(p), change(q)
        for side, (draft, verifier) in _SIDES.items():
            rows = changed[0] if draft else p, changed[1] if verifier else q
            yield f"{name} {side}", law(rule, *rows)


def _changes(vocab: int) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    for temperature in _TEMPERATURES:
        yield (f"temperature {temperature:g} is applied (once more) to the logits of",
               lambda rows, power=1 / temperature: _powered(rows, power))  # fmt: skip
    for k in (k for k in _TOP_K if k < vocab):
        yield (f"top-k {k} is applied (after the draft) to",
               lambda rows, k=k: filter_probabilities(rows, k))  # fmt: skip
    for mass in _TOP_P:
        yield (f"top-p {mass:g} is applied (after the draft) to",
               lambda rows, mass=mass: filter_probabilities(rows, 0, mass))  # fmt: skip
    yield "a softmax is taken of the probabilities of", softmax


def _powered(rows: np.ndarray, power: float) -> np.ndarray:
    highest = rows.max(axis=-1, keepdims=True)
    raised = (rows / highest) ** power
    return raised / raised.sum(axis=-1, keepdims=True)


def _likeliest(rows: np.ndarray) -> np.ndarray:
    return np.eye(rows.shape[-1])[rows.argmax(axis=-1)]
