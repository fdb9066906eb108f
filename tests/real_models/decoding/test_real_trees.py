"""Several candidates for a place in the loop: the enumerated law of the first tokens, and refusals.

The path through a tree is a draft from the law g of `theory.candidates.select`, so that the law of
the texts is that of one candidate from g. A chi-square test fails a right decoder once in a
million; wrong ones must fail it.
"""

import inspect
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from round_laws import END, VOCABULARY, count_texts, exact_law, p_value, rows, run_tiny
from scipy import stats
from transformers import BloomConfig, BloomForCausalLM

from real_models.decoding import trees
from real_models.decoding.loop import prompt_lookup
from real_models.decoding.metrics import summary
from real_models.decoding.numbers import Numbers
from real_models.errors import UserError
from real_models.generate import CUSTOM_GENERATE
from real_models.laws.distributions import SamplingSettings
from real_models.models.pair import make_pair
from theory import RULES, make_rule
from theory.candidates import Selection, select

FALSE_FAIL, TEXTS = 1e-6, 3_000
TESTED = {
    "sps": make_rule("sps"),
    "cactus": make_rule("cactus", delta=0.2),
    "interpolation": make_rule("interpolation", alpha=0.5),
}
VALUES = {"k": 3}  # of parameters that are no share; the others that a rule needs are 0.3


def run(pair, rule, count=4, **more):
    return run_tiny(pair, rule, count, **{"candidates": 2, **more})


def texts_of(pair, rule, **more):
    return count_texts(pair, rule, TEXTS, **{"candidates": 2, **more})


def law_of(pair, rule, candidates=2, verification="token"):
    def chosen(p, q):
        return select(p, q, candidates).law

    return exact_law(pair, rule, 2, verification, chosen)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("name", TESTED)
def test_the_first_tokens_have_the_enumerated_law(pair, name, verification):
    law = law_of(pair, TESTED[name], 2, verification)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    found = texts_of(pair, TESTED[name], verification=verification)
    assert p_value(found, law) > FALSE_FAIL


def test_three_candidates_have_the_law_of_three(pair):
    rule = TESTED["interpolation"]
    found = texts_of(pair, rule, candidates=3)
    assert p_value(found, law_of(pair, rule, 3)) > FALSE_FAIL
    assert p_value(found, law_of(pair, rule, 1)) < FALSE_FAIL


def test_a_choice_of_another_law_fails(pair, monkeypatch):
    """The control for g: the first candidate is tested as if it were the chosen one."""
    law = law_of(pair, TESTED["sps"])

    def first(self, candidates, uniforms):
        return np.zeros(len(candidates), dtype=int)

    monkeypatch.setattr(Selection, "choose", first)
    assert p_value(texts_of(pair, TESTED["sps"]), law) < FALSE_FAIL


def test_children_of_another_node_fail(pair, monkeypatch):
    """The control for the tree: drafts behind the candidate that was not chosen."""
    law = law_of(pair, TESTED["sps"])
    grow = trees.grow_tree

    def swapped(*arguments):
        tree = grow(*arguments)
        for nodes in tree.nodes:
            nodes[2:6] = nodes[4:6] + nodes[2:4]
        return tree

    monkeypatch.setattr("real_models.decoding.speculation.grow_tree", swapped)
    assert p_value(texts_of(pair, TESTED["sps"]), law) < FALSE_FAIL


def test_first_places_accept_what_the_law_of_the_choice_does(pair):
    """One draft a round, one round a text: the number of accepted drafts is binomial."""
    p, q = rows(pair.draft)[()], rows(pair.verifier)[()]
    for candidates in (1, 2, 4):
        chance = float(np.minimum(select(p, q, candidates).law, q).sum())
        more = {"draft_tokens": 1, "new_tokens": 1, "candidates": candidates}
        found = summary(run(pair, TESTED["sps"], 400, **more))
        assert found["acceptance"] == pytest.approx(chance, abs=1e-6)
        assert found["kl_per_token"] == pytest.approx(0, abs=1e-12)
        assert found["candidates"] == candidates
        kept = round(400 * found["accepted_length"])
        assert stats.binomtest(kept, 400, chance).pvalue > FALSE_FAIL


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_decodes_with_candidates_or_says_why_not(pair, name, verification):
    parameters = inspect.signature(RULES[name]).parameters.values()
    needed = {p.name: VALUES.get(p.name, 0.3) for p in parameters if p.default is p.empty}
    rule = make_rule(name, **needed)
    more = {"draft_tokens": 3, "new_tokens": 8, "verification": verification}
    if rule.reads_raw:
        with pytest.raises(UserError, match=rf"candidates: {name} reads the draft's rows before"):
            run(pair, rule, **more)
        return
    found, again = run(pair, rule, **more), run(pair, rule, **more, batch_size=1)
    assert [t.tokens for t in found.texts] == [t.tokens for t in again.texts]
    assert 0 <= summary(found)["acceptance"] <= 1


def test_a_greedy_text_is_the_verifiers_own(pair):
    greedy = SamplingSettings(0.0)
    alone = run(pair, TESTED["sps"], draft_tokens=0, new_tokens=12, settings=greedy)
    found = run(pair, TESTED["sps"], draft_tokens=3, new_tokens=12, settings=greedy)
    assert [t.tokens for t in found.texts] == [t.tokens for t in alone.texts]


def test_a_model_without_tree_masks_writes_the_same_texts(pair, monkeypatch):
    found = run(pair, TESTED["cactus"], draft_tokens=3, new_tokens=12)
    monkeypatch.setattr("real_models.models.cached_model.takes_trees", lambda *_: False)
    again = run(pair, TESTED["cactus"], draft_tokens=3, new_tokens=12)
    assert [t.tokens for t in found.texts] == [t.tokens for t in again.texts]


def test_a_model_that_counts_no_positions(pair, make_tokenizer):
    torch.manual_seed(0)
    config = BloomConfig(
        vocab_size=VOCABULARY, hidden_size=16, n_head=2, n_layer=2, initializer_range=0.6,
        attn_implementation="eager",
    )  # fmt: skip
    models = BloomForCausalLM(config).eval(), pair.draft
    bloom = make_pair(*models, make_tokenizer(size=VOCABULARY), name="bloom")
    found = run(bloom, TESTED["sps"], draft_tokens=3, new_tokens=12, batch_size=1)
    assert all(len(text.tokens) == 12 or text.ended for text in found.texts)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"candidates": 0}, "candidates must be an integer of at least 1, got 0"),
        ({"candidates": 2.0}, "candidates must be an integer of at least 1"),
        ({"candidates": 4, "draft_tokens": 8}, "4 for each of 8 places are more than 1024 drafts"),
        ({"candidates": 2, "draft_tokens": 100}, "more than 1024 drafts"),
        ({"drafter": prompt_lookup(2)}, "a lookup proposes one continuation"),
    ],
)
def test_what_has_no_candidates_is_refused_with_the_reason(pair, more, said):
    with pytest.raises(UserError, match=said):
        run(pair, TESTED["sps"], **more)


def test_without_drafts_there_is_nothing_to_choose(pair):
    assert run(pair, TESTED["sps"], draft_tokens=0, candidates=4).texts


def test_generate_takes_candidates(pair):
    ids = torch.tensor([[4, 7, 5]])
    more = {
        "custom_generate": CUSTOM_GENERATE, "trust_remote_code": True, "max_new_tokens": 12,
        "assistant_model": pair.draft, "eos_token_id": END, "pad_token_id": 1,
    }  # fmt: skip
    wanted = pair.verifier.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=1)
    found = pair.verifier.generate(ids, do_sample=False, candidates=2, draft_tokens=3, **more)
    assert found.tolist() == wanted.tolist()
    with pytest.raises(UserError, match="candidates: cascade_opt reads the draft's rows"):
        pair.verifier.generate(
            ids, do_sample=True, candidates=2, rule="cascade_opt", rule_parameters={"alpha": 0.3},
            **more,
        )  # fmt: skip


def test_numbers_of_a_shorter_round_are_the_first_of_the_longer_one():
    numbers = Numbers.draw([np.random.default_rng(1)], 3, 2)
    assert (numbers.nodes.shape, numbers.tests.shape) == ((1, 14), (1, 4, 2))
    shorter = numbers.first(2)
    assert (shorter.drafts, shorter.nodes.shape) == (2, (1, 6))
    np.testing.assert_array_equal(shorter.nodes, numbers.nodes[:, :6])


def test_a_path_ends_behind_an_end_token(pair):
    """No draft behind an end is tested, in either text; rows of p and q stay beside the drafts."""
    tree = trees.DraftTree(
        [[END, END, 5, 6, 7, 8], [4, 4, END, END, 5, 5]], torch.full((2, 3, 10), 0.1).double(), 2, 2
    )
    logits = torch.zeros(2, 7, 10, dtype=torch.float64)
    laws = type("Flat", (), {"verifier": lambda self, rows, texts: rows.softmax(-1)})()
    proposal, q, seen = trees.chosen_path(
        tree, logits, [[3], [3]], laws, np.full((2, 2), 0.1), frozenset([END]), _unwatched
    )
    assert proposal.tokens == [[END], [4, END]]
    assert (len(proposal.p), len(q), len(seen)) == (3, 5, 5)


def _unwatched(part):
    return nullcontext()
