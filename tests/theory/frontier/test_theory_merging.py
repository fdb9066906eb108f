"""Merged rows: the law of a long row without sorting is that of the sorted row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import ALL_KINDS, row_pairs

from theory import Pair, divergence, make_rule
from theory.arrays import ratio_of
from theory.divergences.kinds import resolve_divergence
from theory.frontier.clipped import clipped_law
from theory.frontier.merging import Merged, clipped_target, surely_kept

LEVELS = (0.0, 1e-9, 1e-4, 0.02, 0.1, 0.5, 3.0, math.inf)


def sorted_output(p, q, level, kind, on_support=False):
    """The output of the sorted rows, over the vocabulary."""
    pair = Pair.prepare(p, q)
    levels = np.full(len(p), level)
    return pair.expand(clipped_law(pair, levels, kind, on_support=on_support).output)


def long_pair(rows=3, width=6_000, seed=0, noise=0.8, holes=0.0):
    """Rows as a language model gives them: logits over a wide range, the draft's a little off."""
    rng = np.random.default_rng(seed)
    logits = 3.5 * rng.standard_normal((rows, width))
    q = np.exp(logits)
    p = q * np.exp(noise * rng.standard_normal((rows, width)))
    p, q = (np.where(rng.random((rows, width)) < holes, 0.0, side) for side in (p, q))
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


@pytest.mark.parametrize("on_support", [False, True])
@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=st.integers(1, 9).flatmap(row_pairs), level=st.sampled_from(LEVELS))
def test_a_merged_row_has_the_law_of_the_sorted_one(kind, on_support, pair, level):
    p, q = pair
    kind = resolve_divergence(kind)
    found = Merged.of(p, q, kind, level).target(on_support)
    expected = sorted_output(p[None], q[None], level, kind, on_support)[0]
    if found is not None:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("holes", [0.0, 0.1])
@pytest.mark.parametrize("noise", [1e-3, 0.8, 3.0])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_long_rows_need_no_sort_and_lose_no_digits(kind, noise, holes, monkeypatch):
    p, q = long_pair(noise=noise, holes=holes)
    kind = resolve_divergence(kind)
    expected = {level: sorted_output(p, q, level, kind) for level in LEVELS}
    monkeypatch.setattr(Pair, "sorted_by_ratio", lambda pair: pytest.fail("a row was sorted"))
    pair = Pair.prepare(p, q, sort=False)
    for level in LEVELS:
        found = pair.expand(clipped_target(pair, level, kind))
        np.testing.assert_allclose(found, expected[level], rtol=0, atol=1e-13)
        np.testing.assert_allclose(found.sum(-1), 1.0, rtol=0, atol=1e-12)


def faint_pair(seed, width=2048):
    """A quarter of either row is subnormal: ratios from 1e-320 to beyond the largest number."""
    rng = np.random.default_rng(seed)
    sides = rng.gamma(1, size=(2, 1, width))
    order, quarter = rng.permutation(width), width // 4
    for side, start in zip(sides, (0, quarter // 2)):
        faint = order[start : start + quarter]
        side[0, faint] = rng.integers(0, 50, size=quarter) * 5e-324
    return sides / sides.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("level", [0.02, 0.58, 0.7, 3.0])
def test_a_merged_token_far_from_the_solution_misleads_nobody(kind, level):
    """Where it costs less than its parts, a chord through it would end before the root."""
    kind = resolve_divergence(kind)
    for seed in (0, 1, 5):
        p, q = faint_pair(seed)
        found = Merged.of(p[0], q[0], kind, level).target(False)
        if found is not None:
            expected = sorted_output(p, q, level, kind)[0]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [0.02, 0.1])
def test_the_level_is_met_on_a_row_as_long_as_a_vocabulary(level):
    p, q = long_pair(rows=2, width=50_000, seed=1)
    for name, kind in (("frontier", "kl"), ("mentored", "reverse_kl")):
        target = make_rule(name, level=level).target(Pair.prepare(p, q, sort=False))
        np.testing.assert_allclose(divergence(kind, target, q), level, rtol=1e-9)


def test_a_factor_outside_its_groups_sends_the_row_to_the_sort(monkeypatch):
    p, q = long_pair()
    kind = resolve_divergence("kl")
    elsewhere = Merged.of(p[0], q[0], kind, 0.1).place._replace(near_a=(1600, 1601))
    monkeypatch.setattr(Merged, "place", elsewhere)
    assert Merged.of(p[0], q[0], kind, 0.1).target(False) is None
    pair = Pair.prepare(p, q, sort=False)
    found = pair.expand(clipped_target(pair, 0.1, kind))
    np.testing.assert_allclose(found, sorted_output(p, q, 0.1, kind), rtol=0, atol=1e-13)


@pytest.mark.parametrize("on_support", [False, True])
@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=st.integers(1, 9).flatmap(row_pairs), level=st.sampled_from(LEVELS))
def test_what_is_surely_kept_is_kept(kind, on_support, pair, level):
    """The bound on a, from sums over groups alone, is never above the a of the sorted row."""
    p, q = pair
    kind = resolve_divergence(kind)
    least = Merged.of(p, q, kind, level).place.above
    target = sorted_output(p[None], q[None], level, kind, on_support)[0]
    kept = (q > 0) & (ratio_of(np, p, q) <= least)
    assert (target[kept] >= p[kept] * (1 - 1e-9) - 1e-300).all()


@pytest.mark.parametrize(("name", "level"), [("frontier", 0.1), ("mentored", 0.02)])
def test_a_decoder_is_told_of_every_candidate_what_the_target_says(name, level, monkeypatch):
    """Most kept donors are told from sums alone, and none that is not kept."""
    p, q = long_pair(rows=1)
    rule, pair = make_rule(name, level=level), Pair.prepare(p, q, sort=False)
    expected = rule.accept(pair)[0]
    donors = np.flatnonzero((p > q)[0])
    asked = []
    known = type(rule)._known_target
    monkeypatch.setattr(
        type(rule), "_known_target", lambda rule, pair: asked.append(pair) or known(rule, pair)
    )
    for token in donors[::7]:
        found = rule.accept_at(pair, np.array([token]))
        np.testing.assert_allclose(found, expected[token], rtol=0, atol=1e-13)
    cut = int((expected[donors[::7]] < 1).sum())
    assert cut <= len(asked) < cut + 0.05 * len(donors) / 7


def test_rows_that_are_not_merged_are_sure_of_nothing():
    p, q = long_pair(rows=1)
    kind, token = resolve_divergence("kl"), np.argmin(p / q, axis=-1)
    assert surely_kept(Pair.prepare(p, q, sort=False), token, 0.1, kind)
    assert not surely_kept(Pair.prepare(p, q), np.array([0]), 0.1, kind)
    short = Pair.prepare(*long_pair(rows=1, width=50), sort=False)
    assert not surely_kept(short, np.array([0]), math.inf, kind)


@pytest.mark.parametrize("level", [0.001, 0.02, 0.1])
def test_what_may_not_be_accepted_is_not(level):
    """With all draft mass that could be gained outside the support there is nothing to gain."""
    p, q = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    found = Merged.of(p, q, resolve_divergence("reverse_kl"), level).target(True)
    np.testing.assert_array_equal(found, q)
