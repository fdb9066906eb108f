"""Three and more draws without replacement: the race of head and tail beside exact fractions."""

import itertools
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from theory.candidates import race as module
from theory.candidates.increments import without_replacement


def chance(drawn, weights, left):
    """Of drawing a set with so many tokens of each weight, each of them given, in any order."""
    if not any(drawn):
        return Fraction(1)
    total = Fraction(0)
    for n, (size, weight) in enumerate(zip(drawn, weights)):
        if size:
            fewer = (*drawn[:n], size - 1, *drawn[n + 1 :])
            total += size * weight / left * chance(fewer, weights, left - weight)
    return total


def exact(kinds, weights, count):
    """Increments of tokens of a few weights: all sets before a token by how many of each it has."""
    weights = [Fraction(w) for w in weights]
    left = sum(weights[kind] for kind in kinds)
    ways = [x for x in itertools.product(range(count), repeat=len(weights)) if sum(x) == count - 1]
    chances = {}
    for others in ways:
        for kind in range(len(weights)):
            drawn = tuple(n + (i == kind) for i, n in enumerate(others))
            chances[others, kind] = chance(drawn, weights, left)
    seen, found = [0] * len(weights), []
    for kind in kinds:
        terms = (
            np.prod([comb(*pair) for pair in zip(seen, others)], dtype=object)
            * chances[others, kind]
            for others in ways
        )
        found.append(float(sum(terms, Fraction(0))))
        seen[kind] += 1
    return np.array(found)


def row(weights, sizes, seed):
    """Tokens of a few weights in a mixed order: their kinds, and the row."""
    kinds = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    total = sum(Fraction(w) * n for w, n in zip(weights, sizes))
    shares = [Fraction(w) / total for w in weights]
    return kinds.tolist(), shares, np.array([float(shares[kind]) for kind in kinds])


CASES = {
    "flat, all in the tail": ((1,), (4000,)),
    "flat, all in the head": ((1,), (60,)),
    "a few heavy tokens": ((1, 400), (1500, 5)),
    "one nearly certain token": ((1, 10**15), (1500, 1)),
    "beside the edge of the head": ((39, 37), (1300, 1300)),
    "faint tails": ((10**90, 3, 1), (4, 400, 400)),
    "heavy, middle and faint": ((10**9, 10**4, 1), (3, 90, 900)),
    "ties of the likeliest": ((1, 10**6), (900, 8)),
}


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("name", CASES)
def test_head_and_tail_in_fractions(name, count):
    kinds, shares, p = row(*CASES[name], seed=len(name))
    wanted = exact(kinds, shares, count)
    found = without_replacement(p, count)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert np.sum(found) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("block", [1, 7, 60, 128])
def test_blocks_of_the_tail_change_nothing(monkeypatch, block):
    p = np.random.default_rng(2).permutation(np.repeat([1.0, 3.0, 900.0], [2560, 1280, 12]))
    p = p / p.sum()
    at_once = without_replacement(p, 4)
    monkeypatch.setattr(module, "BLOCK", block)
    np.testing.assert_allclose(without_replacement(p, 4), at_once, rtol=1e-14)


@pytest.mark.parametrize("faint", [1e-200, 1e-300, 1e-310])
def test_one_certain_token_and_hardly_anything_else(faint):
    p = np.array([faint, 2 * faint, 1.0, 3 * faint, faint])
    found = without_replacement(p, 3)
    # The certain one comes first; of the others two, and j is the last in the order.
    rest = np.array([1, 2, 3, 1]) / 7
    pairs = np.array([0, 0, 0, 0, 0], dtype=float)
    for a, b in itertools.permutations(range(4), 2):
        last = max(a, b)
        at = 2 if last < 2 else last + 1
        pairs[at] += rest[a] * rest[b] / (1 - rest[a])
    np.testing.assert_allclose(found, pairs, rtol=1e-9, atol=1e-30)


def test_the_oracle_itself_by_all_orders():
    kinds, shares, _ = row((3, 5, 1), (2, 2, 2), seed=1)
    found = np.zeros(6)
    for order in itertools.permutations(range(6), 3):
        mass, left = Fraction(1), Fraction(1)
        for n in order:
            mass, left = mass * shares[kinds[n]] / left, left - shares[kinds[n]]
        found[max(order)] += float(mass)
    np.testing.assert_allclose(exact(kinds, shares, 3), found, rtol=1e-14)


def test_a_tail_of_heavy_tokens_is_noticed(monkeypatch):
    """The control: with tokens of 2 % in the tail the series is not good enough."""
    kinds, shares, p = row((1, 20), (1000, 30), seed=3)
    wanted = exact(kinds, shares, 4)
    np.testing.assert_allclose(without_replacement(p, 4), wanted, rtol=1e-12)
    monkeypatch.setattr(module, "_edge", lambda count: 0.03)
    off = np.abs(without_replacement(p, 4) / np.where(wanted > 0, wanted, 1) - 1)[wanted > 0]
    assert np.max(off) > 1e-9


@pytest.mark.parametrize("count", [3, 4, 6])
def test_the_edge_of_the_head_does_not_matter(monkeypatch, count):
    """Rows of many sizes with all tokens in the head, none by the series."""
    rng = np.random.default_rng(count)
    rows = [rng.dirichlet(np.full(3000, 0.5)), 1 / np.arange(1.0, 3001) ** 1.2]
    rows.append(np.exp(-690 * rng.random(3000)))
    found = [without_replacement(p, count) for p in rows]
    monkeypatch.setattr(module, "_edge", lambda count: 0.0)
    for p, mine in zip(rows, found):
        wanted = without_replacement(p, count)
        held = wanted > 1e-290
        np.testing.assert_allclose(mine[held], wanted[held], rtol=1e-12)
