"""This project's own decoder as a sampler that `python -m sim.audit` can ask.

    python -m sim.audit --sampler integrations/audits/own_decoder.py:sps --rule sps --samples 20000

What is audited is `real_models.decoding.verification.verify`, the step of every decoding round:
every place is tested, the first rejection recovered, the bonus drawn.
"""

from typing import Any

import numpy as np
import torch

from real_models.decoding.verification import Candidates, verify
from theory import Rule, make_rule

__all__ = ["cactus", "decoder", "frontier", "lenience", "sps", "typical"]


def decoder(rule: Rule) -> Any:
    """The decoder's verification with a rule, as a batched sampler on numpy's rows."""

    def sampler(
        p: np.ndarray, q: np.ndarray, drafted: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        count, places = drafted.shape
        rows = (torch.from_numpy(x.reshape(-1, x.shape[-1])) for x in (p, q))
        uniforms = generator.random((count, places + 1, 2))
        verdicts = verify(rule, Candidates(drafted.tolist(), *rows), uniforms)
        accepted = np.array([verdict.accepted for verdict in verdicts])
        tokens = np.where(np.arange(places) < accepted[:, None], drafted, -1)
        tokens = np.hstack([tokens, np.full((count, 1), -1)])
        tokens[np.arange(count), accepted] = [verdict.token for verdict in verdicts]
        return accepted, tokens

    return sampler


sps = decoder(make_rule("sps"))
cactus = decoder(make_rule("cactus", delta=0.1))
lenience = decoder(make_rule("lenience", l=0.43))
frontier = decoder(make_rule("frontier", level=0.05))
typical = decoder(make_rule("typical"))
