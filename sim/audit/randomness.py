"""Where a sampler's randomness comes from: the generator that it is handed, or elsewhere.

No law of single rounds shows it: a sampler that seeds its own generator anew in each call emits the
right law in every round, and the same tokens again and again. Here the same rounds are asked three
times, twice with one generator and once with another.
"""

import numpy as np

from sim.audit.laws.rounds import RoundLaw
from sim.audit.samplers.calling import Backend, Returned, Sampler, call

__all__ = ["other_randomness"]

_ROUNDS = 64
_CERTAIN = 1e-9  # a coincidence of smaller probability is none


def other_randomness(sampler: Sampler, backend: Backend, law: RoundLaw | None) -> str:
    """How a sampler does not draw from its generator alone, in a sentence; "" where it does.

    Without a law only a sampler that draws from elsewhere is told of.
    """
    block = np.arange(_ROUNDS) % len(backend.blocks.p)
    rng = np.random.default_rng(0)
    mass = backend.blocks.p[block].astype(np.float64).cumsum(axis=-1)
    drafts = (mass <= rng.random((*mass.shape[:2], 1)) * mass[..., -1:]).sum(axis=-1)
    first, again, other = (
        call(sampler, backend, backend.generator(np.random.SeedSequence(seed)), block, drafts)
        for seed in (1, 1, 2)
    )
    if first.faults or again.faults or other.faults:
        return ""
    if not _alike(first, again):
        return (
            "asked again with the same generator it answers otherwise: it draws from elsewhere, "
            "and what is told here need not come again"
        )
    if law is not None and _alike(first, other) and _coincidence(law, block, drafts) < _CERTAIN:
        return (
            "another generator changes nothing in what it answers: its random numbers are its "
            "own, and the same in each call"
        )
    return ""


def _alike(one: Returned, other: Returned) -> bool:
    return np.array_equal(one.accepted, other.accepted) and np.array_equal(one.token, other.token)


def _coincidence(law: RoundLaw, block: np.ndarray, drafts: np.ndarray) -> float:
    """The probability that two right samplers answer alike in all these rounds."""
    alike = law.accepted_law(block, drafts) ** 2
    for count in range(alike.shape[1]):
        tokens = law.token_law(block, drafts, np.full(len(block), count))
        alike[:, count] *= np.sum(tokens**2, axis=-1)
    return float(np.prod(alike.sum(axis=-1)))
