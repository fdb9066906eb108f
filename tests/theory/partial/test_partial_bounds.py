"""Bounds on partial rows hold for every way to spread the rest; with no rest they are the law."""

from itertools import pairwise

import numpy as np
import pytest
from theory_strategies import EXAMPLES

from theory import (
    PartialRows,
    Rule,
    divergence,
    frontier_acceptance,
    make_rule,
    one_step,
    partial_law,
)
from theory.divergences import resolve_divergence

KINDS = (
    "kl",
    "reverse_kl",
    "total_variation",
    "jensen_shannon",
    "squared_hellinger",
    "pearson_chi2",
    "power:3",
)
MORE = [
    make_rule("cactus", delta=0.01),
    make_rule("cactus_exact", delta=0.05, divergence="tv"),
    make_rule("cactus_target_only", delta=0.1, exact=True),
    make_rule("constant_threshold", threshold=1.0),
    make_rule("frontier", level=0.3, divergence="js"),
    make_rule("frontier", level=0.05, divergence="reverse_kl"),
    make_rule("lenience", l=1.0),
    make_rule("mentored", level=3.0),
    make_rule("target_only", threshold_single=0.2, threshold_acc=0.5),
    make_rule("top_k", k=12, recover_by="indicator"),
    make_rule("top_n_delta", n=2, delta=0.2),
    make_rule("truncated_top_p", top_p=0.6),
    make_rule("typical", epsilon=0.05, alpha=0.2, recover_by="verifier"),
]
RULES = [make_rule(name, **given) for name, given in EXAMPLES] + MORE
V, K = 40, 8
FAINTEST = 1e-6  # a rest that is kept in the examples: 1 − Σ loses the digits of a smaller one


def pairs(seed, count=16, tokens=V):
    """Draft and verifier rows, from nearly equal to far apart, flat to peaked."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(size=(count, tokens)) * rng.choice([1.0, 2.0, 4.0], size=(count, 1))
    noise = rng.normal(size=(count, tokens)) * rng.choice([0.1, 0.5, 1.5], size=(count, 1))
    rows = [np.exp(values - values.max(-1, keepdims=True)) for values in (logits + noise, logits)]
    return [values / values.sum(-1, keepdims=True) for values in rows]


def listed(rows, count):
    """The likeliest tokens of each row and their probabilities."""
    tokens = np.argsort(-rows, axis=-1)[:, :count]
    return tokens, np.take_along_axis(rows, tokens, axis=-1)


def spread(row, count, way, rng):
    """A row with the same list and its rest somewhere else, each token below the least listed."""
    order = np.argsort(-row)
    out, rest = np.zeros_like(row), order[count:]
    out[order[:count]] = row[order[:count]]
    mass, cap = 1.0 - out.sum(), row[order[count - 1]] * (1.0 - 1e-7)
    if way == "even":
        out[rest] = mass / len(rest)
        return out
    places = {"first": np.sort(rest), "last": np.sort(rest)[::-1], "any": rng.permutation(rest)}
    for token in places[way]:
        out[token] = min(cap, mass)
        mass -= out[token]
    room = cap / (1.0 - 1e-7) - out[rest]  # for what is left where all are nearly full
    out[rest] += mass * room / room.sum()
    return out


def completions(p, q, seed):
    """The rows themselves and others with the same lists."""
    rng = np.random.default_rng(seed)
    yield p, q
    for ways in (("first", "last"), ("first", "first"), ("even", "even"), ("even", "any"),
                 ("any", "first")):  # fmt: skip
        yield tuple(
            np.stack([spread(row, K, way, rng) for row in rows]) for rows, way in zip((p, q), ways)
        )


@pytest.fixture(scope="module")
def examples():
    found = []
    for seed in range(3):
        p, q = pairs(seed)
        rest = [1.0 - listed(rows, K)[1].sum(-1) for rows in (p, q)]
        kept = (rest[0] > FAINTEST) & (rest[1] > FAINTEST)
        p, q = p[kept], q[kept]
        rows = PartialRows.of(listed(p, K), listed(q, K), V)
        found.append((rows, list(completions(p, q, seed))))
    return found


def measured(rule, p, q):
    """Acceptance and divergences of a rule's law on whole rows."""
    law = one_step(rule, p, q)
    return {"acceptance": law.acceptance} | {k: divergence(k, law.output, q) for k in KINDS}


def bounded(rule, rows):
    """The bounds of the same."""
    law = partial_law(rule, rows)
    return {"acceptance": law.acceptance} | {
        k: law.divergence(resolve_divergence(k)) for k in KINDS
    }


def misses(bounds, value):
    """By how much a value is outside its bounds, relative to it; 0 within."""
    scale = 1e-9 + 1e-6 * np.where(np.isfinite(value), np.abs(value), 1.0)
    with np.errstate(invalid="ignore"):
        off = np.maximum(bounds.lower - value, value - bounds.upper) / scale
    return np.where((value == bounds.lower) | (value == bounds.upper) | (off <= 1), 0.0, off)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_bounds_hold_for_every_completion(rule, examples):
    for rows, wholes in examples:
        bounds = bounded(rule, rows)
        for p, q in wholes:
            for name, value in measured(rule, p, q).items():
                assert not np.any(np.isnan(bounds[name])), name
                assert not np.any(misses(bounds[name], value)), name


def test_bounds_of_other_rows_are_missed(examples):
    """A negative control: the bounds of a list do not hold for rows with another list."""
    rows, _ = examples[0]
    p, q = pairs(99, count=len(rows.p))
    rule = make_rule("cactus", delta=0.05)
    found = bounded(rule, rows)
    value = measured(rule, p, q)
    assert all(
        np.any(misses(found[name], value[name])) for name in ("acceptance", "jensen_shannon")
    )


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_bounds_of_whole_rows_are_the_law(rule):
    p, q = pairs(7)
    bounds = bounded(rule, PartialRows.of(listed(p, V), listed(q, V), V))
    for name, value in measured(rule, p, q).items():
        for bound in bounds[name]:
            np.testing.assert_allclose(bound, value, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_filtered_rows_need_no_more_than_their_support(rule):
    """Top-k 8 from the eight likeliest: the rest is nothing, and the bounds are the law."""
    p, q = (np.where(rows >= listed(rows, K)[1][:, -1:], rows, 0.0) for rows in pairs(8))
    p, q = (rows / rows.sum(-1, keepdims=True) for rows in (p, q))
    bounds = bounded(rule, PartialRows.of(listed(p, K), listed(q, K), V))
    for name, value in measured(rule, p, q).items():
        for bound in bounds[name]:
            np.testing.assert_allclose(bound, value, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", ["sps", "interpolation", "frontier"])
def test_bounds_of_the_acceptance_are_reached(name, examples):
    """Rests that avoid each other reach the lower bound, rests that are spread alike the upper."""
    rule = make_rule(name, **dict(EXAMPLES)[name])
    p = np.array([[0.5, 0.2, 0.1] + [0.01] * 20])
    rows = PartialRows.of((np.array([[0, 1, 2]]), p[:, :3]), (np.array([[0, 1, 2]]), p[:, :3]), 23)
    apart = np.zeros_like(p), np.zeros_like(p)
    for row, places in zip(apart, (slice(3, 5), slice(5, 7))):
        row[:, :3], row[:, places] = p[:, :3], 0.1
    bounds = partial_law(rule, rows).acceptance
    np.testing.assert_allclose(one_step(rule, p, p).acceptance, bounds.upper, rtol=1e-12)
    np.testing.assert_allclose(one_step(rule, *apart).acceptance, bounds.lower, rtol=1e-9)


def test_the_frontier_lies_between_that_of_the_split_and_of_the_merged_row(examples):
    for rows, wholes in examples:
        ends = [
            frontier_acceptance(r.p, r.q, 0.05, validate=False) for r in (rows.split, rows.merged)
        ]
        for p, q in wholes:
            value = frontier_acceptance(p, q, 0.05)
            assert np.all((value >= ends[0] - 1e-9) & (value <= ends[1] + 1e-9))


def test_more_listed_tokens_never_widen_the_acceptance_of_strict_sampling():
    p, q = pairs(3)
    widths = []
    for count in (4, 8, 16, 32, V):
        found = partial_law(make_rule("sps"), PartialRows.of(listed(p, count), listed(q, count), V))
        widths.append(found.acceptance.upper - found.acceptance.lower)
    assert all(np.all(more <= fewer + 1e-12) for fewer, more in pairwise(widths))
    assert np.all(widths[-1] <= 1e-12)


class Unknown(Rule):
    name = "unknown"

    def accept(self, pair):
        return pair.p * 0.5

    def recover(self, pair, candidate):
        return pair.q


def test_a_rule_that_nothing_is_known_of_could_do_anything(examples):
    bounds = partial_law(Unknown(), examples[0][0])
    assert np.all(bounds.acceptance.lower == 0)
    assert np.all(bounds.acceptance.upper == 1)
    found = bounds.divergence(resolve_divergence("kl"))
    assert np.all(found.lower <= 1e-20)
    assert np.all(np.isinf(found.upper))


class Derived(type(make_rule("sps"))):
    name = "derived"

    def target(self, pair):
        return pair.p


def test_a_rule_derived_from_a_known_one_has_no_bounds_of_it(examples):
    rows, wholes = examples[0]
    bounds = bounded(Derived(), rows)
    for name, value in measured(Derived(), *wholes[0]).items():
        assert not np.any(misses(bounds[name], value)), name


def test_what_is_no_rule_is_refused(examples):
    with pytest.raises(ValueError, match="rule must come from make_rule"):
        partial_law("sps", examples[0][0])
