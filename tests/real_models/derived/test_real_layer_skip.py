"""Layer-skip drafts: the verifier's own tensors, fewer layers, a working cache."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from real_models.derived.layer_skip import parse_skip, skip_layers, skip_name
from real_models.errors import UserError

IDS = torch.tensor([[5, 9, 4, 30, 7, 7, 12]])


def gpt2():
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=4, n_head=2, n_positions=64, **ids)
    return GPT2LMHeadModel(config).eval()


def qwen2_with_windows():
    """Layers of two kinds: the per-layer list in the configuration has to shrink alike."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(params=["llama", "llama-tied", "gpt2", "qwen2"])
def verifier(request, make_model):
    if request.param == "gpt2":
        return gpt2()
    if request.param == "qwen2":
        return qwen2_with_windows()
    return make_model(layers=4, tie_word_embeddings=request.param == "llama-tied")


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(ids, use_cache=False).logits


def cached_logits(model, ids=IDS):
    """The same logits token by token through the key/value cache."""
    rows, cache = [], None
    with torch.inference_mode():
        for token in ids[0]:
            output = model(token.view(1, 1), cache=cache, use_cache=True)
            cache = output.cache
            rows.append(output.logits[0, 0])
    return torch.stack(rows)[None], cache


def test_dropping_nothing_gives_the_verifier_exactly(verifier):
    draft = skip_layers(verifier, [])
    assert torch.equal(logits(draft), logits(verifier))
    assert torch.equal(cached_logits(draft)[0], cached_logits(verifier)[0])


def test_every_tensor_is_shared_and_the_verifier_is_unchanged(verifier):
    before, named = logits(verifier), dict(verifier.named_parameters())
    draft = skip_layers(verifier, [1, 2])
    shared = {id(tensor) for tensor in [*verifier.parameters(), *verifier.buffers()]}
    assert all(id(tensor) in shared for tensor in [*draft.parameters(), *draft.buffers()])
    assert torch.equal(logits(verifier), before)
    assert dict(verifier.named_parameters()).keys() == named.keys()
    assert verifier.config.num_hidden_layers == 4
    assert draft.config.num_hidden_layers == 2
    assert draft.config is not verifier.config


def test_the_kept_layers_run_in_order(make_model):
    verifier = make_model(layers=4)
    draft = skip_layers(verifier, [1])
    alone = LlamaForCausalLM(draft.config).eval()
    weights = verifier.state_dict()
    for new, old in enumerate((0, 2, 3)):
        for name in alone.model.layers[new].state_dict():
            source = weights[f"model.layers.{old}.{name}"]
            alone.state_dict()[f"model.layers.{new}.{name}"].copy_(source)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        alone.state_dict()[name].copy_(weights[name])
    assert torch.equal(logits(draft), logits(alone))
    assert not torch.allclose(logits(draft), logits(verifier), atol=1e-2)


def test_lists_over_layers_shrink_with_the_layers():
    verifier = qwen2_with_windows()
    assert skip_layers(verifier, [1]).config.layer_types == [
        "full_attention",
        "full_attention",
        "sliding_attention",
    ]
    assert len(verifier.config.layer_types) == 4


@pytest.mark.parametrize("drop", [[0], [1], [1, 2], [0, 3], [0, 1, 2]])
def test_the_cache_gives_the_logits_of_the_whole_pass(verifier, drop):
    draft = skip_layers(verifier, drop)
    stepwise, cache = cached_logits(draft)
    torch.testing.assert_close(stepwise, logits(draft), rtol=1e-4, atol=1e-5)
    assert len(cache.layers) == 4 - len(drop)
    assert all(layer.get_seq_length() == IDS.shape[1] for layer in cache.layers)


def test_generation_works(make_model):
    draft = skip_layers(make_model(layers=3), [1])
    text = draft.generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        max_new_tokens=4,
        min_new_tokens=4,
        do_sample=False,
    )
    assert text.shape == (1, IDS.shape[1] + 4)
    assert text[0, IDS.shape[1]] == logits(draft)[0, -1, 1:].argmax() + 1


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ([4], r"cannot skip layer 4: .* 0 … 3"),
        ([-1], "cannot skip layer -1"),
        ([1, 1], "repeat"),
        ([0, 1, 2, 3], "all 4 layers"),
    ],
)
def test_impossible_drops_are_refused(make_model, drop, message):
    with pytest.raises(UserError, match=message):
        skip_layers(make_model(layers=4), drop)


def test_layers_that_share_a_cache_are_refused(make_model):
    verifier = make_model(layers=2)
    verifier.config.num_kv_shared_layers = 1
    with pytest.raises(UserError, match="depend on each other"):
        skip_layers(verifier, [1])


def test_names():
    assert parse_skip("skip:14,16, 17") == (14, 16, 17)
    assert parse_skip("skip:") == ()
    assert parse_skip("Qwen/Qwen3-0.6B") is None
    assert parse_skip(skip_name([17, 3])) == (3, 17)
    for text in ("skip:a", "skip:1,,2", "skip:-1", "skip:1.5"):
        with pytest.raises(UserError, match="skip:14,16,17"):
            parse_skip(text)
