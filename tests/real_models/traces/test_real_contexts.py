"""The alignment of logits with tokens, and the texts they lie on."""

import numpy as np
import pytest
import torch

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.models.pair import make_pair
from real_models.prompts import Prompt
from real_models.traces.contexts import (
    Text,
    make_text,
    sample_continuation,
    sample_token,
    score,
    text_stream,
)

PLAIN = SamplingSettings()
PROMPT = Prompt("w4 w5 w6 w7", "p")


@torch.inference_mode()
def next_logits(model, ids):
    """The plainest statement of the matter: logits for the token after `ids`."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0, -1]


def test_row_i_predicts_the_token_after_its_input(tiny_pair):
    text = make_text(tiny_pair, PROMPT, "verifier", 9, PLAIN, seed=3)
    draft, verifier = score(tiny_pair, text)
    first = len(text.ids) - text.positions
    assert first == 4
    for found, model in ((draft, tiny_pair.draft), (verifier, tiny_pair.verifier)):
        loop = torch.stack(
            [next_logits(model, text.ids[: first + i]) for i in range(text.positions)]
        )
        torch.testing.assert_close(found, loop, rtol=1e-4, atol=1e-4)
        # The control: rows off by one are far from the loop, so a shift could not pass.
        assert float((found[1:] - loop[:-1]).abs().max()) > 0.5


def test_models_without_logits_to_keep_give_the_same_rows(tiny_pair, monkeypatch):
    text = Text((4, 5, 6, 7, 8, 9), 3)
    expected = score(tiny_pair, text)
    forward = tiny_pair.draft.forward
    monkeypatch.setattr(
        tiny_pair.draft,
        "forward",
        lambda input_ids, use_cache: forward(input_ids, use_cache=use_cache),
    )
    torch.testing.assert_close(score(tiny_pair, text)[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [PLAIN, SamplingSettings(0.6, 5, 0.9), SamplingSettings(0)])
@pytest.mark.parametrize("contexts", ["verifier", "draft"])
def test_the_continuation_is_drawn_from_its_model(tiny_pair, contexts, settings):
    """Replay the stream against the plain loop: the cache must not change what is drawn."""
    text = make_text(tiny_pair, PROMPT, contexts, 12, settings, seed=1)
    model, uniform = getattr(tiny_pair, contexts), text_stream(1, "p").random
    for i in range(4, len(text.ids)):
        law = settings.probabilities(next_logits(model, text.ids[:i]))
        assert text.ids[i] == sample_token(law, uniform())


@pytest.mark.parametrize(
    "settings", [SamplingSettings(1.0, 7), SamplingSettings(0.6, 20, 0.95), SamplingSettings(1.3)]
)
def test_the_law_is_the_one_that_generate_draws_from(tiny_pair, settings):
    """transformers reports the raw and the processed logits of each step it sampled."""
    ids = torch.tensor([[4, 5, 6, 7]])
    output = tiny_pair.verifier.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=settings.temperature,
        top_k=settings.top_k or 0,
        top_p=settings.top_p or 1.0,
        max_new_tokens=6,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
    )
    found = settings.probabilities(torch.stack(output.logits))
    expected = torch.stack(output.scores).softmax(-1)
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-7)
    assert torch.equal(found > 0, expected > 0)


def test_streams_depend_on_seed_and_id_alone():
    draws = {(s, i): text_stream(s, i).random() for s in (0, 1) for i in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert text_stream(1, "b").random() == draws[1, "b"]


def test_the_text_ends_at_an_end_token(make_model, make_tokenizer):
    model = make_model()
    greedy, start = SamplingSettings(0), [4, 5, 6, 7]
    free = make_pair(model, model, make_tokenizer())
    longer = sample_continuation(free, "verifier", start, 8, greedy, lambda: 0.5)
    end = longer[2]
    pair = make_pair(make_model(eos=end), model, make_tokenizer())
    text = make_text(pair, PROMPT, "verifier", 8, greedy, seed=0)
    stop = longer.index(end) + 1
    assert list(text.ids) == start + longer[:stop]
    assert (text.positions, text.ended) == (stop, True)
    # The position that predicts the end token counts like any other.
    assert score(pair, text)[0].shape == (stop, 40)


def test_a_text_that_ends_on_its_last_position_is_whole(tiny_pair):
    assert not make_text(tiny_pair, PROMPT, "verifier", 1, PLAIN, seed=0).ended


def test_given_texts_are_scored_at_their_end(tiny_pair):
    prompt = Prompt("w4 w5 w6 w7 w8", "g", chat=True)
    assert make_text(tiny_pair, prompt, "given", 3, PLAIN, 0) == Text((4, 5, 6, 7, 8), 3)
    assert make_text(tiny_pair, prompt, "given", 64, PLAIN, 0) == Text((4, 5, 6, 7, 8), 4)
    with pytest.raises(UserError, match=r"prompt 'one'.*at least two tokens"):
        make_text(tiny_pair, Prompt("w4", "one"), "given", 3, PLAIN, 0)


def faint(model, vocabulary=40):
    """A model whose columns beyond the vocabulary have next to no probability."""

    def lower(module, given, found):
        return torch.cat([found[..., :vocabulary], found[..., vocabulary:] - 14], dim=-1)

    model.lm_head.register_forward_hook(lower)
    return model


def test_padded_columns_are_cut_and_what_they_held_is_counted(make_model, make_tokenizer):
    pair = make_pair(
        faint(make_model(vocab=48)), faint(make_model(vocab=44)), make_tokenizer(),
        allow_padded_vocab=True,
    )  # fmt: skip
    text = make_text(pair, PROMPT, "verifier", 20, PLAIN, seed=0)
    assert max(text.ids) < 40
    cut = {}
    draft, verifier = score(pair, text, cut)
    assert draft.shape == verifier.shape == (text.positions, 40)
    full = next_logits(pair.verifier, text.ids[:4])
    torch.testing.assert_close(verifier[0], full[:40], rtol=1e-4, atol=1e-4)
    shares = [
        float(next_logits(pair.verifier, text.ids[:n]).double().softmax(-1)[40:].sum())
        for n in range(4, len(text.ids))
    ]
    assert cut["verifier"].largest == pytest.approx(max(shares), rel=1e-3)
    assert cut["verifier"].mean == pytest.approx(sum(shares) / len(shares), rel=1e-3)


def test_padded_columns_that_hold_mass_are_refused(make_model, make_tokenizer):
    pair = make_pair(
        make_model(vocab=48), make_model(vocab=44), make_tokenizer(), allow_padded_vocab=True
    )
    with pytest.raises(UserError, match=r"prompt 'p', position 4: cutting the verifier's 48"):
        make_text(pair, PROMPT, "verifier", 20, PLAIN, seed=0)


@pytest.mark.parametrize("role", ["verifier", "draft"])
def test_logits_that_are_not_numbers_name_model_prompt_and_position(
    make_model, make_tokenizer, role
):
    models = {"verifier": make_model(seed=0), "draft": make_model(seed=1)}
    with torch.no_grad():
        models[role].model.embed_tokens.weight[7] = torch.nan
    pair = make_pair(models["verifier"], models["draft"], make_tokenizer())
    said = rf"prompt 'p', position 4: the {role}'s logits hold nan"
    with pytest.raises(UserError, match=said):
        make_text(pair, PROMPT, role, 3, PLAIN, seed=0)


def test_sampled_frequencies_are_the_law():
    """Over a fine grid of u each token gets its probability, to the width of a grid cell."""
    law = torch.tensor([0.0, 0.25, 0.0, 0.6, 0.15, 0.0], dtype=torch.float64)
    grid = (np.arange(1000) + 0.5) / 1000
    counts = np.bincount([sample_token(law, u) for u in grid], minlength=6)
    assert counts.tolist() == [0, 250, 0, 600, 150, 0]


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("scale", [1.0, 1 + 2e-16, 1 - 3e-16, 0.3])
def test_no_token_of_probability_zero_at_the_ends(u, scale):
    law = scale * torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    assert sample_token(law, u) == (1 if u == 0 else 2)
