"""Logits → probabilities, against a slow and obvious loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import real_models.laws.distributions as module
from real_models.laws.distributions import SamplingSettings, distributions

INF = math.inf


def slow(row, temperature=1.0, top_k=None, top_p=None):
    """One row in plain Python: sort, keep, divide."""
    row = [float(value) for value in row]
    if temperature == 0:
        best = row.index(max(row))
        return [float(i == best) for i in range(len(row))]
    row = [value / temperature for value in row]
    if top_k is not None:
        least = sorted(row, reverse=True)[min(top_k, len(row)) - 1]
        row = [value if value >= least else -INF for value in row]
    weights = [math.exp(value - max(row)) for value in row]
    probabilities = [weight / math.fsum(weights) for weight in weights]
    if top_p is None or top_p == 1.0:
        return probabilities
    before, kept = 0.0, [0.0] * len(row)
    for i in sorted(range(len(row)), key=lambda i: -probabilities[i]):
        if before < top_p:
            kept[i] = probabilities[i]
        before += probabilities[i]
    return [value / math.fsum(kept) for value in kept]


SETTINGS = [
    {},
    {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    {"temperature": 0.6},
    {"temperature": 2.5, "top_p": 0.5},
    {"top_k": 1},
    {"top_k": 3, "top_p": 0.7},
    {"top_k": 1000},
    {"top_p": 1e-9},
    {"top_p": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 5, "top_p": 0.5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_agrees_with_the_loop(settings):
    logits = 3 * torch.randn(2, 5, 33, generator=torch.Generator().manual_seed(1))
    found = distributions(logits, **settings)
    expected = torch.tensor([[slow(row, **settings) for row in rows] for rows in logits.tolist()])
    assert found.shape == logits.shape
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=1e-6)
    exact = torch.tensor([slow(row, **settings) for row in logits[0].tolist()], dtype=torch.float64)
    torch.testing.assert_close(found[0], exact, rtol=1e-12, atol=1e-15)


@hypothesis_settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(-50, 50, width=32), st.just(-INF), st.just(0.0)),
        min_size=1,
        max_size=12,
    ).filter(lambda row: max(row) > -INF),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    st.one_of(st.none(), st.integers(1, 14)),
)
def test_masks_and_ties_agree_with_the_loop(row, temperature, top_k):
    found = distributions(torch.tensor(row, dtype=torch.float64), temperature, top_k)
    expected = slow(row, temperature, top_k)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-300)
    assert all(value == 0.0 for value, logit in zip(found.tolist(), row) if logit == -INF)


def test_top_k_keeps_all_ties_at_the_last_place():
    found = distributions(torch.tensor([1.0, 2.0, 1.0, 1.0, 0.0]), top_k=2)
    assert (found > 0).tolist() == [True, True, True, True, False]


def test_top_k_wider_than_the_support_keeps_masks():
    found = distributions(torch.tensor([0.0, -INF, 0.0, -INF]), top_k=3)
    assert found.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_logits_that_differ_below_rounding_of_the_maximum_are_no_tie():
    found = distributions(torch.tensor([0.0, 1.0, 1e-19], dtype=torch.float64), top_k=2)
    assert (found > 0).tolist() == [False, True, True]


def test_temperature_comes_before_top_p():
    # At T = 0.5 the weights (.5, .3, .2) become (25, 9, 4)/38: the first alone holds .65.
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    assert distributions(logits, temperature=0.5, top_p=0.6).tolist() == [1.0, 0.0, 0.0]
    assert distributions(logits, top_p=0.6).tolist() == pytest.approx([0.625, 0.375, 0.0])


def test_top_k_comes_before_top_p():
    # Within the two kept tokens the first holds .625 ≥ .6; within all four only .5.
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert distributions(logits, top_k=2, top_p=0.6).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_top_p_example_of_serving_engines():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert distributions(logits, top_p=0.8 - 1e-9).tolist() == pytest.approx([0.625, 0.375, 0, 0])


def test_greedy_takes_the_lowest_index_of_a_tie():
    assert distributions(torch.tensor([1.0, 7.0, 7.0]), temperature=0).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_are_cast_once_and_exactly(dtype):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = distributions(logits, 0.6, 20, 0.95)
    assert torch.equal(found, distributions(logits.double(), 0.6, 20, 0.95))


def test_close_logits_at_a_low_temperature():
    logits = torch.tensor([10.01, 10.02], dtype=torch.float64)
    expected = [0.2689414213699951, 0.7310585786300049]
    assert distributions(logits, temperature=0.01).tolist() == pytest.approx(expected, rel=1e-12)


def test_extreme_float16_logits():
    found = distributions(torch.tensor([65504.0, -65504.0], dtype=torch.float16))
    assert found.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_extreme_temperatures_make_no_nan(temperature):
    found = distributions(torch.tensor([3.0, 2.0, -INF, 3.0]), temperature=temperature)
    assert found[2] == 0.0
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-12)
    assert found[0] == found[3]
    large = torch.tensor([[-1e300, 0.5e300, 1e300], [1.0, 2.0, 3.0]], dtype=torch.float64)
    found = distributions(large, temperature=min(temperature, 1e-10), top_k=3, top_p=0.99)
    assert found.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([math.nan] * 3, "value nan"),
        ([0.0, math.nan, -INF], "value nan"),
        ([0.0, INF, 0.0], "value inf"),
        ([-INF, -INF, -INF], "no finite logit"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unusable_row_is_named(row, reason, temperature):
    logits = torch.zeros(2, 4, 3)
    logits[1, 2] = torch.tensor(row)
    with pytest.raises(ValueError, match=rf"verifier: row \[1, 2\] .*{reason}"):
        distributions(logits, temperature, name="verifier")
    with pytest.raises(ValueError, match=rf"logits: row 2 .*{reason}"):
        distributions(logits[1], temperature)


def test_rows_are_worked_in_chunks_without_a_seam(monkeypatch):
    logits = torch.randn(3, 7, 11, generator=torch.Generator().manual_seed(3))
    whole = distributions(logits, 0.7, 5, 0.9)
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", 25)
    assert torch.equal(distributions(logits, 0.7, 5, 0.9), whole)
    logits[2, 6, 0] = math.nan
    with pytest.raises(ValueError, match=r"row \[2, 6\]"):
        distributions(logits)


def test_rows_sum_to_one_at_a_large_vocabulary():
    logits = 4 * torch.randn(3, 151_936, generator=torch.Generator().manual_seed(4))
    for settings in ({}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}):
        total = distributions(logits, **settings).sum(-1)
        assert float((total - 1).abs().max()) < 1e-12


def test_the_input_is_left_alone_and_may_be_read_only():
    array = np.zeros((2, 3))
    array.flags.writeable = False
    np.testing.assert_allclose(distributions(array).numpy(), 1 / 3, rtol=1e-15)
    logits = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not distributions(logits, top_k=1).requires_grad
    assert logits.tolist() == [1.0, 2.0]


def test_empty_batches_and_single_tokens():
    assert distributions(torch.empty(0, 5), top_p=0.5).shape == (0, 5)
    assert distributions(torch.tensor([-3.0]), 0.6, 20, 0.95).tolist() == [1.0]


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_logits_without_tokens_are_refused(shape):
    with pytest.raises(ValueError, match="V ≥ 1"):
        distributions(torch.zeros(shape))


@pytest.mark.parametrize("logits", [[1.0, 2.0], torch.tensor([True]), torch.tensor([1j])])
def test_what_is_no_real_tensor_is_refused(logits):
    with pytest.raises(TypeError, match="draft must be a real torch tensor"):
        distributions(logits, name="draft")


def test_result_dtype():
    found = distributions(torch.tensor([1.0, 2.0]), dtype=torch.float32)
    assert found.dtype == torch.float32
    with pytest.raises(TypeError, match=r"float64 or torch\.float32"):
        distributions(torch.tensor([1.0]), dtype=torch.float16)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": INF}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
    ],
)
def test_settings_outside_their_range_are_named(settings, name):
    with pytest.raises(ValueError, match=name):
        SamplingSettings(**settings)
    with pytest.raises(ValueError, match=name):
        distributions(torch.zeros(1, 2), **settings)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        (SamplingSettings(), "T=1"),
        (SamplingSettings(0), "T=0"),
        (SamplingSettings(0.6, 20, 0.95), "T=0.6 top-p 0.95 top-k 20"),
        (SamplingSettings(1.5, top_k=4), "T=1.5 top-k 4"),
        (SamplingSettings(greedy_draft=True), "T=1 greedy-draft"),
        (SamplingSettings(0.6, 20, greedy_draft=True), "T=0.6 top-k 20 greedy-draft"),
    ],
)
def test_labels_read_back(settings, label):
    assert settings.label == label
    assert SamplingSettings.parse(label) == settings
    logits = torch.arange(6.0)
    assert torch.equal(
        settings.probabilities(logits),
        distributions(logits, settings.temperature, settings.top_k, settings.top_p),
    )


def test_a_greedy_draft_is_one_hot_and_the_verifier_is_not():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [2.0, -INF, 0.0, 1.0]])
    settings = SamplingSettings(0.7, top_k=3, greedy_draft=True)
    assert settings.draft_probabilities(logits).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    sampled = SamplingSettings(0.7, top_k=3)
    assert torch.equal(settings.probabilities(logits), sampled.probabilities(logits))
    assert torch.equal(sampled.draft_probabilities(logits), sampled.probabilities(logits))
    with pytest.raises(ValueError, match="draft logits: row 1"):
        settings.draft_probabilities(
            torch.full((2, 3), -INF).index_fill(0, torch.tensor(0), 0.0), name="draft logits"
        )


BAD_LABELS = [
    "",
    "T=",
    "T=x",
    "top-k 3",
    "T=1 top-z 3",
    "T=1 T=2",
    "T=-1",
    "greedy-draft",
    "T=1 greedy-draft top-k 3",
]


@pytest.mark.parametrize("label", BAD_LABELS)
def test_labels_that_say_nothing_are_refused(label):
    with pytest.raises(ValueError, match=r"sampling settings|temperature"):
        SamplingSettings.parse(label)


@pytest.mark.cuda
def test_cuda_agrees_with_cpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    logits = 3 * torch.randn(20, 5000, generator=torch.Generator().manual_seed(5))
    for settings in SETTINGS:
        found = distributions(logits.cuda(), **settings)
        assert found.device.type == "cuda"
        torch.testing.assert_close(
            found.cpu(), distributions(logits, **settings), rtol=0, atol=1e-9
        )


@pytest.mark.parametrize(
    "text",
    [
        "T=0.6 top-p 0.95 top-k 20",
        "T=0.6, top_k 20, top_p .95",
        "temperature=0.6 top_p=0.95 top_k=20",
        "temperature: 0.60, top-k: 20, top-p: 9.5e-1",
        "t 0.6 topk=20 topp=.95",
        "T = 0.6 ; Top-P = 0.95 ; Top-K = 20",
        "top-k 20 T=0.6 top_p 0.95",
        "T=0.6,top-k=20,top-p=0.95",
    ],
)
def test_settings_read_alike_however_people_write_them(text):
    assert SamplingSettings.parse(text) == SamplingSettings(0.6, 20, 0.95)
    assert SamplingSettings.parse(f"{text} greedy_draft") == SamplingSettings(0.6, 20, 0.95, True)


@pytest.mark.parametrize("text", ["T=0.6 top-k 20.5", "T=0.6 top-k", "T=0.6 0.7", "T=0.6 T 0.6"])
def test_settings_that_say_too_much_or_too_little_are_refused(text):
    with pytest.raises(ValueError, match="sampling settings"):
        SamplingSettings.parse(text)


@given(
    st.floats(0, allow_infinity=False),
    st.none() | st.integers(1, 10**9),
    st.none() | st.floats(0, 1, exclude_min=True),
    st.booleans(),
)
def test_every_label_reads_back(temperature, top_k, top_p, greedy):
    settings = SamplingSettings(temperature, top_k, top_p, greedy)
    assert SamplingSettings.parse(settings.label) == settings


def test_settings_that_differ_have_labels_that_differ():
    assert SamplingSettings(0.6).label != SamplingSettings(0.60000012).label
    assert SamplingSettings(1, top_p=0.9999996).label == "T=1 top-p 0.9999996"
