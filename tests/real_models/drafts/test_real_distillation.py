"""Distillation: the loss by its formula, what training may touch, and that it helps."""

import math
from dataclasses import replace
from itertools import islice, pairwise

import pytest
import torch

from real_models.derived.layer_skip import skip_layers
from real_models.drafts.distillation import (
    TrainingSettings,
    _batches,
    distill,
    even_layers,
    kl_loss,
)
from real_models.drafts.text_batches import sample_texts
from real_models.drafts.texts import acceptance, calibrate
from real_models.errors import UserError
from real_models.models.pair import make_pair
from real_models.prompts import Prompt, read_prompts
from real_models.traces.contexts import Text, score

GENTLE = TrainingSettings(minutes=None, steps=60, batch=8, learning_rate=5e-3)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def pair(request, make_model, make_tokenizer):
    verifier = make_model(layers=3, tie_word_embeddings=request.param)
    return make_pair(verifier, skip_layers(verifier, [1]), make_tokenizer())


@pytest.fixture(scope="module")
def texts(pair, tiny_prompts):
    return sample_texts(pair, read_prompts(tiny_prompts)[0], 100, 8, seed=1)


@pytest.fixture(scope="module")
def distilled(pair, texts):
    return distill(pair.verifier, pair.draft, texts, GENTLE, pair.vocabulary)


def test_the_loss_is_the_mean_divergence(pair):
    """Texts of different lengths in one batch, against one text and one position at a time."""
    texts = [Text((4, 5, 6, 7), 2), Text((9, 4, 8, 12, 30, 31, 7), 6), Text((11, 4, 8, 9), 1)]
    terms = []
    for text in texts:
        for draft, verifier in zip(*score(pair, text)):
            p, q = draft.double().softmax(-1), verifier.double().softmax(-1)
            terms.append(float((q * (q.log() - p.log())).sum()))
    loss = kl_loss(pair.verifier, pair.draft, texts, pair.vocabulary).detach()
    assert len(terms) == 9
    assert float(loss) == pytest.approx(sum(terms) / 9, rel=1e-5)
    assert float(kl_loss(pair.verifier, pair.verifier, texts, 40).detach()) == pytest.approx(
        0, abs=1e-6
    )


def test_the_loss_is_cut_to_the_common_vocabulary(pair):
    text = Text((4, 5, 6), 1)
    p, q = (logits[0, :30].double().softmax(-1) for logits in score(pair, text))
    expected = float((q * (q / p).log()).sum())
    loss = kl_loss(pair.verifier, pair.draft, [text], 30).detach()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_training_lowers_the_loss_and_raises_acceptance(pair, texts, distilled):
    """The loss on texts that were trained on, acceptance on prompts that were not."""
    assert len(distilled.losses) == 60
    before, after = (
        float(kl_loss(pair.verifier, draft, texts, pair.vocabulary).detach())
        for draft in (pair.draft, distilled.draft)
    )
    assert after < 0.7 * before
    prompts = [Prompt(f"w{number} w{number + 1}", f"held-out-{number}") for number in range(20, 30)]
    held_out = calibrate(pair, prompts, positions=12)
    gain = acceptance(distilled.draft, held_out).mean - acceptance(pair.draft, held_out).mean
    assert gain > 0.05


def test_verifier_and_start_are_unchanged_bit_for_bit(pair, texts):
    models = (pair.verifier, pair.draft)
    before = [{name: t.clone() for name, t in m.state_dict().items()} for m in models]
    flags = [[t.requires_grad for t in m.parameters()] for m in models]
    draft = distill(pair.verifier, pair.draft, texts, GENTLE, pair.vocabulary).draft
    for model, state, flag in zip(models, before, flags):
        assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
        assert [t.requires_grad for t in model.parameters()] == flag
        assert all(t.grad is None for t in model.parameters())
    theirs = {t.data_ptr() for t in [*pair.verifier.parameters(), *pair.verifier.buffers()]}
    assert not theirs & {t.data_ptr() for t in [*draft.parameters(), *draft.buffers()]}


def test_all_but_the_embeddings_is_trained(pair, distilled):
    start = dict(pair.draft.named_parameters())
    for name, tensor in distilled.draft.named_parameters():
        kept = "embed_tokens" in name or "lm_head" in name
        assert torch.equal(tensor, start[name]) == kept, name
        assert tensor.dtype == torch.float32
        assert tensor.requires_grad
    head, table = distilled.draft.lm_head.weight, distilled.draft.model.embed_tokens.weight
    assert (head is table) == (
        pair.verifier.lm_head.weight is pair.verifier.model.embed_tokens.weight
    )


def test_steps_and_seed_decide(pair, texts, distilled):
    again = distill(pair.verifier, pair.draft, texts, GENTLE, pair.vocabulary)
    assert again.losses == distilled.losses
    other = replace(GENTLE, seed=1)
    assert distill(pair.verifier, pair.draft, texts, other, 40).losses != distilled.losses


def test_a_draft_of_lower_precision_is_trained_in_float32(make_model, texts):
    verifier = make_model(layers=3).bfloat16()
    settings = TrainingSettings(minutes=None, steps=2, learning_rate=1e-2)
    trained = distill(verifier, skip_layers(verifier, [1]), texts, settings, 40)
    assert {tensor.dtype for tensor in trained.draft.parameters()} == {torch.float32}
    assert {tensor.dtype for tensor in verifier.parameters()} == {torch.bfloat16}


def test_a_limit_in_minutes_ends_the_training(pair, texts):
    brief = TrainingSettings(minutes=0.01)
    losses = distill(pair.verifier, pair.draft, texts, brief, pair.vocabulary).losses
    assert 1 <= len(losses) < 2000


def test_every_text_is_seen_once_before_any_twice(pair, texts, monkeypatch):
    seen = []
    real = kl_loss

    def spy(verifier, draft, batch, vocabulary):
        seen.extend(batch)
        return real(verifier, draft, batch, vocabulary)

    monkeypatch.setattr("real_models.drafts.distillation.kl_loss", spy)
    settings = TrainingSettings(minutes=None, steps=30, batch=7)
    distill(pair.verifier, pair.draft, texts, settings, pair.vocabulary)
    first, second = seen[:100], seen[100:200]
    assert sorted(t.ids for t in first) == sorted(t.ids for t in second)
    assert sorted(t.ids for t in first) == sorted(t.ids for t in texts)
    assert first != second


def test_batches_hold_starts_of_similar_length():
    """No batch reaches into the lengths of another, and lengths do not come in order."""
    texts = [Text(tuple(range(start + 2)), 2) for start in range(1, 41)]
    settings = TrainingSettings(batch=8)
    batches = list(islice(_batches(texts, settings), 5))
    spans = [[len(text.ids) for text in batch] for batch in batches]
    assert all(max(span) - min(span) == 7 for span in spans)
    assert spans != sorted(spans)


def test_the_schedule():
    settings = TrainingSettings(learning_rate=2.0, warmup=0.1, minutes=1.0, steps=100)
    assert settings.rate(0.0) == pytest.approx(0.2)
    assert settings.rate(0.1) == pytest.approx(1 + math.cos(0.1 * math.pi))
    assert settings.rate(0.5) == pytest.approx(1.0)
    assert settings.rate(1.0) == pytest.approx(0.0)
    assert settings.progress(50, 6.0) == 0.5
    assert settings.progress(5, 45.0) == 0.75


def test_training_that_cannot_be_is_refused(pair, texts):
    with pytest.raises(UserError, match="a limit, in minutes or in steps"):
        TrainingSettings(minutes=None)
    for name in ("minutes", "steps", "batch", "learning_rate", "warmup", "clip"):
        with pytest.raises(UserError, match=f"{name} must be positive, got 0"):
            TrainingSettings(**{name: 0})
        with pytest.raises(UserError, match=rf"{name} must be below 1e\+31, got inf"):
            TrainingSettings(**{name: math.inf})
    with pytest.raises(UserError, match="no texts"):
        distill(pair.verifier, pair.draft, [], GENTLE, 40)
    wild = replace(GENTLE, learning_rate=1e30)
    with pytest.raises(UserError, match=r"the loss is nan at step \d+"):
        distill(pair.verifier, pair.draft, texts, wild, 40)


def test_even_layers_keep_the_vital_ones():
    vital = (0, 1, 2, 11, 28, 29)
    assert even_layers(30, 6, vital) == vital
    assert even_layers(30, 30, vital) == tuple(range(30))
    assert even_layers(10, 4, (0, 9)) == (0, 3, 7, 9)
    kept = even_layers(30, 20, vital)
    assert len(set(kept)) == 20
    assert set(vital) <= set(kept)
    dropped = [layer for layer in range(30) if layer not in kept]
    assert max(later - layer for layer, later in pairwise(dropped)) <= 4
    for count in (5, 31):
        with pytest.raises(UserError, match=f"cannot keep {count} of 30 layers: 6 of them"):
            even_layers(30, count, vital)
