"""Right samplers pass: rules, verifications, rows and precisions, each watched to its end.

At level 0.01 a right sampler is ever rejected with probability at most 0.01. Of 1,000 of them more
than 21 are rejected with probability below 1e-3, of 20 more than 4 with probability below 2e-6.
"""

import itertools

import numpy as np
import pytest

from sim import audit
from sim.pairs.families import make_family
from theory import make_rule

LEVEL = 0.01
RULES = [
    ("sps", {}),
    ("lenience", {"l": 0.5}),
    ("cactus", {"delta": 0.1}),
    ("interpolation", {"alpha": 0.4}),
    ("ears", {"tau": 0.3}),
    ("typical", {}),
    ("top_k", {"k": 3}),
    ("top_n_delta", {"n": 4, "delta": 0.2}),
    ("target_only", {"threshold_acc": 0.4}),
    ("cactus_target_only", {"delta": 0.1}),
    ("cascade_token_v3", {"alpha": 0.2}),
    ("frontier", {"level": 0.05}),
]


def pairs(kind, seed):
    """Hostile rows, or rows of a family, in blocks of one to four drafts."""
    drafts = 1 + seed % 4
    if kind == "hostile":
        return audit.hostile_pairs(vocab=16, drafts=drafts, seed=seed)
    batch = make_family(kind).sample(6 * (drafts + 1), 12, np.random.default_rng(seed))
    p, q = (rows.reshape(6, drafts + 1, 12) for rows in (batch.p, batch.q))
    return audit.Blocks(p[:, :-1], q)


def right_audits(count, samples):
    """`count` audits of right samplers: every rule on every kind of rows, seeds of their own."""
    kinds = ("hostile", "gaussian", "hostile", "filtered", "hostile", "disjoint")
    every = list(itertools.product(kinds, RULES))
    for seed in range(count):
        kind, (name, parameters) = every[7 * seed % len(every)]
        verification, rule = ("token", "token", "block")[seed % 3], make_rule(name, **parameters)
        yield audit.audit(
            audit.reference_sampler(rule, verification),
            rule,
            verification=verification,
            pairs=pairs(kind, seed),
            samples=samples,
            level=LEVEL,
            seed=seed,
            dtype="float32" if seed % 5 == 0 else "float64",
        )


def rejected(count, samples):
    return [report.question for report in right_audits(count, samples) if report.rejected]


def test_twenty_right_samplers_pass_but_for_the_declared_rate():
    assert len(rejected(20, 1_500)) <= 4


@pytest.mark.nightly
def test_a_thousand_right_samplers_pass_but_for_the_declared_rate():
    assert len(rejected(1_000, 10_000)) <= 21
