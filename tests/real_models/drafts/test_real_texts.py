"""Acceptance along the verifier's texts: the formula, its error, prompts that are kept apart."""

import math

import numpy as np
import pytest
import torch

from real_models.derived.layer_skip import skip_layers
from real_models.drafts.texts import (
    CALIBRATION_PROMPTS,
    OPENINGS,
    Calibration,
    acceptance,
    calibrate,
)
from real_models.errors import UserError
from real_models.models.pair import make_pair
from real_models.prompts import Prompt, read_prompts
from real_models.traces.contexts import score


@pytest.fixture(scope="module")
def pair(make_model, make_tokenizer):
    verifier = make_model(layers=3)
    return make_pair(verifier, skip_layers(verifier, [1]), make_tokenizer())


@pytest.fixture(scope="module")
def calibration(pair, tiny_prompts):
    return calibrate(pair, read_prompts(tiny_prompts)[0], positions=6, seed=4)


def test_acceptance_is_the_sum_of_minima(pair, calibration):
    """One position and one token at a time, in float64, from both models' logits."""
    terms = []
    for text in calibration.texts:
        for draft, verifier in zip(*score(pair, text)):
            laws = zip(draft.double().softmax(-1).tolist(), verifier.double().softmax(-1).tolist())
            terms.append(sum(min(p, q) for p, q in laws))
    found = acceptance(pair.draft, calibration)
    assert found.positions == calibration.positions == len(terms)
    assert found.mean == pytest.approx(sum(terms) / len(terms), abs=1e-6)
    assert 0.05 < found.mean < 0.95


def test_the_verifier_accepts_itself(pair, calibration):
    found = acceptance(pair.verifier, calibration)
    assert found.mean == pytest.approx(1, abs=1e-6)
    assert found.standard_error < 1e-6


def test_texts_are_the_verifiers_and_decided_by_the_seed(pair, calibration, tiny_prompts):
    prompts = read_prompts(tiny_prompts)[0]
    assert calibrate(pair, prompts, positions=6, seed=4).texts == calibration.texts
    assert calibrate(pair, prompts, positions=6, seed=5).texts != calibration.texts
    for text, law in zip(calibration.texts, calibration.laws):
        assert law.shape == (text.positions, pair.vocabulary)
        assert law.dtype == torch.float32
        torch.testing.assert_close(law, score(pair, text)[1].softmax(-1), rtol=0, atol=1e-6)


def test_the_standard_error_is_clustered_by_text(pair, calibration):
    """With equally long texts it is the standard error of the texts' means."""
    longest = max(text.positions for text in calibration.texts)
    whole = [i for i, text in enumerate(calibration.texts) if text.positions == longest]
    texts, laws = (
        tuple(values[i] for i in whole) for values in (calibration.texts, calibration.laws)
    )
    assert len(whole) >= 3
    means = [
        acceptance(pair.draft, Calibration((text,), (law,), ("a",))).mean
        for text, law in zip(texts, laws)
    ]
    found = acceptance(pair.draft, Calibration(texts, laws, calibration.prompts[: len(texts)]))
    expected = np.std(means, ddof=1) / math.sqrt(len(means))
    assert found.standard_error == pytest.approx(expected, rel=1e-6)
    assert str(found) == f"{found.mean:.4f} ± {expected:.4f}"


def test_one_text_has_no_standard_error(pair, calibration):
    alone = acceptance(pair.draft, Calibration(calibration.texts[:1], calibration.laws[:1], ("a",)))
    assert math.isnan(alone.standard_error)
    assert str(alone) == f"{alone.mean:.4f}"


def test_prompts_that_are_too_long_are_named_first(pair, monkeypatch):
    monkeypatch.setattr("real_models.drafts.texts.make_text", lambda *_: pytest.fail("sampled"))
    prompts = [Prompt("w4", "short"), Prompt("w4 " * 100, "long")]
    with pytest.raises(UserError, match="'long': 140 tokens exceed the models' limit of 128"):
        calibrate(pair, prompts, positions=40)


def test_no_draft_is_made_with_a_prompt_that_pairs_are_measured_on():
    """The three files share no prompt and no opening words, and cover the same domains."""
    files = [read_prompts(path)[0] for path in (None, CALIBRATION_PROMPTS, OPENINGS)]
    assert [len(prompts) for prompts in files] == [10, 8, 40]
    starts = [prompt.prompt[:20] for prompts in files for prompt in prompts]
    assert len(set(starts)) == len(starts)
    assert len({prompt.id for prompts in files for prompt in prompts}) == 58
    domains = [{(prompt.domain, prompt.chat) for prompt in prompts} for prompts in files]
    assert domains[0] == domains[1] == domains[2]
