"""Texts sampled in batches: the verifier's law for starts of different lengths, and the ends."""

import tracemalloc

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import GPT2Config, GPT2LMHeadModel

from real_models.drafts.text_batches import sample_texts
from real_models.errors import UserError
from real_models.models.pair import make_pair
from real_models.prompts import Prompt

FALSE_FAIL = 1e-6
STARTS = [Prompt("w4 w5", "short"), Prompt("w7 w8 w9 w10 w11", "long")]


def gpt2():
    """A model with absolute positions, which padding must not shift."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=60, initializer_range=0.6)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def pair(request, make_model, make_tokenizer):
    """A verifier whose end token has no logit, so that every text has its full length."""
    model = gpt2() if request.param == "gpt2" else make_model(seed=2, eos=60)
    return make_pair(model, model, make_tokenizer(eos_token=None))


def law_after(model, ids):
    """The law [texts, V] of the token after unpadded texts of one length."""
    with torch.inference_mode():
        return model(torch.tensor(ids), use_cache=False).logits[:, -1].double().softmax(-1)


def test_what_is_asked_for_is_not_listed_beforehand(pair, monkeypatch):
    """A million texts take no memory before the first batch."""

    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("real_models.drafts.text_batches._continue", stop)
    tracemalloc.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            sample_texts(pair, STARTS, 1_000_000, 4)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def p_value(tokens, law):
    """Of the chi-square test; tokens expected fewer than ten times are taken together."""
    counts, expected = np.bincount(tokens, minlength=len(law)), law * len(tokens)
    rare = expected < 10
    observed = [*counts[~rare], counts[rare].sum()]
    return chisquare(observed, [*expected[~rare], expected[rare].sum()]).pvalue


@pytest.mark.parametrize("batch", [64, 500])
def test_first_and_second_token_follow_the_verifier(pair, batch):
    """The short start is padded to the length of the long one; the cache carries both on."""
    texts = sample_texts(pair, STARTS, 6000, 2, seed=1, batch=batch)
    firsts, laws = {}, {}
    for number, start in enumerate(([4, 5], [7, 8, 9, 10, 11])):
        mine = texts[number::2]
        assert all(list(text.ids[:-2]) == start for text in mine)
        firsts[number] = np.array([text.ids[-2] for text in mine])
        laws[number] = law_after(pair.verifier, [start])[0]
        following = law_after(pair.verifier, [[*start, token] for token in range(40)])
        seconds = np.array([text.ids[-1] for text in mine])
        assert p_value(firsts[number], laws[number].numpy()) > FALSE_FAIL
        assert p_value(seconds, (laws[number] @ following).numpy()) > FALSE_FAIL
    assert p_value(firsts[0], laws[1].numpy()) < FALSE_FAIL, "the control must fail"


def test_the_seed_decides(pair):
    texts = sample_texts(pair, STARTS, 6, 4, seed=1)
    assert sample_texts(pair, STARTS, 6, 4, seed=1) == texts
    assert sample_texts(pair, STARTS, 6, 4, seed=2) != texts
    state = torch.random.get_rng_state()
    sample_texts(pair, STARTS, 6, 4, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_texts_end_at_their_first_end_token(make_model, make_tokenizer):
    ends = list(range(4, 8))
    model = make_model(eos=ends)
    pair = make_pair(model, model, make_tokenizer())
    texts = sample_texts(pair, STARTS, 40, 8, seed=0)
    assert len(texts) == 40
    for text in texts:
        more = text.ids[len(text.ids) - text.positions :]
        assert not set(more[:-1]) & set(pair.end_tokens)
        assert text.ended == (more[-1] in pair.end_tokens)
        assert text.ended or text.positions == 8
    assert {text.ended for text in texts} == {True, False}


def test_a_start_that_is_too_long_is_named(pair):
    with pytest.raises(UserError, match="'big': 129 tokens exceed"):
        sample_texts(pair, [*STARTS, Prompt("w4 " * 125, "big")], 1, 4)
