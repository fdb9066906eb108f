"""A cache that can be rolled back, for every kind of layer that transformers has, or a refusal."""

import random

import pytest
import torch
import transformers
from transformers import cache_utils

from real_models.decoding import decode
from real_models.errors import UserError
from real_models.generate import CUSTOM_GENERATE
from real_models.laws.distributions import SamplingSettings
from real_models.models.cached_model import CachedModel
from real_models.models.pair import make_pair
from real_models.prompts import Prompt
from theory import make_rule

WINDOW = 16
SHAPE = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "initializer_range": 0.6,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Gemma2": {"sliding_window": WINDOW, "layer_types": MIXED},
    "Gemma3": {"sliding_window": WINDOW, "layer_types": MIXED},
    "Qwen2": {"sliding_window": WINDOW, "use_sliding_window": True, "layer_types": MIXED},
}
RECURRENT = {
    "Mamba": {}, "Mamba2": {}, "RecurrentGemma": {},
    "Jamba": {}, "FalconMamba": {}, "Lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "Qwen3Next": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "MiniMax": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "Bamba": {}, "Rwkv": {}, "Zamba2": {"num_hidden_layers": 54},
}  # fmt: skip


def build(kind, seed=0, **more):
    name = f"{kind}Text" if kind == "Gemma3" else kind
    config = getattr(transformers, f"{name}Config")(**SHAPE | MODELS[kind] | more)
    torch.manual_seed(seed)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def greedy(model, ids, count):
    out = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=count, do_sample=False, pad_token_id=1, eos_token_id=0,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


def words(chance, count):
    return " ".join(f"w{chance.randrange(4, 40)}" for _ in range(count))


@pytest.mark.parametrize("draft", MODELS)
@pytest.mark.parametrize("verifier", MODELS)
def test_the_text_is_the_models_own_for_every_kind_of_layer(verifier, draft, make_tokenizer):
    """Texts of up to five windows; drafts that are mostly right, partly right and wrong."""
    chance = random.Random(f"{verifier} {draft}")
    for seed in range(2):
        large = build(verifier, seed)
        small = large if (verifier == draft and seed == 1) else build(draft, seed + 10)
        pair = make_pair(large, small, make_tokenizer())
        prompt = Prompt(words(chance, chance.randrange(1, 4 * WINDOW)), "a")
        (text,) = decode(
            pair, [prompt], make_rule("sps"), draft_tokens=chance.randrange(1, 12),
            new_tokens=3 * WINDOW, settings=SamplingSettings(temperature=0), compare=False,
        ).texts  # fmt: skip
        ids = pair.tokenizer(prompt.prompt).input_ids
        assert list(text.tokens) == greedy(large, ids, 3 * WINDOW)


@pytest.mark.parametrize("kind", MODELS)
def test_a_text_that_is_cut_far_back_gives_the_logits_that_no_cache_gives(kind):
    chance, model = random.Random(kind), build(kind)
    cached, text = CachedModel(model, 40), [chance.randrange(40) for _ in range(70)]
    for _ in range(40):
        (found,) = cached.logits([text], [1])
        with torch.no_grad():
            expected = model(torch.tensor([text]), use_cache=False).logits[0, -1:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        del text[len(text) - chance.randrange(min(40, len(text))) :]
        text += [chance.randrange(40) for _ in range(chance.randrange(8))]


@pytest.mark.parametrize("kind", sorted(set(MODELS) - {"Llama"}))
def test_a_batch_of_texts_with_a_window_is_refused_by_name(kind, make_tokenizer):
    pair = make_pair(build("Llama"), build(kind), make_tokenizer())
    prompts = [Prompt("w4 w5", "a"), Prompt("w4 w5 w6", "b")]
    with pytest.raises(UserError, match=rf"draft: {kind}ForCausalLM .* one text at a time"):
        decode(pair, prompts, make_rule("sps"), batch_size=2)
    assert len(decode(pair, prompts, make_rule("sps"), new_tokens=3).texts) == 2


@pytest.mark.parametrize("implementation", ["dynamic", "static", "quantized"])
@pytest.mark.parametrize("kind", ["Mistral", "Gemma3", "Llama"])
def test_generate_with_any_wanted_cache_writes_the_same_text(kind, implementation):
    model, assistant = build(kind), build(kind, 7)
    ids = [random.Random(kind).randrange(4, 40) for _ in range(3 * WINDOW)]
    more = {"cache_implementation": implementation}
    if implementation == "quantized":
        pytest.importorskip("optimum.quanto")
    found = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=40, do_sample=False, pad_token_id=1, eos_token_id=0, rule="sps",
        custom_generate=CUSTOM_GENERATE, trust_remote_code=True, assistant_model=assistant, **more,
    )  # fmt: skip
    assert found[0, len(ids) :].tolist() == greedy(model, ids, 40)


def recurrent(kind):
    """A model that is never run: its class and configuration are all that is looked at."""
    config = getattr(transformers, f"{kind}Config")(**{"num_hidden_layers": 3} | RECURRENT[kind])
    with torch.device("meta"):
        return getattr(transformers, f"{kind}ForCausalLM")._from_config(config)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_state_is_refused_by_name(kind):
    if not hasattr(transformers, f"{kind}ForCausalLM"):
        pytest.skip(f"transformers has no {kind}")
    model = recurrent(kind)
    with pytest.raises(UserError, match=rf"{kind}ForCausalLM .* rolled back"):
        CachedModel(model, 40)


def small_mamba():
    config = transformers.MambaConfig(
        vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, bos_token_id=None,
        eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return transformers.MambaForCausalLM(config).eval()


def test_a_recurrent_draft_is_refused_before_the_verifier_runs(make_tokenizer, monkeypatch):
    pair = make_pair(build("Llama"), small_mamba(), make_tokenizer())
    monkeypatch.setattr(pair.verifier, "forward", pytest.fail)
    with pytest.raises(UserError, match="draft: MambaForCausalLM"):
        decode(pair, [Prompt("w4 w5", "a")], make_rule("sps"))


def test_a_recurrent_assistant_is_refused_inside_generate():
    with pytest.raises(UserError, match="draft: MambaForCausalLM"):
        build("Llama").generate(
            torch.tensor([[4, 5]]), max_new_tokens=4, custom_generate=CUSTOM_GENERATE,
            trust_remote_code=True, assistant_model=small_mamba(), rule="sps",
        )  # fmt: skip


def test_every_kind_of_dynamic_layer_is_known():
    """A kind of layer that a later transformers adds must be thought about."""
    assert set(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING) == {
        "full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "conv",
        "linear_attention", "hybrid", "hybrid_sliding", "dummy",
    }  # fmt: skip
