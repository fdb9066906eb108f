"""One rule for the filters of synthetic rows and of models' logits: the same tokens are kept."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from real_models.laws.distributions import SamplingSettings, distributions, sample_tokens
from sim.pairs.filters import filter_probabilities


def both(row, top_k, top_p):
    """The tokens that either filter keeps of one row of probabilities."""
    logits = torch.tensor(row, dtype=torch.float64).log()
    model = distributions(logits, 1.0, top_k or None, top_p) > 0
    synthetic = filter_probabilities(logits.softmax(-1).numpy(), top_k, top_p) > 0
    return model.tolist(), synthetic.tolist()


@settings(max_examples=400, deadline=None)
@example([1, 1, 1, 1], 2, 0.5)
@example([1, 1, 1, 1], 0, 0.5)
@example([2, 1, 1], 0, 0.75)
@example([0, 1, 1, 0], 3, 1.0)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12).filter(any),
    st.integers(0, 13),
    st.one_of(
        st.sampled_from([0.25, 0.5, 0.75, 1.0, 1e-300]),
        st.floats(0, 1, exclude_min=True).map(lambda x: max(x, 1e-300)),
    ),
)
def test_both_filters_keep_the_same_tokens(weights, top_k, top_p):
    model, synthetic = both([w / sum(weights) for w in weights], top_k, top_p)
    assert model == synthetic


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    st.integers(1, 13),
    st.floats(0.01, 1).map(lambda x: 0.9137 * x),
)
def test_they_are_the_tokens_that_generate_keeps(logits, top_k, top_p):
    scores = torch.tensor([logits], dtype=torch.float64)
    scores = TopKLogitsWarper(top_k)(None, scores)
    expected = TopPLogitsWarper(top_p)(None, scores).softmax(-1)[0]
    found = distributions(torch.tensor(logits, dtype=torch.float64), 1.0, top_k, top_p)
    assert ((found > 0) == (expected > 0)).all()


def test_of_equal_tokens_the_last_are_kept():
    found = SamplingSettings(top_p=0.5).probabilities(torch.zeros(1000))
    assert (found[:500] == 0).all()
    assert (found[500:] > 0).all()


def test_a_nucleus_in_single_precision_is_summed_in_double():
    logits = torch.zeros(151_936)
    logits[0] = math.log(0.97 / 0.03 * 151_935)
    single = distributions(logits, top_p=0.985, dtype=torch.float32)
    assert int((single > 0).sum()) == pytest.approx(1 + 151_935 / 2, rel=1e-3)


@pytest.mark.parametrize(
    "bad", [np.ma.array(np.zeros(3), mask=[1, 0, 0]), np.zeros(3) + 0j, np.array(["a", "b"])]
)
def test_logits_that_are_no_plain_real_array_are_refused(bad):
    with pytest.raises((TypeError, ValueError), match=r"masked|complex|real"):
        distributions(bad)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", torch.tensor(3)),
        ("top_k", np.array(3)),
        ("top_k", np.int8(3)),
        ("top_k", np.uint8(3)),
    ],
)
def test_a_count_of_any_kind_is_a_count(name, value):
    assert SamplingSettings(**{name: value}) == SamplingSettings(**{name: 3})


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.asarray, torch.tensor])
def test_a_temperature_of_any_kind_is_a_number(kind):
    found = SamplingSettings(kind(0.5), None, kind(0.25))
    assert found == SamplingSettings(0.5, None, 0.25)
    assert type(found.temperature) is type(found.top_p) is float


@pytest.mark.parametrize("bad", [np.ma.masked, np.ma.array(0.5), 1j, True, "0.5", np.array([0.5])])
@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_a_setting_is_one_real_number(name, bad):
    with pytest.raises(ValueError, match=f"{name} must be a real number"):
        SamplingSettings(**{name: bad})


@pytest.mark.parametrize(
    ("uniforms", "message"),
    [
        ([0.5], "2 rows need as many uniforms, got 1"),
        ([0.5, 0.5, 0.5], "2 rows need as many uniforms, got 3"),
        ([0.5, 1.0], r"uniforms must lie in \[0, 1\), got 1.0"),
        ([-0.1, 0.5], r"uniforms must lie in \[0, 1\), got -0.1"),
        ([0.5, math.nan], r"uniforms must lie in \[0, 1\), got nan"),
    ],
)
def test_a_row_is_sampled_by_one_uniform(uniforms, message):
    with pytest.raises(ValueError, match=message):
        sample_tokens(torch.full((2, 3), 1 / 3), uniforms)


def test_a_uniform_just_below_one_is_below_one():
    assert sample_tokens(torch.tensor([[0.25, 0.75, 0.0]]), [1 - 2**-53]) == [1]
