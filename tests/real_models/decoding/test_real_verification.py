"""The rule's step of a round on its own: what it refuses, and uniforms to the last digit."""

import numpy as np
import pytest
import torch

import real_models.decoding.verifying.by_token as module
from real_models.decoding.verifying.by_token import verify
from real_models.decoding.verifying.candidates import Candidates, Verdict
from theory import RULES, make_rule

P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.5, 0.3], [0.5, 0.2, 0.3], [0.0, 0.0, 1.0]], dtype=torch.float64)
ALL = {
    "sps": make_rule("sps"),
    "cactus": make_rule("cactus", delta=0.1),
    "cactus_target_only": make_rule("cactus_target_only", delta=0.1),
    "typical": make_rule("typical"),
    "top_k": make_rule("top_k", k=2),
    "frontier": make_rule("frontier", level=0.1),
    "constant_threshold": make_rule("constant_threshold", threshold=0.5),
    "truncated_top_k": make_rule("truncated_top_k", k=2),
}


def one_text(tokens):
    """The drafts of one text on the rows above."""
    return Candidates([tokens], P[: len(tokens)], Q[: len(tokens) + 1])


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
@pytest.mark.parametrize("token", [-1, 3, 10**12])
@pytest.mark.parametrize("place", [0, 1])
def test_a_draft_outside_the_vocabulary_is_refused(rule, token, place):
    tokens = [1, 1]
    tokens[place] = token
    told = rf"text 0 drafts {token} at place {place}, not a token index in \[0, 2\]"
    with pytest.raises(ValueError, match=told):
        verify(rule, one_text(tokens), np.full((1, 3, 2), 0.25))


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
@pytest.mark.parametrize("uniform", [0.0, 0.5])
def test_a_draft_without_mass_is_refused(rule, uniform):
    with pytest.raises(ValueError, match="p gives no mass to the token 2 drafted at place 1"):
        verify(rule, one_text([1, 2]), np.full((1, 3, 2), uniform))


def test_every_draft_has_a_row():
    with pytest.raises(ValueError, match=r"the drafts need \(1, 2\) rows of p and q, got \(2, 3\)"):
        verify(ALL["sps"], Candidates([[1]], P, Q), np.zeros((1, 2, 2)))


def test_the_text_at_fault_is_named():
    candidates = Candidates([[1], [2]], P, torch.cat([Q, Q[:1]]))
    with pytest.raises(ValueError, match="text 1: p gives no mass to the token 2 drafted at"):
        verify(ALL["sps"], candidates, np.zeros((2, 2, 2)))


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_drafts_that_were_drawn_are_verified(rule):
    (verdict,) = verify(rule, one_text([1, 1]), np.zeros((1, 3, 2)))
    assert isinstance(verdict, Verdict)
    assert verify(rule, one_text([]), np.zeros((1, 1, 2)))[0].accepted == 0


@pytest.mark.parametrize("uniform", [1 - 2**-26, 1 - 2**-53])
@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_sure_token_is_accepted_by_every_uniform(rule, uniform, at_once, monkeypatch):
    """As on another device, where the rows stay tensors, and place by place there."""
    monkeypatch.setattr("real_models.decoding.verifying.candidates.native", lambda rows: rows)
    monkeypatch.setattr("theory.arrays.basis.HOST", () if at_once else ("cpu",))
    sure = torch.tensor([[0.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    candidates = Candidates([[1]], sure[:1], sure)
    uniforms = np.full((1, 2, 2), uniform)
    assert verify(rule, candidates, uniforms) == [Verdict(1, 1)]


def test_uniforms_beside_tensors_keep_all_their_digits():
    values = [0.1, 1 - 2**-26, 1 - 2**-53, 2**-60]
    for rows in (P, P.float(), P.numpy()):
        assert module._beside(values, rows).tolist() == values
    assert module._beside([3, 2**40], P).tolist() == [3, 2**40]
    assert not module._beside([3], P).is_floating_point()


def test_the_rules_of_both_kinds_are_tried():
    assert {RULES[name].keeps_strict for name in ALL} == {True, False}
