"""A cache that follows its texts gives the logits that no cache gives."""

import random
from itertools import pairwise

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from real_models.errors import LogitsError, UserError
from real_models.models.cached_model import CachedModel, _common


def uncached(model, text, count):
    with torch.no_grad():
        return model(torch.tensor([text])).logits[0, -count:]


def walk(model, texts, steps, seed=0):
    """Grow, cut and rewrite texts at random; the largest deviation from the uncached logits."""
    chance, cached, worst = random.Random(seed), CachedModel(model, 40), 0.0
    for _ in range(steps):
        counts = [chance.randrange(1, min(4, len(text)) + 1) for text in texts]
        for text, count, found in zip(texts, counts, cached.logits(texts, counts)):
            expected = uncached(model, text, count)
            assert found.shape == expected.shape
            worst = max(worst, float((found - expected).abs().max()))
        for text in texts:
            del text[len(text) - chance.randrange(min(5, len(text))) :]
            text += [chance.randrange(40) for _ in range(chance.randrange(6))]
    return worst, cached


def test_one_text_has_no_holes_in_its_cache(make_model):
    text = [[5, 6, 7]]
    worst, cached = walk(make_model(), text, 25)
    assert worst < 1e-4
    assert cached._width == len(cached._held[0])


def test_texts_of_different_length_side_by_side(make_model):
    texts = [[3], [4, 5, 6, 7, 8, 9, 10], [11, 12]]
    worst, _ = walk(make_model(), texts, 25, seed=1)
    assert worst < 1e-4


def test_a_sparse_cache_is_compacted(make_model):
    """One of four texts keeps its draft in each round: three of four new columns are holes."""
    model = make_model()
    cached, texts, widths = CachedModel(model, 40), [[3, 4], [5, 6], [7], [8, 9]], []
    for step in range(30):
        drafted = [[*text, 10, 11, 12] for text in texts]
        for text, rows in zip(drafted, cached.logits(drafted, [3] * 4)):
            torch.testing.assert_close(rows, uncached(model, text, 3), rtol=0, atol=1e-4)
        texts[step % 4] += [10, 11]
        widths.append(cached._width)
    assert max(widths) <= 2 * max(map(len, texts)) + 4
    assert any(later < earlier for earlier, later in pairwise(widths))


def test_rows_leave_and_change_places(make_model):
    model = make_model()
    cached, texts = CachedModel(model, 40), [[3, 4], [5, 6, 7], [8]]
    cached.logits(texts, [1, 1, 1])
    cached.keep_rows([2, 0])
    texts = [[8, 9], [3, 4, 10, 11]]
    for text, found in zip(texts, cached.logits(texts, [1, 2])):
        torch.testing.assert_close(found, uncached(model, text, len(found)), rtol=0, atol=1e-4)


def test_asking_again_computes_again(make_model):
    cached = CachedModel(make_model(), 40)
    once, again = (cached.logits([[3, 4, 5]], [3])[0] for _ in range(2))
    torch.testing.assert_close(once, again, rtol=0, atol=1e-5)


def test_columns_beyond_the_vocabulary_are_cut(make_model):
    cached = CachedModel(with_faint_padding(make_model()), 30)
    assert cached.logits([[3]], [1])[0].shape == (1, 30)
    with torch.no_grad():
        law = with_faint_padding(make_model())(torch.tensor([[3]])).logits[0, -1].double()
    share = float(law.softmax(-1)[30:].sum())
    assert 0 < share < 1e-3
    assert cached.cut.largest == pytest.approx(share, rel=1e-4)
    assert cached.cut.mean == cached.cut.largest


def with_faint_padding(model):
    """Columns from 30 on lose some 12 nats, by a direction that all hidden states share."""
    padded = model.lm_head
    model.lm_head = torch.nn.Sequential(padded, Faint())
    model.get_output_embeddings = lambda: padded
    return model


class Faint(torch.nn.Module):
    def forward(self, logits):
        return torch.cat([logits[..., :30], logits[..., 30:] - 12], dim=-1)


@pytest.mark.parametrize(
    ("value", "said"), [(float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "no finite")]
)
def test_logits_without_a_distribution_are_refused_with_their_place(make_model, value, said):
    model = make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = value if said == "nan" else 1.0
    if said != "nan":
        model.lm_head.register_forward_hook(lambda module, given, found: found * 0 + value)
    cached = CachedModel(model, 40, "draft")
    with pytest.raises(LogitsError, match=rf"position 3: the draft's logits hold {said}") as raised:
        cached.logits([[3, 4, 7, 5], [4, 3, 5, 6]], [2, 2])
    assert raised.value.row == 0


def test_more_than_a_rounding_beyond_the_vocabulary_is_refused(make_model):
    said = r"position 1: cutting the verifier's 40 logits to 30 drops 0.\d+ of its probability"
    with pytest.raises(LogitsError, match=said):
        CachedModel(make_model(), 30, "verifier").logits([[3]], [1])


def test_absolute_positions(make_model):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    worst, _ = walk(GPT2LMHeadModel(config).eval(), [[3, 4, 5], [6]], 8)
    assert worst < 1e-4


def test_a_sliding_window_takes_one_text_at_a_time():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=6, bos_token_id=None,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    worst, _ = walk(model, [[3, 4, 5]], 20, seed=2)
    assert worst < 1e-4
    with pytest.raises(UserError, match=r"MistralForCausalLM .* one text at a time"):
        CachedModel(model, 40).logits([[3], [4, 5]], [1, 1])


@pytest.mark.parametrize(
    ("held", "text", "shared"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1, 9, 9], [1, 2, 3], 1)],
)
def test_the_common_start_of_two_texts(held, text, shared):
    assert _common(held, text) == shared
