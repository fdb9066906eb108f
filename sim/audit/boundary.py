"""The end of the unit interval: what a sampler does where its uniform numbers are 0.

`u ≤ q/p` accepts a token with q = 0 where u = 0: once in 2²⁴ draws of single precision, too rare
for samples to show. Here the sampler is asked with a generator whose first numbers are 0.
"""

import numpy as np

from sim.audit.laws.rounds import RoundLaw
from sim.audit.samplers.calling import ZEROS, Backend, Sampler, call

__all__ = ["accepted_at_zero"]


def accepted_at_zero(sampler: Sampler, backend: Backend, law: RoundLaw) -> str:
    """What is accepted at u = 0 though its probability is 0, in a sentence; "" where nothing is.

    Numpy only, in whose generators alone a 0 can be put; one that is drawn from by other means than
    its first numbers is not tested by it.
    """
    generator = backend.zeros_first()
    block, drafts = _never_accepted(backend.blocks.p, law)
    if generator is None or not len(block):
        return ""
    returned = call(sampler, backend, generator, block, drafts)
    wrong = returned.sound & (returned.accepted > 0)
    if not wrong.any():
        return ""
    row = int(np.argmax(wrong))
    return (
        f"at u = 0 a draft that is never accepted is: drafted {drafts[row].tolist()}, accepted "
        f"{returned.accepted[row]} (block {backend.blocks.names[block[row]]!r}); "
        "too rare for samples to show"
    )


def _never_accepted(p: np.ndarray, law: RoundLaw) -> tuple[np.ndarray, np.ndarray]:
    """Rounds whose first draft is accepted with probability 0: as many as ZEROS are enough for."""
    block, token = np.nonzero(p[:, 0] > 0)
    drafts = p.argmax(axis=-1)[block]
    drafts[:, 0] = token
    never = np.flatnonzero(law.chances(block, drafts)[:, 0] <= 0)
    most = max(1, ZEROS // 2 // (p.shape[1] + 1))
    chosen = never[:: -(-len(never) // most) or 1] if len(never) else never
    return block[chosen], drafts[chosen]
