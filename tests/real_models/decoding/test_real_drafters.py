"""What is proposed, and the distribution it is said to come from."""

import numpy as np
import pytest
import torch

from real_models.decoding.drafters import ModelDrafter, NoDrafter, PromptLookup, parse_lookup
from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.laws.settings_laws import SettingsLaws
from real_models.models.cached_model import CachedModel

CPU = torch.device("cpu")


def drafter(model, settings, ends=(), raw=False):
    return ModelDrafter(CachedModel(model, 40), SettingsLaws(settings), ends, raw=raw)


def uniforms(texts, count, value=None, seed=0):
    drawn = np.random.default_rng(seed).random((texts, count))
    return drawn if value is None else np.full((texts, count), value)


def test_each_token_comes_with_the_row_it_was_drawn_from(make_model):
    model, settings = make_model(), SamplingSettings(0.8, top_k=9)
    texts, count, u = [[4, 5], [6, 7, 8]], 4, uniforms(2, 4)
    found = drafter(model, settings).propose(texts, count, u)
    rows = found.p.reshape(2, count, 40)
    for text, tokens, law, quantiles in zip(texts, found.tokens, rows, u):
        for place, token in enumerate(tokens):
            with torch.no_grad():
                logits = model(torch.tensor([text + tokens[:place]])).logits[0, -1]
            torch.testing.assert_close(
                law[place], settings.probabilities(logits), rtol=1e-4, atol=1e-6
            )
            below = float(law[place][:token].sum())
            assert below <= quantiles[place] < below + float(law[place][token]) + 1e-12
    assert texts == [[4, 5], [6, 7, 8]]


def test_a_greedy_draft_is_certain(make_model):
    model = make_model()
    found = drafter(model, SamplingSettings(greedy_draft=True)).propose([[4, 5]], 3, uniforms(1, 3))
    with torch.no_grad():
        text = model.generate(torch.tensor([[4, 5]]), max_new_tokens=3, do_sample=False)
    assert found.tokens[0] == text[0, 2:].tolist()
    assert found.p.tolist() == np.eye(40)[found.tokens[0]].tolist()


def test_raw_rows_are_those_before_the_filters(make_model):
    settings = SamplingSettings(0.5, top_k=3)
    found = drafter(make_model(), settings, raw=True).propose([[4, 5]], 3, uniforms(1, 3))
    assert (found.p_raw > 0).all()
    assert ((found.p > 0).sum(-1) == 3).all()
    assert drafter(make_model(), settings).propose([[4, 5]], 3, uniforms(1, 3)).p_raw is None


def test_a_draft_stops_behind_an_end_token(make_model):
    model, texts, u = make_model(), [[4, 5], [6, 7, 8]], uniforms(2, 6)
    free = drafter(model, SamplingSettings()).propose(texts, 6, u)
    end = free.tokens[0][1]
    found = drafter(model, SamplingSettings(), ends=[end]).propose(texts, 6, u)
    for whole, cut in zip(free.tokens, found.tokens):
        length = whole.index(end) + 1 if end in whole else len(whole)
        assert cut == whole[:length]
    assert len(found.p) == sum(map(len, found.tokens))


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], 3, [3, 9, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, [4, 1, 2]),  # the most recent of two
        ([5, 1, 2, 3, 7, 2, 8, 1, 2], 2, [3, 7, 2]),  # the longest before the most recent
        ([1, 2, 3], 3, []),
        ([7], 3, []),
        ([7, 7], 3, [7]),
    ],
)
def test_a_lookup_continues_what_stood_before(text, longest, expected):
    found = PromptLookup(10, CPU, [], longest).propose([text], 3, uniforms(1, 3))
    assert found.tokens == [expected]
    assert found.p.tolist() == np.eye(10)[expected].reshape(-1, 10).tolist()


def test_lookups_differ_in_length_and_stop_at_the_end():
    found = PromptLookup(10, CPU, [9]).propose([[1, 2, 9, 3, 1], [4], [5, 6, 5]], 4, uniforms(3, 4))
    assert found.tokens == [[2, 9], [], [6, 5]]
    assert found.p.argmax(-1).tolist() == [2, 9, 6, 5]


def test_nobody_proposes_nothing():
    found = NoDrafter(10, CPU).propose([[1], [2, 3]], 4, uniforms(2, 4))
    assert found.tokens == [[], []]
    assert found.p.shape == (0, 10)


@pytest.mark.parametrize(
    ("text", "longest"), [("lookup", 3), ("lookup:5", 5), ("skip:1", None), ("", None)]
)
def test_names_of_lookups(text, longest):
    assert parse_lookup(text) == longest


@pytest.mark.parametrize("text", ["lookup:", "lookup:0", "lookup:-1", "lookup:x"])
def test_bad_names_of_lookups(text):
    with pytest.raises(UserError, match=f"draft '{text}' is not like"):
        parse_lookup(text)


def test_a_lookup_of_nothing_is_refused():
    with pytest.raises(UserError, match="at least one token, got 0"):
        PromptLookup(10, CPU, [], 0)
