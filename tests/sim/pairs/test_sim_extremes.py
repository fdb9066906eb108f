"""Families and filters at the ends of their ranges: distributions, or a line naming the value."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sim.pairs.families import FAMILIES, generators, make_family
from sim.pairs.filters import filter_probabilities, softmax

EXTREMES = [0.0, 5e-324, 1e-320, 1e-308, 1e-160, 1e-16, 1.0, 1e16, 1e160, 1e300, 1e308, 1.7e308]
numbers = st.one_of(
    st.sampled_from([*EXTREMES, *(-x for x in EXTREMES)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-3, 2**33),
)


def rng(seed=0):
    return next(generators(seed, 1))


def assert_distributions(rows):
    assert np.all(rows >= 0)  # False for NaN as well
    np.testing.assert_allclose(rows.sum(axis=-1), 1, rtol=0, atol=1e-12)


def draw_or_refusal(name, parameters):
    """The rows of a family, or None where a parameter was refused by its name."""
    refused = None
    try:
        return make_family(name, **parameters).sample(3, 12, rng())
    except ValueError as error:
        refused = str(error)
    assert "\n" not in refused
    assert any(refused.startswith(f"{parameter} must") for parameter in parameters)
    return None


@settings(max_examples=600, deadline=None)
@given(name=st.sampled_from(sorted(FAMILIES)), data=st.data())
def test_every_parameter_gives_distributions_or_is_refused(name, data):
    parameters = {f.name: data.draw(numbers, f.name) for f in fields(FAMILIES[name])}
    batch = draw_or_refusal(name, parameters)
    if batch is not None:
        for rows in (batch.p, batch.q, batch.p_raw, batch.q_raw):
            if rows is not None:
                assert_distributions(rows)


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize(
    ("name", "parameter"), [(n, f.name) for n in sorted(FAMILIES) for f in fields(FAMILIES[n])]
)
def test_one_extreme_parameter_at_a_time(name, parameter, value):
    batch = draw_or_refusal(name, {parameter: value})
    if batch is not None:
        for rows in (batch.p, batch.q):
            assert_distributions(rows)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("filtered", {"temperature": 1e-308}),
        ("filtered", {"temperature": 5e-324, "scale": 1.7e308}),
        ("zipf", {"noise": 1e308}),
        ("zipf", {"exponent": 1.7e308, "noise": 1.7e308}),
        ("gaussian", {"scale": 1.7e308}),
        ("near_equal", {"epsilon": 1e308}),
        ("dirichlet", {"concentration": 1e-300}),
        ("dirichlet", {"concentration": 1e-300, "shared": 0.5}),
        ("dirichlet", {"concentration": 1.7e308, "shared": 1.0}),
    ],
)
def test_a_limit_is_accepted_and_is_a_distribution(name, parameters):
    batch = draw_or_refusal(name, parameters)
    assert_distributions(batch.p)
    assert_distributions(batch.q)


def test_a_cold_row_is_the_one_hot_at_its_largest_logit():
    batch = make_family("filtered", temperature=1e-308).sample(4, 9, rng())
    np.testing.assert_array_equal(batch.q.argmax(-1), batch.q_raw.argmax(-1))
    np.testing.assert_array_equal(batch.q.max(-1), 1)


def test_noise_far_above_the_ranks_decides_alone():
    huge, large = (make_family("zipf", noise=n).sample(3, 9, rng()) for n in (1e308, 1e200))
    np.testing.assert_array_equal(huge.p, large.p)
    with_ranks = make_family("zipf", noise=1e308, exponent=1e308).sample(3, 9, rng())
    alike = make_family("zipf", noise=1e200, exponent=1e200).sample(3, 9, rng())
    np.testing.assert_array_equal(with_ranks.p, alike.p)


def test_a_concentration_below_all_digits_is_refused():
    with pytest.raises(ValueError, match=r"concentration must lie in .*, got 5e-324"):
        make_family("dirichlet", concentration=5e-324)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
def test_rows_and_tokens_of_small_integers(kind):
    for name in FAMILIES:
        batch = make_family(name).sample(kind(2), kind(126), rng())
        same = make_family(name).sample(2, 126, rng())
        np.testing.assert_array_equal(batch.p, same.p)
    assert make_family("zipf").sample(1, kind(127), rng()).q.shape == (1, 127)


@pytest.mark.parametrize("name", [None, 3, ["zipf"]])
def test_a_family_is_asked_for_by_a_name(name):
    with pytest.raises(ValueError, match="unknown family"):
        make_family(name)


ROW = np.array([0.15, 0.5, 0.05, 0.3])


@pytest.mark.parametrize("top_p", [0, 0.0, -1, math.nan, math.inf, 1.0000001, 2])
def test_a_nucleus_has_a_mass_between_nothing_and_all(top_p):
    with pytest.raises(ValueError, match=r"top_p must lie in \(0, 1\], got") as told:
        filter_probabilities(ROW, top_p=top_p)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("top_k", [-1, 2.5, math.nan])
def test_the_number_of_kept_tokens_is_a_count(top_k):
    with pytest.raises(ValueError, match="top_k must be an integer of at least 0"):
        filter_probabilities(ROW, top_k)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([0.5, math.nan]), "probabilities row 0"),
        (np.array([[0.5, 0.5], [0.0, 0.0]]), "probabilities row 1 has no mass"),
        (np.array([[0.5, 0.5], [1.5, -0.5]]), "probabilities row 1"),
        (np.array([math.inf, 0.0]), "probabilities row 0"),
        (np.ma.array(ROW, mask=[1, 0, 0, 0]), "masked"),
        (ROW + 0j, "complex"),
    ],
)
def test_only_masses_are_filtered(rows, message):
    with pytest.raises(ValueError, match=message):
        filter_probabilities(rows, 2, 0.5)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.array([0.0, math.nan]), "logits row 0 has the largest value nan"),
        (np.array([[0.0, 1.0], [0.0, math.inf]]), "logits row 1 has the largest value inf"),
        (np.full(3, -math.inf), "logits row 0 has the largest value -inf"),
        (np.ma.array(ROW, mask=[1, 0, 0, 0]), "masked"),
        (ROW + 0j, "complex"),
    ],
)
def test_a_softmax_needs_a_largest_logit(logits, message):
    with pytest.raises(ValueError, match=message):
        softmax(logits)


def test_ties_at_the_last_place_are_kept_by_top_k_and_cut_from_the_left_by_top_p():
    np.testing.assert_array_equal(filter_probabilities(np.full(4, 0.25), 2), np.full(4, 0.25))
    np.testing.assert_array_equal(filter_probabilities(np.full(4, 0.25), 0, 0.5), [0, 0, 0.5, 0.5])
    np.testing.assert_array_equal(
        filter_probabilities(np.array([0.25, 0.5, 0.25, 0.0]), 0, 0.75), [0, 2 / 3, 1 / 3, 0]
    )


@example([1, 1, 1, 1], 1, 0.5)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9).filter(any),
    st.integers(0, 10),
    st.floats(0, 1, exclude_min=True),
)
def test_the_nucleus_is_the_smallest_set_of_the_likeliest(weights, top_k, top_p):
    row = np.array(weights) / sum(weights)
    kept = filter_probabilities(row, top_k, top_p)
    assert_distributions(kept)
    inside = kept > 0
    assert row[inside].min() >= row[~inside].max(initial=0)
    last = row[inside].min()
    tied = np.flatnonzero(row == last)
    assert np.all(np.diff(inside[tied].astype(int)) >= 0)  # of equal ones the last are kept


def test_the_mass_of_a_nucleus_is_summed_in_double_precision():
    vocab = 151_936
    row = np.full(vocab, 0.03 / (vocab - 1), dtype=np.float32)
    row[0] = 0.97
    kept = np.count_nonzero(filter_probabilities(row, top_p=0.985))
    assert kept == pytest.approx(1 + (vocab - 1) / 2, rel=1e-3)
