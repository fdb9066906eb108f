"""The law of a round: against one-step laws, against enumeration, and against known numbers."""

import itertools

import numpy as np
import pytest

from sim import audit
from sim.audit.laws.explanations import explanations
from sim.audit.laws.rounds import ByBlock, TokenByToken, round_law
from theory import make_rule, one_step

P, Q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
SPS = make_rule("sps")
RULES = [
    ("sps", {}),
    ("lenience", {"l": 0.5}),
    ("cactus", {"delta": 0.1}),
    ("cactus_exact", {"delta": 0.1}),
    ("frontier", {"level": 0.05}),
    ("mentored", {"level": 0.05}),
    ("typical", {}),
    ("top_k", {"k": 3, "recovery": "indicator"}),
    ("target_only", {"threshold_acc": 0.4}),
    ("cascade_token_v3", {"alpha": 0.2}),
]


def alike(p, q, drafts):
    """One block whose places all have the rows p and q."""
    return audit.Blocks(np.tile(p, (1, drafts, 1)), np.tile(q, (1, drafts + 1, 1)))


def every_draft(blocks):
    """All drafts of block 0, and their probabilities."""
    _, places, vocab = blocks.shape
    drafts = np.array(list(itertools.product(range(vocab), repeat=places)))
    return drafts, np.prod(blocks.p[0][np.arange(places), drafts], axis=-1)


def mean_accepted(law, blocks):
    drafts, chance = every_draft(blocks)
    accepted = law.accepted_law(np.zeros(len(drafts), dtype=int), drafts)
    return chance @ accepted @ np.arange(blocks.shape[1] + 1)


@pytest.mark.parametrize(("name", "parameters"), RULES)
def test_the_first_token_of_a_round_has_the_one_step_law(name, parameters):
    rule = make_rule(name, **parameters)
    blocks = audit.hostile_pairs(vocab=8, drafts=1)
    law, step = round_law(rule, blocks), one_step(rule, blocks.p[:, 0], blocks.q[:, 0])
    for block in range(len(blocks.p)):
        drafts = np.arange(8)[:, None]
        index, chance = np.full(8, block), blocks.p[block, 0]
        passed = law.chances(index, drafts)[:, 0]
        recovered = law.token_law(index, drafts, np.zeros(8, dtype=int))
        output = chance * passed + (chance * (1 - passed)) @ recovered
        np.testing.assert_allclose(output, step.output[block], atol=1e-12)
        np.testing.assert_allclose(chance @ passed, step.acceptance[block], atol=1e-12)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize(("name", "parameters"), RULES)
def test_the_text_of_a_round_follows_the_rules_own_output(name, parameters, verification):
    """Two places, continued by the output itself behind a round: P(y₁ y₂) is a product."""
    rule = make_rule(name, **parameters)
    blocks = audit.hostile_pairs(vocab=8, drafts=2, seed=1)
    law = round_law(rule, blocks, verification)
    output = one_step(rule, blocks.p, blocks.q[:, :-1]).output
    for block in range(len(blocks.p)):
        target = output[block]
        text = np.zeros((8, 8))
        drafts, chance = every_draft(audit.Blocks(blocks.p[[block]], blocks.q[[block]]))
        index = np.full(len(drafts), block)
        accepted = law.accepted_law(index, drafts) * chance[:, None]
        for kept in range(3):
            token = law.token_law(index, drafts, np.full(len(drafts), kept))
            for draft, weight, row in zip(drafts, accepted[:, kept], token):
                if kept == 0:
                    text += weight * np.outer(row, target[1])
                elif kept == 1:
                    text[draft[0]] += weight * row
                else:
                    text[draft[0], draft[1]] += weight
        np.testing.assert_allclose(text, np.outer(*target), atol=1e-12)


def test_known_accepted_lengths():
    """Numbers of 2403.10444 and of the two-token example, worked out by hand."""
    short, long = alike(P, Q, 2), alike(P, Q, 4)
    two = alike(np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3]), 2)
    for blocks, token, block in ((short, 0.8525, 0.9425), (long, 1.110381, 1.441081),
                                 (two, 10 / 9, 11 / 9)):  # fmt: skip
        assert mean_accepted(round_law(SPS, blocks), blocks) == pytest.approx(token, abs=1e-6)
        by_block = round_law(SPS, blocks, "block")
        assert mean_accepted(by_block, blocks) == pytest.approx(block, abs=1e-6)


def test_the_uncapped_test_accepts_more_than_any_lossless_one():
    two = alike(np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3]), 2)
    law = ByBlock.of(SPS, two.p, two.q, uncapped=True)
    assert mean_accepted(law, two) == pytest.approx(12 / 9, abs=1e-12)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_every_known_fault_is_a_law_of_its_own(verification):
    blocks = audit.hostile_pairs(vocab=8, drafts=3)
    rng = np.random.default_rng(0)
    block = np.arange(300) % len(blocks.p)
    drafts = rng.integers(8, size=(300, 3))
    accepted = rng.integers(4, size=300)
    claim = round_law(SPS, blocks, verification)
    found = explanations(SPS, blocks, claim)
    assert len({known.name for known in found}) == len(found) > 60
    for known in found:
        chances = known.law.chances(block, drafts)
        assert np.all((chances >= 0) & (chances <= 1 + 1e-12)), known.name
        rows = known.law.token_law(block, drafts, accepted)
        np.testing.assert_allclose(rows.sum(axis=-1), 1, atol=1e-9, err_msg=known.name)
        length = known.law.accepted_law(block, drafts)
        np.testing.assert_allclose(length.sum(axis=-1), 1, atol=1e-9, err_msg=known.name)


def test_long_rows_are_computed_as_met_and_are_those_of_the_table():
    blocks = audit.hostile_pairs(vocab=10, drafts=2)
    rule = make_rule("cactus", delta=0.1)
    law = TokenByToken.of(rule, blocks.p, blocks.q)
    from sim.audit.laws.rounds import Computed

    computed = Computed(rule, blocks.p, blocks.q[:, :-1])
    rng = np.random.default_rng(1)
    at = (rng.integers(15, size=200), rng.integers(2, size=200), rng.integers(10, size=200))
    np.testing.assert_array_equal(computed.rows(*at), law.recovery.rows(*at))


def test_another_verification_is_refused():
    with pytest.raises(ValueError, match="verification must be 'token' or 'block', got 'tree'"):
        round_law(SPS, alike(P, Q, 1), "tree")
