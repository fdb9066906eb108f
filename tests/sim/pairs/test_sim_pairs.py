"""Every family draws distributions, whatever its parameters, and the same from the same seed."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.commandline import parse_families
from sim.pairs.families import FAMILIES, Amplification, Disjoint, Filtered, generators, make_family
from sim.pairs.filters import filter_probabilities, softmax

unit = st.floats(0, 1)
PARAMETERS = {
    "dirichlet": {"concentration": st.floats(1e-3, 100), "shared": unit},
    "zipf": {"exponent": st.floats(0, 20), "noise": st.floats(0, 30)},
    "gaussian": {"scale": st.floats(0, 300), "correlation": st.floats(-1, 1)},
    "filtered": {
        "temperature": st.floats(0.01, 100),
        "top_k": st.integers(0, 80),
        "top_p": st.floats(1e-6, 1),
        "scale": st.floats(0, 50),
        "correlation": st.floats(-1, 1),
    },
    "near_equal": {"epsilon": st.floats(0, 1), "exponent": st.floats(0, 3)},
    "disjoint": {"overlap": unit},
    "amplification": {},
}


def rng(seed=0):
    return next(generators(seed, 1))


def assert_distributions(rows, shape):
    assert rows.dtype == np.float64
    assert rows.shape == shape
    assert np.all(rows >= 0)  # False for NaN as well
    np.testing.assert_allclose(rows.sum(axis=-1), 1, rtol=0, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(FAMILIES)),
    rows=st.integers(0, 4),
    half=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
def test_every_family_draws_distributions(data, name, rows, half, seed):
    parameters = {key: data.draw(value, key) for key, value in PARAMETERS[name].items()}
    batch = make_family(name, **parameters).sample(rows, 2 * half, rng(seed))
    for side in (batch.p, batch.q, batch.p_raw, batch.q_raw):
        if side is not None:
            assert_distributions(side, (rows, 2 * half))


def test_parameters_of_every_family_are_exercised():
    for name, family in FAMILIES.items():
        assert set(PARAMETERS[name]) == {field.name for field in fields(family)}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_large_vocabulary_still_sums_to_one(name):
    batch = make_family(name).sample(2, 151_936, rng())
    assert_distributions(batch.p, (2, 151_936))
    assert_distributions(batch.q, (2, 151_936))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_same_seed_same_rows_and_another_seed_other_rows(name):
    first, again, other = (make_family(name).sample(3, 64, rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.p, again.p)
    np.testing.assert_array_equal(first.q, again.q)
    assert not np.array_equal(first.p, other.p)


def test_generators_are_the_spawned_children_of_the_seed():
    draws = [generator.random() for generator in generators(3, 3)]
    children = np.random.SeedSequence(3).spawn(3)
    assert draws == [np.random.default_rng(child).random() for child in children]
    assert len(set(draws)) == 3


def test_zipf_verifier_holds_the_same_weights_in_every_order():
    batch = make_family("zipf", exponent=1.0, noise=0.0).sample(2, 3, rng())
    np.testing.assert_allclose(
        np.sort(batch.q, axis=-1), [[2 / 11, 3 / 11, 6 / 11]] * 2, rtol=1e-15
    )
    np.testing.assert_array_equal(batch.p, batch.q)


def test_dirichlet_rows_have_the_variance_of_their_law():
    batch = make_family("dirichlet", concentration=0.5, shared=0.3).sample(20_000, 4, rng())
    # Var of one entry of Dirichlet(½, ½, ½, ½): (1/4)(3/4)/(2 + 1) = 1/16.
    for side in (batch.p, batch.q):
        np.testing.assert_allclose(side.var(axis=0), 1 / 16, rtol=0.05)


def test_gaussian_logits_have_the_wanted_spread_and_correlation():
    batch = make_family("gaussian", scale=2.0, correlation=0.6).sample(1, 200_000, rng())
    draft, verifier = np.log(batch.p[0]), np.log(batch.q[0])
    assert draft.std() == pytest.approx(2, rel=0.02)
    assert np.corrcoef(draft, verifier)[0, 1] == pytest.approx(0.6, abs=0.02)


def test_amplification_is_the_pair_of_the_claim():
    batch = Amplification().sample(3, 8, rng())
    np.testing.assert_array_equal(batch.q, np.full((3, 8), 1 / 8))
    np.testing.assert_array_equal(np.sort(batch.p, axis=-1), [[0] * 4 + [1 / 4] * 4] * 3)


@pytest.mark.parametrize(("overlap", "common"), [(0.0, 0), (0.5, 16), (1.0, 32)])
def test_disjoint_supports_share_what_they_say(overlap, common):
    batch = Disjoint(overlap).sample(5, 64, rng())
    np.testing.assert_array_equal((batch.p > 0).sum(axis=-1), 32)
    np.testing.assert_array_equal((batch.q > 0).sum(axis=-1), 32)
    np.testing.assert_array_equal(((batch.p > 0) & (batch.q > 0)).sum(axis=-1), common)


def test_filtered_rows_are_the_raw_rows_filtered():
    batch = Filtered(temperature=1.0, top_k=5, top_p=0.9).sample(10, 50, rng())
    np.testing.assert_array_equal(batch.q, filter_probabilities(batch.q_raw, 5, 0.9))
    assert np.all((batch.q > 0).sum(axis=-1) <= 5)
    assert np.all(batch.q_raw > 0)


def test_filters_keep_the_smallest_set_that_holds_the_mass():
    row = np.array([0.15, 0.5, 0.05, 0.3])
    np.testing.assert_allclose(filter_probabilities(row, top_p=0.79), [0, 0.625, 0, 0.375])
    np.testing.assert_allclose(filter_probabilities(row, top_p=0.81), [3 / 19, 10 / 19, 0, 6 / 19])
    # After top-k the mass is that of the kept tokens: 0.5 of 0.8 is 0.625 of it.
    np.testing.assert_allclose(filter_probabilities(row, 2, 0.6), [0, 1, 0, 0])
    np.testing.assert_array_equal(filter_probabilities(row), row)


def test_softmax_takes_minus_infinity_for_zero():
    np.testing.assert_array_equal(softmax(np.array([0.0, -np.inf, 0.0])), [0.5, 0, 0.5])
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000.0 + np.log(3)])), [0.25, 0.75])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_family("zipff"), "unknown family 'zipff'; did you mean 'zipf'?"),
        (lambda: make_family("zipf", exponnt=1), "'exponnt'; did you mean 'exponent'?"),
        (lambda: make_family("zipf", exponent=-1), r"exponent must lie in \[0, inf\), got -1"),
        (lambda: make_family("zipf", noise=float("nan")), "noise must lie .* got nan"),
        (lambda: make_family("dirichlet", concentration=0), r"concentration .* \(0, inf\), got 0"),
        (lambda: make_family("gaussian", correlation=1.5), r"correlation .* \[-1, 1\], got 1.5"),
        (lambda: make_family("filtered", top_k=2.5), "top_k must be an integer .* got 2.5"),
        (lambda: make_family("filtered", top_p=0), r"top_p must lie in \(0, 1\], got 0"),
        (lambda: make_family("zipf").sample(-1, 4, rng()), "rows must be .* at least 0, got -1"),
        (lambda: make_family("zipf").sample(1, 0, rng()), "vocab must be .* at least 1 .* got 0"),
        (lambda: make_family("disjoint").sample(1, 1, rng()), "vocab must be .* 2 .* got 1"),
        (lambda: make_family("amplification").sample(1, 9, rng()), "vocab must be even .* got 9"),
    ],
)
def test_bad_parameters_are_named(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_families_that_differ_have_labels_that_differ_and_read_back():
    families = [
        make_family("zipf", noise=0.7),
        make_family("zipf", noise=0.7000001),
        make_family("zipf", noise=np.float64(1e-308)),
        make_family("zipf", noise=2),
        make_family("filtered", top_k=1234567890, temperature=0.30000000000000004),
    ]
    labels = [family.label for family in families]
    assert len(set(labels)) == len(labels)
    assert labels[0] == "exponent=1.1, noise=0.7"
    assert labels[3] == "exponent=1.1, noise=2"
    for family, label in zip(families, labels):
        assert parse_families([f"{family.name}:{label.replace(' ', '')}"]) == [family]


@pytest.mark.parametrize("value", [None, "0.5", True, 10**400, [0.5], complex(1)])
def test_a_parameter_that_is_no_number_is_named(value):
    with pytest.raises(ValueError, match="noise must"):
        make_family("zipf", noise=value)


@pytest.mark.parametrize("vocab", [None, "8", True, 8.5])
def test_a_vocabulary_that_is_no_count_is_named(vocab):
    with pytest.raises(ValueError, match="vocab must"):
        make_family("zipf").check_vocab(vocab)
