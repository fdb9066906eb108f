"""Derivations: which texts name one, in which order they apply, and pairs made with them."""

import pytest
import torch

from real_models.derived.layer_skip import skip_layers
from real_models.derived.notation import parse_derivation
from real_models.derived.weight_rounding import WeightRounding, round_weights
from real_models.errors import UserError
from real_models.models.loading import LoadOptions
from real_models.models.pair import PAIRS, load_pair

IDS = torch.tensor([[5, 9, 4, 30, 7, 7, 12]])


def logits(model):
    with torch.inference_mode():
        return model(IDS, use_cache=False).logits


@pytest.mark.parametrize("text", ["smollm2", "Qwen/Qwen3-0.6B@main", "./skip:1", "a+skip:1", ""])
def test_names_of_models_are_no_derivations(text):
    assert parse_derivation(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("skip:17, 3", "skip:3,17"),
        ("round:4", "round:4,group=64,symmetric"),
        ("skip:2+round:5,group=8", "skip:2+round:5,group=8,symmetric"),
        ("round:5,asymmetric + skip:2", "skip:2+round:5,group=64,asymmetric"),
    ],
)
def test_canonical_names(text, name):
    assert parse_derivation(text).name == name
    assert parse_derivation(name).name == name


@pytest.mark.parametrize(
    "text", ["skip:1+", "skip:1+skip:2", "round:4+model", "skip:1+round:4+round:5"]
)
def test_other_sums_are_refused(text):
    with pytest.raises(UserError, match="is not like 'skip:14,17' or") as caught:
        parse_derivation(text)
    assert repr(text) in str(caught.value)


def test_both_at_once(make_model):
    verifier = make_model(layers=4)
    draft = parse_derivation("round:3,group=8+skip:1").apply(verifier)
    expected = round_weights(skip_layers(verifier, [1]), WeightRounding(3, 8))
    assert torch.equal(logits(draft), logits(expected))
    assert not torch.equal(logits(draft), logits(skip_layers(verifier, [1])))
    assert draft.model.embed_tokens.weight is verifier.model.embed_tokens.weight
    assert verifier.config.num_hidden_layers == 4


def test_a_pair_with_a_rounded_draft(tiny_folder):
    pair = load_pair(verifier=str(tiny_folder), draft="round:3,group=8", options=LoadOptions("cpu"))
    assert pair.draft_name == f"{tiny_folder} round:3,group=8,symmetric"
    assert pair.draft_revision == pair.verifier_revision
    assert pair.draft.lm_head.weight is pair.verifier.lm_head.weight
    expected = round_weights(pair.verifier, WeightRounding(3, 8))
    assert torch.equal(logits(pair.draft), logits(expected))


def test_a_wrong_text_is_found_before_the_verifier_is_loaded():
    with pytest.raises(UserError, match="draft 'round:x'"):
        load_pair(verifier="./no-such-folder", draft="round:x")


def test_registered_roundings():
    drafts = {name: draft for name, (_, draft) in PAIRS.items() if "-round" in name}
    assert drafts == {
        "smollm2-round5": "round:5,group=64,symmetric",
        "smollm2-round4": "round:4,group=64,asymmetric",
        "smollm2-round3": "round:3,group=64,symmetric",
    }
    assert all(parse_derivation(draft).name == draft for draft in drafts.values())
