"""Bounds on partial rows at the edges: ties with the last that is listed, zeros, equal rows."""

import math

import numpy as np
import pytest
from test_partial_bounds import RULES, bounded, measured, misses

from theory import PartialRows, divergence, make_rule, one_step, partial_law
from theory.divergences import resolve_divergence


def listed(rows, count):
    """The likeliest tokens, of ties the lowest index."""
    tokens = np.argsort(-rows, axis=-1, kind="stable")[:, :count]
    return tokens, np.take_along_axis(rows, tokens, axis=-1)


def partial(p, q, counts):
    p, q = np.atleast_2d(p), np.atleast_2d(q)
    lists = (listed(rows, count) for rows, count in zip((p, q), counts))
    return PartialRows.of(*lists, p.shape[-1])


def hostile_rows(rng, tokens, count=6):
    """Rows of few distinct values, with ties and zeros, or of many; both models alike or not."""
    if rng.random() < 0.6:
        p, q = rng.integers(0, 4, (2, count, tokens)).astype(float)
        p[:, -1], q[:, 0] = p[:, -1] + 1, q[:, 0] + 1
    else:
        p, q = rng.dirichlet(np.full(tokens, rng.choice([0.3, 1.0, 5.0])), (2, count)) + 1e-4
        p, q = (np.where(rng.random(rows.shape) < 0.2, 0.0, rows) + 1e-3 for rows in (p, q))
    if rng.random() < 0.2:
        p = q.copy()
    return [rows / rows.sum(axis=-1, keepdims=True) for rows in (p, q)]


def completed(row, count, rng):
    """Another row with the same list: what is left fills others up to the last that is listed."""
    order = np.argsort(-row, kind="stable")
    out, rest = np.zeros_like(row), order[count:]
    out[order[:count]] = row[order[:count]]
    mass, cap = row[rest].sum(), row[order[count - 1]]
    for token in rng.permutation(rest) if rng.random() < 0.7 else np.sort(rest):
        out[token] = min(cap, mass)
        mass = max(mass - out[token], 0.0)
    return out


def search(seed, rules, trials):
    """How far acceptance and divergences are outside their bounds, over random rows."""
    rng = np.random.default_rng(seed)
    worst = {}
    for _ in range(trials):
        tokens = int(rng.choice([3, 4, 6, 10, 25]))
        counts = rng.integers(1, tokens + 1, size=2)
        p, q = hostile_rows(rng, tokens)
        rows = partial(p, q, counts)
        wholes = [(p, q)] + [
            tuple(
                np.stack([completed(row, n, rng) for row in side])
                for side, n in zip((p, q), counts)
            )
            for _ in range(2)
        ]
        for rule in rules:
            bounds = bounded(rule, rows)
            for whole in wholes:
                for name, value in measured(rule, *whole).items():
                    assert not np.any(np.isnan(bounds[name].lower + bounds[name].upper))
                    off = float(np.max(misses(bounds[name], value)))
                    worst[name] = max(worst.get(name, 0.0), off)
    return worst


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_completion_with_ties_or_zeros_leaves_the_bounds(rule):
    assert max(search(3, [rule], 12).values()) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_no_completion_leaves_the_bounds_by_night(seed):
    assert max(search(100 + seed, RULES, 150).values()) == 0


def test_an_unlisted_token_may_tie_with_the_last_that_is_listed():
    p, q = [0.25, 0.0, 0.75], [0.2, 0.4, 0.4]
    for rule in (make_rule("truncated_top_k", k=1), make_rule("truncated_top_p", top_p=0.01)):
        found = partial_law(rule, partial(p, q, (3, 1))).acceptance
        assert found.lower[0] <= 0.5 <= found.upper[0]


def test_a_budget_without_an_end_has_bounds_that_are_numbers():
    p, q = [0.3, 0.7, 0.0], [0.2, 0.5, 0.3]
    for rule in (make_rule("cactus", delta=math.inf), make_rule("cactus_exact", delta=math.inf)):
        found = partial_law(rule, partial(p, q, (3, 3))).divergence(resolve_divergence("kl"))
        assert math.isfinite(found.lower[0])
        assert math.isfinite(found.upper[0])


def test_the_frontier_at_no_level_at_all_emits_the_draft():
    rows = partial([0.5, 0.3, 0.2], [0.5, 0.5, 0.0], (2, 3))
    found = partial_law(make_rule("frontier", level=math.inf), rows)
    kl = found.divergence(resolve_divergence("kl"))
    assert (found.acceptance.lower[0], kl.lower[0], kl.upper[0]) == (1.0, math.inf, math.inf)


def test_nothing_is_emitted_where_a_known_verifier_has_nothing():
    rows = partial([0.4, 0.35, 0.2, 0.05], [1.0, 0.0, 0.0, 0.0], (3, 4))
    kl = partial_law(make_rule("frontier", level=1.0), rows).divergence(resolve_divergence("kl"))
    assert (kl.lower[0], kl.upper[0]) == (0.0, pytest.approx(0.0, abs=1e-12))


def test_where_nothing_is_deferred_a_token_that_is_lost_costs_without_end():
    rows = partial([0.0075, 0.9925, 0.0], [0.002, 1e-6, 0.997999], (2, 3))
    rule = make_rule("cascade_token_v1", alpha=1.0)
    found = partial_law(rule, rows).divergence(resolve_divergence("reverse_kl"))
    assert found.lower[0] == found.upper[0] == math.inf


def test_equal_rows_may_leave_no_residual():
    p = np.array([0.1, 0.2, 0.3, 0.4])
    rule = make_rule("synthetic", rate=0.0, recover_by="residual")
    assert (
        partial_law(rule, partial(p, p, (4, 2))).divergence(resolve_divergence("kl")).lower < 1e-20
    )


UNLIKELY = np.array([1e-16, 0.9, 1e-4, 1 - 0.9 - 1e-4 - 1e-16])  # a verifier's tail of rounding


@pytest.mark.parametrize(
    "rule",
    [
        make_rule("mentored", level=3.0),
        make_rule("cactus_exact", delta=0.1, divergence="tv"),
        make_rule("top_k", k=4, recover_by="indicator"),
        make_rule("lenience", l=0.3),
        make_rule("truncated_top_k", k=3),
    ],
    ids=str,
)
def test_a_tail_that_is_lost_in_rounding_may_be_none_or_some(rule):
    p = np.array([0.6, 0.2, 0.1, 0.1])
    lists = listed(p[None], 4), listed(UNLIKELY[None], 3)
    rows = PartialRows.of(*lists, 4, rounding=1e-12)
    told = partial_law(rule, PartialRows.of(*lists, 4)).acceptance
    bounds = bounded(rule, rows)
    assert bounds["acceptance"].lower[0] <= told.lower[0] <= bounds["acceptance"].upper[0]
    for tail in (0.0, 1e-16, 1e-13):
        q = np.array([tail, 0.9, 1e-4, UNLIKELY[3] - tail])
        for name, value in measured(rule, p[None], q[None]).items():
            assert np.all(misses(bounds[name], value) == 0), name


def test_mentored_accepts_where_a_list_only_seems_to_end():
    rule, p = make_rule("mentored", level=3.0), np.array([0.6, 0.2, 0.1, 0.1])
    lists = listed(p[None], 4), listed(UNLIKELY[None], 3)
    truth = one_step(rule, p, UNLIKELY).acceptance
    assert partial_law(rule, PartialRows.of(*lists, 4)).acceptance.upper[0] < truth - 0.1
    assert partial_law(rule, PartialRows.of(*lists, 4, rounding=1e-12)).acceptance.upper[0] >= truth


def test_no_more_is_lifted_than_unlisted_tokens_can_hold():
    p = np.array([[1 - 1e-7, 1e-7, 0.0]])
    rows = PartialRows.of(listed(p, 2), listed(p, 2), 3, rounding=1e-3)
    assert rows.p_rest[0] == 1e-7
    whole = PartialRows.of(listed(p, 3), listed(p, 3), 3, rounding=1e-3)
    assert whole.p_rest[0] == 0
    assert whole.settled()[1] is None


@pytest.mark.parametrize(
    ("rule", "p", "q"),
    [  # at the ends of f′: prices where what is rejected is decided by the last digit
        (make_rule("frontier_corpus", multiplier=1.0, divergence="js"),
         [0.04, 0.04, 0.04, 0.88], [0.972, 0.0126, 0.0154 - 5e-17, 5e-17]),
        (make_rule("frontier_corpus", multiplier=0.55, divergence="tv"),
         [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]),
        (make_rule("frontier_corpus", multiplier=1.0, divergence="tv"),
         [0.5, 0.3, 0.2, 0.0], [0.1, 0.0, 0.3, 0.6]),
        (make_rule("frontier_corpus", multiplier=1.0, divergence="reverse_kl"),
         [3 / 13, 3 / 13, 2 / 13, 2 / 13, 3 / 13], [2 / 3, 0, 0, 0, 1 / 3]),
        (make_rule("frontier_corpus", multiplier=0.17, divergence="js"),
         [0.25, 0.55, 0.15, 0.05], [0.0, 0.6, 0.3, 0.1]),
        # rows that differ by rounding, or nearly so: 1 − Σ has no digits left
        (make_rule("constant_threshold", threshold=1.0),
         [0.7 + 2e-12, 0.2 - 1e-12, 0.1 - 1e-12], [0.7, 0.2, 0.1]),
        (make_rule("synthetic", rate=0.0, recover_by="residual"),
         [0.9477033300357118, 0.0030306523321156444, 0.048242275609227614, 0.000972031666811109,
          5.1710356133755974e-05],
         [0.9477033300297227, 0.003030652332361068, 0.04824227561495026, 0.0009720316668072919,
          5.171035615869134e-05]),
    ],
    ids=str,
)  # fmt: skip
def test_whole_rows_have_their_own_law_to_the_last_digit(rule, p, q):
    p, q = np.array([p]), np.array([q])
    bounds = bounded(rule, partial(p, q, (p.size, p.size)))
    values = {name: v for name, v in measured(rule, p, q).items() if name != "power:3"}
    for name, value in values.items():
        assert np.all(misses(bounds[name], value) == 0), (name, bounds[name], value)


def test_a_draft_mass_known_to_the_last_digit_bounds_from_below():
    p, q = np.array([[1.3104e-2, 3e-14, 0.0]]), np.array([[0.0204, 0.0027, 0.9769]])
    p[0, 2] = 1 - p.sum()
    rows, rule = partial(p, q, (3, 2)), make_rule("interpolation", alpha=1.0)
    truth = measured(rule, p, q)["reverse_kl"]
    assert partial_law(rule, rows).divergence(resolve_divergence("reverse_kl")).lower <= truth


def test_rows_apart_are_accepted_never_not_less_than_never():
    rows = np.random.default_rng(0).dirichlet(np.ones(3), (2, 200))  # TV(p, q) is 1, or 1 + 2e-16
    nothing = np.zeros((200, 3))
    p, q = np.hstack([rows[0], nothing]), np.hstack([nothing, rows[1]])
    law = one_step(make_rule("frontier_corpus", multiplier=0.0), p, q)
    assert np.all(law.acceptance >= 0)


def test_a_price_at_which_everything_is_accepted_raises_nothing():
    rule = make_rule("frontier_corpus", multiplier=7.9, divergence="power:1.5")
    rows = partial([0.6, 0.2, 0.0, 0.2], [5 / 12, 1 / 12, 1 / 4, 1 / 4], (4, 3))
    found = partial_law(rule, rows).divergence(resolve_divergence("reverse_kl"))
    whole = one_step(rule, np.array([0.6, 0.2, 0.0, 0.2]), np.array([5, 1, 3, 3]) / 12).output
    assert divergence("reverse_kl", whole, np.array([5, 1, 3, 3]) / 12) == math.inf
    assert found.upper[0] == math.inf
