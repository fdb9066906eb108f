"""Rules that differ by place, and blocks by the scaled clip: enumerated laws, labels, refusals.

A chi-square test fails a right decoder once in a million; wrong ones must fail it.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from round_laws import clip, count_texts, exact_law, p_value, rows, run_tiny

from real_models.decoding.metrics import rule_label, summary
from real_models.decoding.verifying import by_block as blocks
from real_models.decoding.verifying.by_block import block_kernel, verify_blocks
from real_models.decoding.verifying.candidates import Candidates
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from real_models.generate import CUSTOM_GENERATE
from theory import divergence, make_rule, one_step
from theory.blocks import scaled_clip
from theory.candidates import select

FALSE_FAIL, TEXTS = 1e-6, 3_000
CLIPS = PlacedRules.make("frontier_corpus", {"multiplier": [1.2, 0.3]})
CACTUS = PlacedRules.make("cactus", {"delta": [0.5, 0.0]})


@pytest.mark.parametrize("verification", ["token", "block", "scaled"])
@pytest.mark.parametrize("rules", [CLIPS, CACTUS], ids=lambda rules: rules.name)
def test_a_schedule_has_the_enumerated_law(pair, rules, verification):
    if verification == "scaled" and rules is CACTUS:
        with pytest.raises(UserError, match="cactus has none: take 'block'"):
            run_tiny(pair, rules, verification=verification)
        return
    law = exact_law(pair, rules, 2, verification)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert p_value(count_texts(pair, rules, TEXTS, verification=verification), law) > FALSE_FAIL


def test_a_schedule_the_wrong_way_round_fails(pair):
    law = exact_law(pair, CACTUS, 2, "token")
    assert p_value(count_texts(pair, PlacedRules(CACTUS.rules[::-1]), TEXTS), law) < FALSE_FAIL


P, Q, COUNT = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35]), 8_000


def rounds_of(verification):
    """What many rounds of two drafts on one pair of rows emit, bonus tokens included."""
    stream = np.random.default_rng(5)
    tokens = stream.choice(3, size=(COUNT, 2), p=P).tolist()
    p, q = torch.tensor(np.tile(P, (2 * COUNT, 1))), torch.tensor(np.tile(Q, (3 * COUNT, 1)))
    scaled = verification == "scaled"
    rules = PlacedRules.make("frontier_corpus", {"multiplier": [0.0, 1.0]})
    found = verify_blocks(
        rules, Candidates(tokens, p, q), stream.random((COUNT, 3, 2)), scaled=scaled
    )
    return Counter((*drafted[: v.accepted], v.token) for drafted, v in zip(tokens, found))


def law_of_rounds():
    """The first place emits q; the second, behind n at the scale q_n/p_n, clip(p/s, bq, aq)."""
    law = Counter()
    for first in range(3):
        scale = min(1.0, Q[first] / P[first])
        alive, h = scale * P[first], clip(P / scale, Q, 1.0)
        law[first,] = Q[first] - alive
        kept = np.minimum(P[first] * P, alive * h)
        for second in range(3):
            law[first, second] = alive * h[second] - kept[second]
            law |= {(first, second, bonus): kept[second] * Q[bonus] for bonus in range(3)}
    return law


def test_rounds_of_the_scaled_clip_have_its_law():
    assert sum(law_of_rounds().values()) == pytest.approx(1, abs=1e-12)
    assert p_value(rounds_of("scaled"), law_of_rounds()) > FALSE_FAIL


def test_the_scaled_clip_is_not_the_clip(monkeypatch):
    """The controls for the scale: blocks of the plain clip, and a scale that is forgotten."""
    assert p_value(rounds_of("block"), law_of_rounds()) < FALSE_FAIL
    monkeypatch.setattr(blocks, "scaled_clip", lambda pair, s, m: scaled_clip(pair, s / s, m))
    assert p_value(rounds_of("scaled"), law_of_rounds()) < FALSE_FAIL


def test_the_scaled_clip_of_chosen_candidates(pair):
    law = exact_law(pair, CLIPS, 2, "scaled", lambda p, q: select(p, q, 2).law)
    found = count_texts(pair, CLIPS, TEXTS, verification="scaled", candidates=2)
    assert p_value(found, law) > FALSE_FAIL


def test_the_divergence_that_a_run_tells_is_that_of_its_places(pair):
    """One text of one round of one draft: the first place, whose scale is 1."""
    p, q = rows(pair.draft)[()], rows(pair.verifier)[()]
    wanted = divergence("kl", one_step(CLIPS.rules[0], p, q).output, q)
    for verification in ("token", "block", "scaled"):
        found = run_tiny(pair, CLIPS, 1, new_tokens=1, verification=verification).texts[0].observed
        assert found.divergence[0] == pytest.approx(float(wanted), rel=1e-6)


def test_without_a_multiplier_the_scaled_clip_is_the_verifier(pair):
    rule = make_rule("frontier_corpus", multiplier=0.0)
    figures = summary(run_tiny(pair, rule, new_tokens=8, draft_tokens=3, verification="scaled"))
    assert figures["kl_per_token"] == pytest.approx(0, abs=1e-12)


def test_the_kernel_of_a_block_at_scales_in_both_libraries():
    """Rows of torch and of the first text alone give what the batch gives."""
    stream = np.random.default_rng(3)
    p, q = (torch.tensor(stream.dirichlet(np.full(6, 0.5), 6)) for _ in range(2))
    both = Candidates([[0, 1, 2], [3]], p[:4], q)
    kernel = block_kernel(CLIPS, both, scaled=True)
    alone = block_kernel(CLIPS, Candidates([[0, 1, 2]], p[:3], q[:4]), scaled=True)
    np.testing.assert_allclose(kernel.sum(-1), np.ones(4), rtol=1e-12)
    np.testing.assert_allclose(kernel[:3], alone, rtol=1e-12)


def test_a_run_names_its_schedule(pair):
    found = run_tiny(pair, CACTUS)
    assert rule_label(found.rule) == "cactus(delta=[0.5, 0.0])"
    assert summary(found)["parameters"]["delta"] == [0.5, 0.0]
    one = PlacedRules.make("cactus", {"delta": [0.5]})
    assert one.parameters["delta"] == 0.5 == make_rule("cactus", delta=0.5).parameters["delta"]


def test_generate_takes_a_schedule_and_the_scaled_clip(pair):
    more = {
        "custom_generate": CUSTOM_GENERATE, "trust_remote_code": True, "max_new_tokens": 12,
        "assistant_model": pair.draft, "eos_token_id": 0, "pad_token_id": 1, "do_sample": True,
        "return_dict_in_generate": True, "draft_tokens": 3, "rule": "frontier_corpus",
    }  # fmt: skip
    ids, lists = torch.tensor([[4, 7, 5]]), {"multiplier": [0.9, 0.6, 0.0]}
    found = pair.verifier.generate(ids, verification="scaled", rule_parameters=lists, **more)
    assert found.speculation[0].kl > 0
    with pytest.raises(UserError, match="values for 4 places, and a draft has 3"):
        pair.verifier.generate(ids, rule_parameters={"multiplier": [1, 1, 1, 1]}, **more)


@pytest.mark.parametrize(
    ("rule", "more", "said"),
    [
        ((), {}, "rule must come from make_rule or be a Rule, got ()"),
        ("sps", {}, "rule must come from make_rule or be a Rule, got 'sps'"),
        ([make_rule("sps"), "sps"], {}, "rule at place 1 must be a Rule, got 'sps'"),
        ([make_rule("sps"), CACTUS.rules[0]], {}, "differ in their values, got sps and cactus"),
        ([make_rule("sps")] * 3, {}, "sps has values for 3 places, and a draft has 2"),
        (make_rule("sps"), {"verification": "scaled"}, "sps has none: take 'block'"),
        (
            make_rule("frontier_corpus", multiplier=1.0, divergence="tv"),
            {"verification": "scaled"},
            r"frontier_corpus\(tv\) has none",
        ),
        (
            make_rule("frontier_corpus", multiplier=float("inf")),
            {"verification": "scaled"},
            "needs a finite multiplier, got inf",
        ),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_reason(pair, rule, more, said):
    with pytest.raises(UserError, match=said.replace("()", r"\(\)")):
        run_tiny(pair, rule, **more)


@pytest.mark.parametrize(
    ("lists", "said"),
    [({"delta": []}, "at least 1"), ({"delta": [0.1, -1.0]}, "delta must lie in")],
)
def test_lists_that_are_no_schedule(lists, said):
    with pytest.raises(ValueError, match=said):
        PlacedRules.make("cactus", lists)
