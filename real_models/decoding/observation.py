"""What is known exactly at every place that a decoding loop visits, beyond the tokens it drew.

At a drafted place the law of the emitted token is known: its acceptance and its divergence from the
verifier need no sampling. At a bonus place the token is the verifier's own, and the divergence 0.
In a block a place is visited where the drafts before it are accepted, and emits by the same law.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real_models.decoding.verifying.by_block import block_acceptance, block_kernel
from real_models.decoding.verifying.candidates import Candidates, Place, Verdict
from real_models.decoding.verifying.placed_rules import PlacedRules
from theory import Rule, divergence
from theory.arrays import to_numpy

__all__ = ["Observation", "observe"]


@dataclass(frozen=True)
class Observation:
    """One number per emitted token of a round, drafted places first, then the bonus if any.

    divergence : KL(output‖q) in nats of the law that emitted the token; 0 at a bonus place.
    acceptance, strict : of the rule and of `sps` by itself at the place, Σ p b and Σ min(p, q); in
        a block the chance of one accepted draft more, Σ min(p/s, h). nan at a bonus place.
    surprise   : −log of the token's probability under the verifier's plain softmax, in nats.
    """

    divergence: np.ndarray
    acceptance: np.ndarray
    strict: np.ndarray
    surprise: np.ndarray

    @classmethod
    def join(cls, parts: "Sequence[Observation]") -> "Observation":
        """The observations of consecutive rounds as one."""
        return cls(*(np.concatenate(values) for values in zip(*(vars(p).values() for p in parts))))

    def first(self, count: int) -> "Observation":
        """The observation of the first `count` tokens."""
        return Observation(*(values[:count] for values in vars(self).values()))


def observe(
    rule: Rule | PlacedRules,
    candidates: Candidates,
    verdicts: list[Verdict],
    logits: torch.Tensor,
    verification: str = "token",
) -> list[Observation]:
    """One observation per text; `logits` [Σ (k_i + 1), V] are the verifier's, as `candidates.q`."""
    visited = [
        (i, place)
        for i, (drafted, verdict) in enumerate(zip(candidates.tokens, verdicts))
        for place in range(min(verdict.accepted + 1, len(drafted)))
    ]
    known = np.zeros((3, 0))
    if visited and verification == "token":
        known = _laws_at(PlacedRules.of(rule), candidates, visited)
    elif visited:
        kernel = block_kernel(rule, candidates, scaled=verification == "scaled")
        known = _blocks_at(kernel, candidates, visited)
    observations, start, row = [], 0, 0
    for drafted, verdict in zip(candidates.tokens, verdicts):
        tested = min(verdict.accepted + 1, len(drafted))
        bonus = verdict.accepted == len(drafted)
        here = np.pad(known[:, start : start + tested], [(0, 0), (0, int(bonus))])
        here[1:, tested:] = np.nan
        emitted = [*drafted[: verdict.accepted], verdict.token]
        surprise = _surprise(logits[row : row + len(emitted)], emitted)
        observations.append(Observation(*here, surprise))
        start, row = start + tested, row + len(drafted) + 1
    return observations


def _laws_at(rules: PlacedRules, candidates: Candidates, places: list[Place]) -> np.ndarray:
    """Divergence of the output from q, acceptance and strict acceptance, [3, places]."""
    known = np.zeros((3, len(places)))
    for rule, group in rules.groups(places):
        pair = candidates.pair([places[i] for i in group], sort=True)
        law = rule.law(pair)
        found = divergence("kl", law.output, pair.q, validate=False)
        known[:, group] = _rows(found, law.acceptance, 1.0 - pair.total_variation)
    return known


def _blocks_at(kernel: Any, candidates: Candidates, places: list[Place]) -> np.ndarray:
    """The same in blocks, of what the kernel emits at each place."""
    pair = candidates.pair(places)
    rows = [candidates.row(text, place) for text, place in places]
    spent = divergence("kl", kernel[rows], pair.expand(pair.q), validate=False)
    accepted = block_acceptance(kernel, candidates, places)
    return _rows(spent, accepted, 1.0 - pair.total_variation)


def _rows(*values: Any) -> np.ndarray:
    return np.stack([to_numpy(rows) for rows in values])


def _surprise(logits: torch.Tensor, tokens: list[int]) -> np.ndarray:
    index = torch.tensor(tokens, device=logits.device)[:, None]
    return -logits.double().log_softmax(-1).gather(-1, index)[:, 0].cpu().numpy()
