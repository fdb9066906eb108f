"""What the plug-in tells of each request: counts, and the exact divergence at visited places."""

import json
import math

import numpy as np
import pytest
import torch
from engine_rounds import K, P, Q, call, metadata

from speculative_lab_vllm.realised import Accounts
from speculative_lab_vllm.rejection import RuleSampler
from theory import divergence, make_rule, one_step

RULE = make_rule("cactus", delta=0.3)
P_ROWS = torch.tensor(P, dtype=torch.float32)
LOG_Q = torch.tensor(np.log(Q), dtype=torch.float32)


class Told(Accounts):
    """Accounts that keep what they tell."""

    def __init__(self, **options):
        self.lines = []
        super().__init__(RULE, lambda *told: self.lines.append(told), **options)

    @property
    def documents(self):
        return [json.loads(document) for _, document in self.lines]


def play(accounts, batch, tokens, said=None, p=P_ROWS, known=None):
    """One step of the engine, of requests with K drafts each or none."""
    accounts.begin(batch, set(batch) if known is None else known)
    rows = sum(bool(drafted) for drafted in tokens)
    sampler = RuleSampler(RULE, accounts.seen)
    p = p if p is None else p.repeat(rows, 1)
    return call(sampler, tokens, p, LOG_Q.repeat(rows, 1), said or metadata(len(tokens)))


def test_counts_and_divergences_are_those_of_the_visited_places():
    law = one_step(RULE, P, Q)
    kl, strict = divergence("kl", law.output, Q), np.minimum(P, Q).sum(-1)
    accounts, wanted = Told(), {}
    torch.manual_seed(1)
    for _ in range(60):
        found = play(accounts, ["a", "b"], [[0, 0], [4, 2]]).numpy()
        for name, row in zip("ab", found):
            accepted = int((row >= 0).sum()) - 1
            seen = min(accepted + 1, K)
            gained = (1, K, accepted, accepted + 1, seen, kl[:seen].sum(),
                      law.acceptance[:seen].sum(), strict[:seen].sum())  # fmt: skip
            wanted[name] = np.add(wanted.get(name, np.zeros(8)), gained)
    accounts.close_all()
    assert [document["request"] for document in accounts.documents] == ["a", "b"]
    names = ("rounds", "drafted", "accepted", "tokens", "visited", "kl", "acceptance", "strict")
    for document in accounts.documents:
        numbers = [document[name] for name in names]
        assert numbers == pytest.approx(wanted[document["request"]], rel=1e-5)
        assert (document["rule"], document["parameters"]) == ("cactus", {"delta": 0.3})
    assert 0 < wanted["a"][2] < 60 * K


def test_the_divergence_of_a_certain_draft_is_that_of_its_one_hot():
    accounts = Told()
    torch.manual_seed(2)
    play(accounts, ["a"], [[0, 1]], p=None)
    accounts.close_all()
    (document,) = accounts.documents
    certain = np.eye(5)[[0, 1]]
    wanted = divergence("kl", one_step(RULE, certain, Q).output, Q)[: document["visited"]].sum()
    assert document["kl"] == pytest.approx(wanted, rel=1e-5)


def test_the_line_says_what_the_document_says():
    accounts = Told()
    play(accounts, ["a"], [[1, 2]])
    accounts.close_all()
    ((line, _),) = accounts.lines
    (document,) = accounts.documents
    kl = document["kl"]
    assert line == (
        "request a: Cactus(delta=0.3) accepted 2 of 2 drafts in 1 rounds, "
        f"KL {kl:.4g} nats over 3 tokens ({kl / 3:.4g} a token)"
    )


def test_requests_are_told_when_the_engine_knows_them_no_more():
    accounts = Told()
    play(accounts, ["a", "b"], [[0, 0], [1, 1]])
    play(accounts, ["b"], [[1, 1]], known={"a", "b"})  # a waits
    assert not accounts.lines
    play(accounts, ["c", "b"], [[0, 0], [1, 1]], known={"b", "c"})
    assert [document["request"] for document in accounts.documents] == ["a"]
    accounts.close_all()
    rounds = {document["request"]: document["rounds"] for document in accounts.documents}
    assert rounds == {"a": 1, "b": 3, "c": 1}


def test_greedy_requests_and_those_without_drafts_are_not_counted():
    accounts = Told()
    said = metadata(3, temperature=[0, 1, 1])
    play(accounts, ["greedy", "none", "random"], [[0, 0], [], [1, 1]], said)
    accounts.close_all()
    assert [document["request"] for document in accounts.documents] == ["random"]


def test_padded_drafts_are_no_visited_places():
    accounts = Told()
    play(accounts, ["a"], [[-1, -1]])
    accounts.close_all()
    (document,) = accounts.documents
    assert (document["drafted"], document["visited"], document["tokens"]) == (2, 0, 1)
    assert document["kl"] == 0


def test_a_rehearsal_of_the_engine_is_nobodys():
    accounts = Told()
    accounts.begin([], set())
    call(RuleSampler(RULE, accounts.seen), [[0, 0]], P_ROWS, LOG_Q)
    accounts.close_all()
    assert not accounts.lines


def test_nothing_is_measured_where_nobody_asked(monkeypatch):
    monkeypatch.setattr(type(RULE), "law", None)
    accounts = Told(measure=False)
    play(accounts, ["a"], [[1, 2]])
    assert math.isnan(accounts.open["a"].kl)
    accounts.close_all()
    ((line, _),) = accounts.lines
    assert line == "request a: Cactus(delta=0.3) accepted 2 of 2 drafts in 1 rounds"
    assert accounts.documents[0]["kl"] is None
