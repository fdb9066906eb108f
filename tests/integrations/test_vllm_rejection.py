"""The function that takes the place of vLLM's rejection sampling, against the exact laws."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from engine_rounds import BONUS, FALSE_FAIL, K, P, Q, V, call, exact, metadata, p_value, rounds

from sim.tables.grid import settings
from speculative_lab_vllm.rejection import RuleSampler, expand_batch_to_tokens
from theory import TargetRule, make_rule

COUNT = 10_000
PARAMETERS = {
    "cactus": {"delta": 0.3},
    "cactus_exact": {"delta": 0.1},
    "cactus_target_only": {"delta": 0.1},
    "ears": {"tau": 0.3},
    "frontier": {"level": 0.05},
    "interpolation": {"alpha": 0.4},
    "lenience": {"l": 0.5},
    "mentored": {"level": 0.05},
    "sps": {},
    "target_only": {"threshold_acc": 0.6},
    "top_k": {"k": 2},
    "typical": {},
}
SPS = RuleSampler(make_rule("sps"))
LOG_Q = torch.tensor(np.log(Q), dtype=torch.float32)


def rule_of(name):
    return make_rule(name, **PARAMETERS[name])


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_is_emitted_follows_the_exact_law(name):
    """False-fail rate 1e-6 a rule; the draws are the same at every run."""
    found = rounds(RuleSampler(rule_of(name)), COUNT)
    law = exact(rule_of(name))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert p_value(found, law) > FALSE_FAIL


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_law_of_another_rule_is_told_apart(name):
    """The control that must fail: the same draws beside the law of a rule that is not this one."""
    other = "sps" if name != "sps" else "lenience"
    assert p_value(rounds(RuleSampler(rule_of(name)), COUNT), exact(rule_of(other))) < 1e-12


def test_swapped_rows_are_told_apart():
    assert p_value(rounds(SPS, COUNT, p=P, q=Q), exact(make_rule("sps"), p=Q, q=P)) < 1e-12


@pytest.mark.parametrize("name", ["sps", "cactus", "frontier", "typical", "cactus_target_only"])
def test_without_probabilities_the_drafted_token_is_certain(name):
    rule, drafted = rule_of(name), [1, 2]
    certain = np.eye(V)[drafted]
    torch.manual_seed(4)
    found = call(RuleSampler(rule), [drafted] * COUNT, None, LOG_Q.repeat(COUNT, 1)).numpy()
    assert p_value(found, exact(rule, p=certain)) > FALSE_FAIL
    if name in ("sps", "cactus", "frontier"):
        assert p_value(found, exact(rule, p=P)) < 1e-12


def test_a_padded_draft_is_rejected_and_the_verifier_emits():
    torch.manual_seed(5)
    flat = torch.tensor(np.tile(P, (COUNT, 1)), dtype=torch.float32)
    for p in (None, flat):
        found = call(SPS, [[-1, 2]] * COUNT, p, LOG_Q.repeat(COUNT, 1)).numpy()
        law = {(token, -1, -1): Q[0][token] for token in range(V)}
        assert p_value(found, law) > FALSE_FAIL


def test_a_draft_without_mass_is_never_accepted():
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]] * 2)
    torch.manual_seed(5)
    for name in PARAMETERS:
        found = call(RuleSampler(rule_of(name)), [[4, 0]] * 300, p.repeat(300, 1),
                     LOG_Q.repeat(300, 1))  # fmt: skip
        assert (found[:, 1:] == -1).all()


def test_a_token_that_a_filter_took_is_never_emitted():
    """Filters reach the verifier only: the draft proposes what the verifier cannot emit."""
    logits = LOG_Q.clone()
    logits[:, [0, 2]] = -torch.inf
    q = logits.double().softmax(-1).numpy()
    for name in ("sps", "cactus", "lenience", "mentored", "frontier", "typical"):
        found = rounds(RuleSampler(rule_of(name)), 2_000, q=np.maximum(q, 1e-300))
        assert not np.isin(found, [0, 2]).any()


def test_uniforms_of_zero_accept_no_token_without_mass(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.zeros(shape, **options))
    logits = torch.tensor([[-torch.inf, 0.0, 0.0]])
    found = call(SPS, [[0]], torch.tensor([[1.0, 0.0, 0.0]]), logits)
    assert found.tolist() == [[1, -1]]


@pytest.mark.parametrize("uniform", [1 - 2**-26, 1 - 2**-53])
def test_a_sure_token_is_accepted_by_every_uniform(uniform, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **o: torch.full(shape, uniform, **o))
    logits = torch.tensor([[-torch.inf, 7.3, -torch.inf]])
    for name in PARAMETERS.keys() - {"typical", "top_k"}:
        found = call(RuleSampler(rule_of(name)), [[1]], torch.tensor([[0.0, 1.0, 0.0]]), logits)
        assert found.tolist() == [[1, BONUS]]


def greedy_loop(tokens, logits, bonus):
    """The engine's own verification of greedy requests, a token at a time."""
    lines, row = [], 0
    for drafted, last in zip(tokens, bonus):
        line = []
        for place, token in enumerate(drafted):
            line.append(int(logits[row + place].argmax()))
            if token != line[-1]:
                break
        else:
            line.append(last)
        lines.append(line + [-1] * (1 + max(map(len, tokens)) - len(line)))
        row += len(drafted)
    return lines


@pytest.mark.parametrize("rule", ["sps", "typical", "cactus"])
def test_greedy_requests_are_verified_by_equality(rule):
    draws = np.random.default_rng(8)
    sampler = RuleSampler(rule_of(rule))
    for _ in range(200):
        tokens = [draws.integers(-1, 3, size=draws.integers(0, 4)).tolist() for _ in range(6)]
        tokens[0] = [1, 0, 2]
        logits = torch.tensor(draws.normal(size=(sum(map(len, tokens)), 3)), dtype=torch.float32)
        bonus = draws.integers(0, 3, size=6).tolist()
        wanted = greedy_loop(tokens, logits, bonus)
        everyone = call(sampler, tokens, None, logits, metadata(6, temperature=0), bonus)
        assert everyone.tolist() == wanted
        mixed = metadata(6, temperature=[0, 1, 0, 0.5, 1, 0])
        found = call(sampler, tokens, None, logits, mixed, bonus).tolist()
        assert [found[i] for i in (0, 2, 5)] == [wanted[i] for i in (0, 2, 5)]


def test_random_requests_beside_greedy_ones_follow_the_law():
    half = COUNT // 2
    drafted = np.random.default_rng(2)
    tokens = np.stack([drafted.choice(V, size=2 * half, p=row) for row in P], axis=1).tolist()
    said = metadata(2 * half, temperature=[0, 0.7] * half)
    flat = torch.tensor(np.tile(P, (2 * half, 1)), dtype=torch.float32)
    torch.manual_seed(6)
    found = call(SPS, tokens, flat, LOG_Q.repeat(2 * half, 1), said).numpy()
    assert p_value(found[1::2], exact(make_rule("sps"))) > FALSE_FAIL
    assert p_value(found[0::2], exact(make_rule("sps"))) < 1e-12


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_seeded_request_does_not_depend_on_its_companions():
    sampler = RuleSampler(rule_of("cactus"))
    p, logits = torch.tensor(P, dtype=torch.float32), LOG_Q
    alone = [
        call(sampler, [[0, 0]], p, logits, metadata(1, generators={0: seeded(s)})).tolist()[0]
        for s in range(40)
    ]
    assert len(set(map(tuple, alone))) == 3
    for s in range(40):
        torch.manual_seed(s + 100)
        said = metadata(3, temperature=[1, 1, 0], generators={1: seeded(s), 2: seeded(0)})
        together = call(sampler, [[0], [0, 0], [1, 1]],
                        torch.cat([p[:1], p, p]), torch.cat([logits[:1], logits, logits]),
                        said)  # fmt: skip
        assert together.tolist()[1] == alone[s]


def test_a_generator_is_read_alike_whatever_is_accepted():
    """Else the next round of a seeded request would depend on rounding in this one."""
    left = []
    for drafted in ([1, 2], [0, 0], [-1, -1]):
        generator = seeded(1)
        call(SPS, [drafted], None, LOG_Q, metadata(1, generators={0: generator}))
        left.append(torch.rand(1, generator=generator).item())
    assert len(set(left)) == 1


def test_a_request_without_drafts_gets_its_bonus_token_and_reads_no_generator():
    generator = seeded(1)
    said = metadata(3, generators={1: generator})
    found = call(SPS, [[1], [], [2]], None, LOG_Q, said, bonus=[0, 4, 1])
    assert found[1].tolist() == [4, -1]
    assert torch.rand(1, generator=generator) == torch.rand(1, generator=seeded(1))


@dataclass(frozen=True)
class Asked(TargetRule):
    """Strict sampling, which notes what it is asked about."""

    keeps_strict = True
    name = "asked"
    drafted = []  # noqa: RUF012 - what the class notes for all

    def target(self, pair):
        return pair.q

    def accept_at(self, pair, candidate):
        self.drafted.extend(candidate.tolist())
        return super().accept_at(pair, candidate)


def test_a_rule_is_asked_only_where_strict_sampling_rejects(monkeypatch):
    values = torch.tensor([[0.3, 0.5], [0.9, 0.5], [0.9, 0.5]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda shape, **options: values[: shape[0]])
    p, logits = torch.full((3, 2), 0.5), torch.tensor([[0.4, 0.6]] * 3).log()
    Asked.drafted.clear()
    found = call(RuleSampler(Asked()), [[0, 0, 1]], p, logits)
    # u·p = 0.15 < q at the first; at the second 0.45 > 0.4; the third is behind a rejection.
    assert Asked.drafted == [0]
    assert found.tolist() == [[0, 1, -1, -1]]


def test_every_rule_that_vllm_can_run_runs():
    """On rows with zeros, with and without the draft's probabilities."""
    p = torch.tensor([[0.6, 0.4, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    logits = torch.tensor([[-torch.inf, 1.0, 0.0, 2.0], [0.0, -torch.inf, 3.0, 1.0]])
    for setting in settings():
        rule = setting.build()
        if rule.reads_raw:
            continue
        for rows in (None, p.repeat(20, 1)):
            found = call(RuleSampler(rule), [[0, 3]] * 20, rows, logits.repeat(20, 1))
            assert ((found >= -1) & (found < 4)).all()
            assert (found[:, 0] >= 0).all()


@dataclass(frozen=True)
class TooMuch(TargetRule):
    """A rule that accepts with what is no probability."""

    name = "too_much"

    def target(self, pair):
        return pair.q

    def accept_at(self, pair, candidate):
        return 0 * candidate + 1.5


def test_what_cannot_be_sampled_is_refused_in_one_line():
    p = torch.tensor(P, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"TooMuch\(\) accepts token 1 with 1.5, which is no"):
        call(RuleSampler(TooMuch()), [[1, 1]], p, LOG_Q)
    broken = LOG_Q.clone()
    broken[1, 3] = torch.nan
    with pytest.raises(ValueError, match="request 1 of the batch, draft 0: the logits give nan"):
        call(SPS, [[1], [1]], p, broken)
    with pytest.raises(ValueError, match=r"shape \(2, 4\), the verifier's logits \(2, 5\)"):
        call(SPS, [[1], [1]], p[:, :4], LOG_Q)
    with pytest.raises(ValueError, match=r"3 drafts need as many tokens and rows of logits"):
        call(SPS, [[1], [1, 0]], None, LOG_Q)


def test_the_engines_synthetic_acceptance_is_refused():
    with pytest.raises(ValueError, match="exclude each other"):
        SPS(torch.tensor([0]), [1], 1, torch.tensor([1]), None, LOG_Q[:1], torch.tensor([[0]]),
            metadata(1), synthetic_mode=True)  # fmt: skip


def test_large_vocabularies_are_worked_in_portions(monkeypatch):
    whole = rounds(RuleSampler(rule_of("cactus")), 500)
    monkeypatch.setattr("speculative_lab_vllm.verification._ENTRIES", 7 * V)
    assert (rounds(RuleSampler(rule_of("cactus")), 500) == whole).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_values_of_requests_are_expanded_to_their_tokens(dtype):
    x = torch.tensor([0.7, 0.0, 1.3]).mul(10 if dtype != torch.float32 else 1).to(dtype)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = expand_batch_to_tokens(x, ends, 5)
    assert found.dtype == dtype
    assert found.tolist() == [x[0]] * 2 + [x[2]] * 3
    ends = torch.tensor([1, 3, 4], dtype=torch.int32)
    assert expand_batch_to_tokens(x, ends, 4, 0, 1).tolist() == [x[0], 1, 1, x[2]]


def test_the_output_has_the_engines_form():
    found = rounds(SPS, 10)
    assert found.dtype == np.int32
    assert found.shape == (10, K + 1)
