"""The step with one wait: the verdicts are those of the step place by place, for every rule."""

import inspect
from unittest import mock

import numpy as np
import pytest
import torch

from real_models.decoding.verifying import at_once, by_token
from real_models.decoding.verifying.by_token import verify
from real_models.decoding.verifying.candidates import Candidates, Verdict
from real_models.decoding.verifying.placed_rules import PlacedRules
from theory import RULES, make_rule
from theory.arrays import basis

LENGTHS, SIZE = (3, 0, 4, 1, 4), 40
VALUES = {"k": 3}  # of parameters that are no share; the others that a rule needs are 0.3


def rule_of(name):
    parameters = inspect.signature(RULES[name]).parameters.values()
    return make_rule(
        name, **{p.name: VALUES.get(p.name, 0.3) for p in parameters if p.default is p.empty}
    )


def rows(rng, count, zeros):
    found = rng.dirichlet(np.full(SIZE, 0.4), count)
    if zeros:
        found = np.where(found >= np.quantile(found, 0.6, axis=-1, keepdims=True), found, 0.0)
    return torch.tensor(found / found.sum(-1, keepdims=True))


def drafted(rng, lengths=LENGTHS, zeros=False):
    """Drafts drawn from their rows, the verifier's rows, and the random numbers."""
    p = rows(rng, sum(lengths), zeros)
    q = rows(rng, sum(lengths) + len(lengths), zeros)
    tokens, at = [], 0
    for count in lengths:
        tokens.append([int(rng.choice(SIZE, p=row.numpy())) for row in p[at : at + count]])
        at += count
    raw = {"p_raw": rows(rng, len(p), False), "q_raw": rows(rng, len(q), False)}
    return Candidates(tokens, p, q, **raw), rng.random((len(lengths), max(lengths) + 1, 2))


def on_a_device(rule, candidates, uniforms):
    """What a device would answer, whose numbers are not asked for one by one."""
    with mock.patch.object(basis, "HOST", ()):
        return verify(rule, candidates, uniforms)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_the_verdicts_of_the_step_place_by_place(name, zeros):
    rng, rule = np.random.default_rng(7), rule_of(name)
    accepted = set()
    for _ in range(12):
        candidates, uniforms = drafted(rng, zeros=zeros)
        found = on_a_device(rule, candidates, uniforms)
        assert found == verify(rule, candidates, uniforms)
        assert all(type(v.accepted) is int and type(v.token) is int for v in found)
        accepted |= {verdict.accepted for verdict in found}
    assert len(accepted) > 1


def test_a_schedule_has_the_rule_of_each_place():
    rng, rules = np.random.default_rng(8), PlacedRules.make("lenience", {"l": [0.2, 0.6, 1.0]})
    differ = 0
    for _ in range(60):
        candidates, uniforms = drafted(rng)
        found = on_a_device(rules, candidates, uniforms)
        assert found == verify(rules, candidates, uniforms)
        differ += found != verify(PlacedRules(rules.rules[::-1]), candidates, uniforms)
    assert differ > 5


def test_float32_rows_and_a_batch_of_one():
    rng, rule = np.random.default_rng(9), make_rule("cactus", delta=0.2)
    for _ in range(30):
        candidates, uniforms = drafted(rng, (4,))
        p, q = candidates.p.float(), candidates.q.float()
        one = Candidates(candidates.tokens, p, q)
        assert on_a_device(rule, one, uniforms) == verify(rule, one, uniforms)


def test_without_drafts_the_bonus_token_alone_is_drawn():
    candidates, uniforms = drafted(np.random.default_rng(1), (0, 0))
    empty = Candidates([[], []], candidates.p[:0], candidates.q[:2])
    found = on_a_device(make_rule("sps"), empty, uniforms[:, :1])
    assert [verdict.accepted for verdict in found] == [0, 0]
    assert found == verify(make_rule("sps"), empty, uniforms[:, :1])


def test_a_draft_without_mass_is_named():
    candidates, uniforms = drafted(np.random.default_rng(2), (2, 2), zeros=True)
    candidates.tokens[1][1] = int((candidates.p[3] == 0).nonzero()[0, 0])
    with pytest.raises(ValueError, match=r"p gives no mass to the token \d+ drafted at place 1"):
        on_a_device(make_rule("sps"), candidates, uniforms)


def test_it_is_taken_on_a_device_alone():
    candidates, uniforms = drafted(np.random.default_rng(3))
    said = [Verdict(0, 1)]
    with mock.patch.object(by_token, "verify_at_once", return_value=said):
        assert on_a_device(make_rule("sps"), candidates, uniforms) is said
        assert verify(make_rule("sps"), candidates, uniforms) is not said
    assert at_once.verify_at_once is by_token.verify_at_once
