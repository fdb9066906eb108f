"""What takes the place of the second runner's rejection sampling, called as the runner does."""

import numpy as np
import pytest
import torch
from engine_rounds import FALSE_FAIL, K, P, Q, V, exact, p_value

from sim import audit
from speculative_lab_vllm.second_runner import SecondRunnerSampler
from theory import make_rule

COUNT = 8_000
BONUS_ROW = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
RULES = {
    "cactus": {"delta": 0.3},
    "frontier": {"level": 0.05},
    "lenience": {"l": 0.5},
    "sps": {},
    "top_k": {"k": 2},
    "typical": {},
}


def rule_of(name):
    return make_rule(name, **RULES[name])


def logits_of(rows):
    with np.errstate(divide="ignore"):
        return torch.tensor(np.log(rows), dtype=torch.float32)


def call(sampler, tokens, verifier, draft=None, *, temperature=1.0, seeds=None, states=None):
    """One call: drafts by request, verifier rows by request (one more), draft rows by request."""
    count, steps = len(tokens), max(map(len, tokens))
    states = list(range(count)) if states is None else states
    known = max(states) + 1
    ends = np.concatenate([[0], np.cumsum([len(drafted) + 1 for drafted in tokens])])
    heat = torch.zeros(known)
    heat[states] = torch.tensor(np.broadcast_to(np.float32(temperature), (count,)).copy())
    seed = torch.zeros(known, dtype=torch.int64)
    seed[states] = torch.tensor(range(count) if seeds is None else seeds)
    rows = None
    if draft is not None:
        rows = torch.full((known, steps, draft[0].shape[-1]), torch.nan)
        for state, own in zip(states, draft):
            rows[state, : len(own)] = own
    place = torch.cat([torch.arange(len(drafted) + 1) for drafted in tokens])
    expanded = torch.tensor(np.repeat(states, np.diff(ends)))
    return sampler(
        torch.cat(list(verifier)), rows,
        torch.tensor([t for drafted in tokens for t in (99, *drafted)], dtype=torch.int32),
        torch.tensor(ends, dtype=torch.int32), place, torch.tensor(states), expanded, place,
        heat, seed, steps,
    )  # fmt: skip


def drawn(count, seed=17):
    generator = np.random.default_rng(seed)
    return np.stack([generator.choice(V, size=count, p=row) for row in P], axis=1).tolist()


def lines(sampler, count=COUNT, *, scale=1.0):
    """Rows of output: drafts from P, tested on Q; the bonus from a row of its own."""
    verifier = logits_of(np.concatenate([Q, BONUS_ROW[None]]))
    draft = scale * logits_of(P)  # before temperature
    found, numbers = call(
        sampler, drawn(count), [verifier] * count, [draft] * count, temperature=scale
    )
    assert ((found >= 0).sum(-1) == numbers).all()
    return found.numpy()


def law_of(rule, **rows):
    """The exact law, its bonus token drawn from BONUS_ROW."""
    law = {}
    for line, mass in exact(rule, **rows).items():
        whole = -1 not in line
        ends = enumerate(BONUS_ROW) if whole else [(line[-1], 1.0)]
        for token, chance in ends:
            key = (*line[:-1], token) if whole else line
            law[key] = law.get(key, 0.0) + mass * chance
    return law


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_what_is_emitted_follows_the_exact_law(name, scale):
    """False-fail rate 1e-6 a case; at 0.7 the draft's logits come before their temperature."""
    found = lines(SecondRunnerSampler(rule_of(name)), scale=scale)
    assert p_value(found, law_of(rule_of(name))) > FALSE_FAIL


def test_the_law_of_another_rule_is_told_apart():
    found = lines(SecondRunnerSampler(rule_of("lenience")))
    assert p_value(found, law_of(rule_of("sps"))) < 1e-12


def test_without_draft_logits_the_drafted_token_is_certain():
    verifier = logits_of(np.concatenate([Q, BONUS_ROW[None]]))
    found, _ = call(SecondRunnerSampler(rule_of("sps")), [[1, 2]] * COUNT, [verifier] * COUNT)
    assert p_value(found.numpy(), law_of(rule_of("sps"), p=np.eye(V)[[1, 2]])) > FALSE_FAIL


def test_an_audit_finds_nothing():
    """sim.audit of the whole call, bonus included: level 1e-4."""
    rule = rule_of("cactus")
    sampler, calls = SecondRunnerSampler(rule), iter(range(10**9))

    def asked(p, q, drafted, generator):
        seeds = [next(calls) for _ in drafted]
        found, numbers = call(
            sampler, drafted.tolist(), [logits_of(rows) for rows in q],
            [logits_of(rows) for rows in p], seeds=seeds,
        )  # fmt: skip
        return numbers.numpy().astype(np.int64) - 1, found.numpy()

    report = audit.audit(asked, rule, samples=1500, level=1e-4, dtype="float32", rounding=1e-5)
    assert not report.rejected, str(report)


def test_greedy_requests_follow_the_argmax_and_others_are_not_disturbed():
    verifier = logits_of(np.concatenate([Q, BONUS_ROW[None]]))
    best = [int(row.argmax()) for row in Q]
    wrong = next(token for token in range(V) if token != best[1])
    found, numbers = call(
        SecondRunnerSampler(rule_of("sps")),
        [best, [best[0], wrong], [-1, best[1]]],
        [verifier] * 3,
        [logits_of(P)] * 3,
        temperature=[0.0, 0.0, 0.0],
    )
    assert found.tolist() == [[*best, 3], [*best, -1], [best[0], -1, -1]]
    assert numbers.tolist() == [3, 2, 1]


def test_a_text_does_not_depend_on_the_requests_beside_it():
    verifier, draft = logits_of(np.concatenate([Q, BONUS_ROW[None]])), logits_of(P)
    sampler, tokens = SecondRunnerSampler(rule_of("cactus")), drawn(40)
    seeds = [10 * n - 200 for n in range(40)]
    whole, _ = call(sampler, tokens, [verifier] * 40, [draft] * 40, seeds=seeds)
    for n in (0, 7, 39):
        alone, _ = call(sampler, [tokens[n]], [verifier], [draft], seeds=[seeds[n]], states=[n + 3])
        assert alone.tolist() == [whole[n].tolist()]


def test_requests_with_no_drafts_and_with_padded_ones():
    verifier = logits_of(np.concatenate([Q, BONUS_ROW[None]]))
    found, numbers = call(
        SecondRunnerSampler(rule_of("sps")),
        [[], [-1, -1], drawn(1)[0]],
        [verifier[2:], verifier, verifier],
        [logits_of(P)[:0], logits_of(P), logits_of(P)],
    )
    assert numbers.tolist()[:2] == [1, 1]
    assert found[:2, 1:].eq(-1).all()


def test_a_draft_of_a_smaller_table_gives_the_rest_nothing():
    small = logits_of(P[:, :4] / P[:, :4].sum(-1, keepdims=True))
    verifier = logits_of(np.concatenate([Q, BONUS_ROW[None]]))
    call(SecondRunnerSampler(rule_of("sps")), [[0, 1]], [verifier], [small])
    with pytest.raises(ValueError, match="the draft has 5 tokens, the verifier 4"):
        call(SecondRunnerSampler(rule_of("sps")), [[0, 1]], [verifier[:, :4]], [logits_of(P)])


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"synthetic_conditional_rates": torch.ones(K)}, "synthetic"),
        ({"use_block_verification": True}, "block"),
        ({"contexts": torch.zeros(1, 1)}, "watermarking"),
    ],
)
def test_options_that_say_something_else_about_acceptance_are_refused(option, told):
    sampler = SecondRunnerSampler(rule_of("sps"))
    with pytest.raises(ValueError, match=told):
        call(
            lambda *given: sampler(*given, **option), [[0, 1]], [logits_of(np.tile(Q[:1], (3, 1)))]
        )
