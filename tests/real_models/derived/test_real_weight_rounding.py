"""Weight-rounded drafts: the bound of half a step, the groups, and what is shared."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from real_models.derived.weight_rounding import WeightRounding, round_groups, round_weights
from real_models.errors import UserError
from real_models.models.loading import LoadOptions, load_model

IDS = torch.tensor([[5, 9, 4, 30, 7, 7, 12]])
KINDS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])


def gpt2():
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64, **ids)
    return GPT2LMHeadModel(config).eval()


def weights(rows=6, columns=24, dtype=torch.float32):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)).to(dtype)


def logits(model):
    with torch.inference_mode():
        return model(IDS, use_cache=False).logits


def rounded_slowly(weight, rounding):
    """The formulas of the module, one weight at a time."""
    rows = []
    for row in weight.tolist():
        new = []
        for start in range(0, len(row), rounding.group):
            part = row[start : start + rounding.group]
            offset = 0.0 if rounding.symmetric else min(part)
            levels = 2**rounding.bits - 1
            if rounding.symmetric:
                step = max(map(abs, part)) / (2 ** (rounding.bits - 1) - 1)
            else:
                step = (max(part) - min(part)) / levels
            new += [offset + step * round((w - offset) / step) if step else w for w in part]
        rows.append(new)
    return torch.tensor(rows, dtype=weight.dtype)


@KINDS
@pytest.mark.parametrize(("bits", "group"), [(2, 8), (3, 24), (4, 5), (5, 64)])
def test_the_formulas_group_by_group(bits, group, symmetric):
    """Groups that do not divide the row, and groups longer than it, are in the list."""
    rounding = WeightRounding(bits, group, symmetric)
    weight = weights(dtype=torch.float64)
    expected = rounded_slowly(weight, rounding)
    torch.testing.assert_close(round_groups(weight, rounding), expected, rtol=0, atol=1e-12)
    assert not torch.equal(expected, weight)


@KINDS
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_no_weight_moves_by_more_than_half_a_step(bits, symmetric):
    weight = weights(dtype=torch.float64)
    rounded = round_groups(weight, WeightRounding(bits, 8, symmetric))
    groups = weight.unflatten(1, (3, 8))
    width = 2 * groups.abs().amax(-1) if symmetric else groups.amax(-1) - groups.amin(-1)
    step = width / (2**bits - 2 if symmetric else 2**bits - 1)
    error = (rounded - weight).abs().unflatten(1, (3, 8)).amax(-1)
    assert (error <= step / 2 * (1 + 1e-9)).all()
    codes = [len(part.unique()) for part in rounded.unflatten(1, (3, 8)).flatten(0, 1)]
    assert max(codes) <= (2**bits - 1 if symmetric else 2**bits)


def test_what_each_kind_keeps_exactly():
    weight = weights(dtype=torch.float64)
    weight[0, 3] = 0.0
    symmetric = round_groups(weight, WeightRounding(3, 8))
    assert symmetric[0, 3] == 0.0
    largest = weight.unflatten(1, (3, 8)).abs().amax(-1)
    torch.testing.assert_close(symmetric.unflatten(1, (3, 8)).abs().amax(-1), largest)
    asymmetric = round_groups(weight, WeightRounding(3, 8, symmetric=False))
    for end in (torch.amin, torch.amax):
        ours, theirs = (end(w.unflatten(1, (3, 8)), -1) for w in (asymmetric, weight))
        torch.testing.assert_close(ours, theirs)


@KINDS
def test_rounding_twice_changes_nothing(symmetric):
    rounding = WeightRounding(4, 8, symmetric)
    once = round_groups(weights(dtype=torch.float64), rounding)
    torch.testing.assert_close(round_groups(once, rounding), once, rtol=0, atol=1e-12)


@KINDS
def test_a_group_does_not_feel_its_neighbours(symmetric):
    rounding = WeightRounding(3, 8, symmetric)
    weight = weights()
    before = round_groups(weight, rounding)
    weight[2, 11] = 50.0
    changed = (round_groups(weight, rounding) != before).nonzero()
    assert {tuple(place) for place in changed.tolist()} <= {(2, i) for i in range(8, 16)}
    assert len(changed) > 1


@KINDS
def test_groups_of_equal_weights_stay_as_they_are(symmetric):
    weight = torch.zeros(2, 16)
    weight[1] = 0.375
    kept = round_groups(weight, WeightRounding(2, 8, symmetric))
    assert torch.equal(kept, weight)


def test_low_precision_is_rounded_in_float32():
    """Every rounded value is the nearest bfloat16 of the float32 result."""
    weight, rounding = weights(dtype=torch.bfloat16), WeightRounding(4, 8)
    rounded = round_groups(weight, rounding)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, round_groups(weight.float(), rounding).bfloat16())


@pytest.mark.parametrize("tied", [True, False])
def test_only_the_matrices_of_the_decoder_are_new(make_model, tied):
    verifier = make_model(tie_word_embeddings=tied)
    before = {name: tensor.clone() for name, tensor in verifier.named_parameters()}
    draft = round_weights(verifier, WeightRounding(3, 8))
    ours, theirs = dict(verifier.named_parameters()), dict(draft.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        is_matrix = ".layers." in name and tensor.ndim == 2
        assert (tensor is not ours[name]) == is_matrix, name
        if is_matrix:
            assert torch.equal(tensor, round_groups(ours[name].detach(), WeightRounding(3, 8)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.items())
    assert (draft.lm_head.weight is draft.model.embed_tokens.weight) == tied


@KINDS
@pytest.mark.parametrize("make", ["llama", "gpt2"])
def test_more_bits_come_closer_to_the_verifier(make_model, make, symmetric):
    verifier = gpt2() if make == "gpt2" else make_model()
    exact = logits(verifier)
    errors = [
        float((logits(round_weights(verifier, WeightRounding(bits, 8, symmetric))) - exact).norm())
        for bits in (2, 4, 8, 16)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 100 * errors[-1]
    assert errors[-1] < 1e-3 * float(exact.norm())


def test_groups_run_along_the_inputs_of_transposed_layers_too():
    """GPT-2 stores [in, out]; one large weight must only move the weights of its own output."""
    verifier, rounding = gpt2(), WeightRounding(2, 16)
    name = "transformer.h.0.mlp.c_fc"
    plain = round_weights(verifier, rounding).get_submodule(name).weight
    with torch.no_grad():
        verifier.get_submodule(name).weight[3, 5] = 9.0
    changed = (round_weights(verifier, rounding).get_submodule(name).weight != plain).nonzero()
    assert set(changed[:, 1].tolist()) == {5}


def test_weights_that_cannot_be_rounded_are_named(make_model):
    experts = make_model()
    experts.model.layers[0].mlp.extra = torch.nn.Parameter(torch.ones(2, 3, 4))
    with pytest.raises(UserError, match=r"cannot round '0\.mlp\.extra': it is not the weight"):
        round_weights(experts, WeightRounding(4))
    packed = make_model()
    codes = torch.nn.Parameter(torch.ones(16, 16, dtype=torch.uint8), requires_grad=False)
    packed.model.layers[1].self_attn.q_proj.weight = codes
    with pytest.raises(UserError, match=r"'1\.self_attn\.q_proj\.weight': it is torch\.uint8"):
        round_weights(packed, WeightRounding(4))
    with pytest.raises(UserError, match=r"'0\.self_attn\.q_proj\.weight': it is not in memory"):
        round_weights(make_model().to("meta"), WeightRounding(4))


@pytest.mark.model
def test_the_bundled_weights_are_such_a_rounding():
    """Q4_1 is 4 bits in groups of 32 with a zero point: that rounding must find it again."""
    layers = load_model("smollm2", "verifier", LoadOptions("cpu")).model.model.layers
    weight = layers[3].mlp.down_proj.weight.detach()
    again = round_groups(weight, WeightRounding(4, 32, symmetric=False))
    torch.testing.assert_close(again, weight, rtol=0, atol=1e-6)
    for other in (WeightRounding(4, 32), WeightRounding(4, 64, symmetric=False)):
        assert (round_groups(weight, other) - weight).abs().max() > 1e-2


def test_texts():
    assert WeightRounding.parse("round:4") == WeightRounding(4, 64, True)
    assert WeightRounding.parse("round:4, asymmetric,group=32") == WeightRounding(4, 32, False)
    assert WeightRounding.parse("skip:4") is None
    for rounding in (WeightRounding(2, 1), WeightRounding(16, 128, False)):
        assert WeightRounding.parse(rounding.name) == rounding
    assert WeightRounding(4).name == "round:4,group=64,symmetric"


@pytest.mark.parametrize(
    "text",
    [
        "round:", "round:x", "round:-4", "round:4.5", "round:group=64", "round:4,group=",
        "round:4,group=-1", "round:4,group=8,group=9", "round:4,symmetric,asymmetric", "round:4,",
        "round:4,grp=8",
    ],
)  # fmt: skip
def test_other_texts_name_themselves_and_the_form(text):
    with pytest.raises(UserError) as caught:
        WeightRounding.parse(text)
    assert repr(text) in str(caught.value)
    assert "'round:4,group=64,asymmetric'" in str(caught.value)


@pytest.mark.parametrize("text", ["round:1", "round:17", "round:4,group=0"])
def test_values_outside_the_range_name_it(text):
    with pytest.raises(UserError, match=r"cannot round to bits=.*bits 2 … 16, group ≥ 1"):
        WeightRounding.parse(text)
