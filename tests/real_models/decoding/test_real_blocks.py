"""Block verification in the loop: every rule, its enumerated law, and what a run tells of it.

The law is enumerated from A(vy) = min(p(vy), A(v) h(y|v)) alone (claim 22), with no test and no
residual. A chi-square test fails a right decoder once in a million; two wrong ones must fail it.
"""

import inspect

import numpy as np
import pytest
import torch
from round_laws import count_texts, exact_law, p_value, run_tiny

from real_models.decoding.loop import prompt_lookup
from real_models.decoding.metrics import summary
from real_models.decoding.verifying import by_block as blocks
from real_models.decoding.verifying.by_block import block_acceptance, block_kernel, verify_blocks
from real_models.decoding.verifying.candidates import Candidates
from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from theory import RULES, make_rule
from theory.blocks import block_test
from theory.rules import Rule

FALSE_FAIL = 1e-6
TEXTS = 3_000
TESTED = {
    "sps": make_rule("sps"),
    "cactus": make_rule("cactus", delta=0.2),
    "truncated_top_p": make_rule("truncated_top_p", top_p=0.7),
}

VALUES = {"k": 3}  # of parameters that are no share; the others that a rule needs are 0.3


def run(pair, rule, count=4, **more):
    return run_tiny(pair, rule, count, **{"verification": "block", **more})


def texts_of(pair, rule, **more):
    return count_texts(pair, rule, TEXTS, **{"verification": "block", **more})


@pytest.mark.parametrize("name", TESTED)
def test_the_first_tokens_have_the_enumerated_law_of_blocks(pair, name):
    law = exact_law(pair, TESTED[name], 2)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert p_value(texts_of(pair, TESTED[name]), law) > FALSE_FAIL


def test_a_prefix_that_is_kept_by_its_ratio_fails(pair, monkeypatch):
    """c_i = s_i: right for a whole block, too much for its parts."""
    law = exact_law(pair, TESTED["sps"], 2)

    def ratios(*args, **options):
        found = block_test(*args, **options)
        return found._replace(accept=found.scale[1:])

    monkeypatch.setattr(blocks, "block_test", ratios)
    assert p_value(texts_of(pair, TESTED["sps"]), law) < FALSE_FAIL


def test_the_residual_of_the_place_before_fails(pair, monkeypatch):
    law, row = exact_law(pair, TESTED["sps"], 2), Candidates.row

    def verify(rule, candidates, uniforms, **options):
        def before(self, text, place):
            return row(self, text, max(place - 1, 0))

        kernel = block_kernel(rule, candidates)
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "block_kernel", lambda *_, **__: kernel)
            patched.setattr(Candidates, "row", before)
            return verify_blocks(rule, candidates, uniforms, **options)

    monkeypatch.setattr("real_models.decoding.speculation.verify_blocks", verify)
    assert p_value(texts_of(pair, TESTED["sps"]), law) < FALSE_FAIL


@pytest.mark.parametrize("name", RULES)
def test_every_rule_decodes_in_blocks(pair, name):
    parameters = inspect.signature(RULES[name]).parameters.values()
    needed = {p.name: VALUES.get(p.name, 0.3) for p in parameters if p.default is p.empty}
    rule = make_rule(name, **needed)
    found = run(pair, rule, draft_tokens=3, new_tokens=8)
    again = run(pair, rule, draft_tokens=3, new_tokens=8, batch_size=1)
    assert [t.tokens for t in found.texts] == [t.tokens for t in again.texts]
    figures = summary(found)
    assert figures["verification"] == "block"
    assert 0 <= figures["acceptance"] <= 1
    assert figures["kl_per_token"] >= 0


def test_a_greedy_text_in_blocks_is_the_verifiers_own(pair):
    greedy = SamplingSettings(0.0)
    alone = run(pair, make_rule("sps"), draft_tokens=0, new_tokens=12, settings=greedy)
    found = run(pair, make_rule("sps"), draft_tokens=4, new_tokens=12, settings=greedy)
    assert [t.tokens for t in found.texts] == [t.tokens for t in alone.texts]


def test_a_certain_draft_has_one_law_both_ways(pair):
    """Behind a deterministic draft a block brings nothing (claim 22), whatever the numbers say."""
    law = exact_law(pair, make_rule("sps"), 0)
    assert p_value(texts_of(pair, make_rule("sps"), drafter=prompt_lookup(1)), law) > FALSE_FAIL


def test_the_example_of_claim_22_accepts_as_long_as_enumerated():
    """p = (.05, .8, .15), q = (.3, .35, .35), m = 2: .9425, where token by token has .8525."""
    p, q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
    count, stream = 8_000, np.random.default_rng(5)
    tokens = stream.choice(3, size=(count, 2), p=p).tolist()
    places = torch.tensor(np.tile(p, (2 * count, 1))), torch.tensor(np.tile(q, (3 * count, 1)))
    candidates = Candidates(tokens, *places)
    found = verify_blocks(make_rule("sps"), candidates, stream.random((count, 3, 2)))
    lengths = np.array([verdict.accepted for verdict in found])
    error = lengths.std() / np.sqrt(count)
    assert abs(lengths.mean() - 0.9425) < 5 * error < 0.9425 - 0.8525  # fails once in 10⁶


def test_the_acceptance_of_a_place_is_that_of_its_scale():
    p, q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
    drafted, verified = (torch.tensor(row).expand(n, 3) for n, row in ((2, p), (3, q)))
    candidates = Candidates([[1, 1]], drafted, verified)
    scale = 0.35 / 0.8
    wanted = [np.minimum(p, q).sum(), np.minimum(p / scale, q).sum()]
    kernel = block_kernel(make_rule("sps"), candidates)
    found = block_acceptance(kernel, candidates, [(0, 0), (0, 1)])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_law_by_enumeration_is_refused_beyond_its_support(pair, monkeypatch):
    class Own(Rule):
        name = "own"

        def accept(self, pair):
            return 0.5 * (pair.p > 0)

        def recover(self, pair, candidate):
            return pair.q

    assert run(pair, Own()).texts
    monkeypatch.setattr(blocks, "LARGEST_ENUMERATED", 9)
    with pytest.raises(UserError, match="10 tokens of a row, at most 9"):
        run(pair, Own())


def test_an_unknown_verification_is_refused_by_name(pair):
    with pytest.raises(UserError, match="verification must be token, block or scaled, got 'tree'"):
        run(pair, make_rule("sps"), verification="tree")
