"""The rules of serving engines: golden laws by enumeration, boundary rows, and who equals whom."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import pairs

from sim.pairs.filters import filter_probabilities
from theory import RULES, divergence, make_rule, one_step

P = np.array([0.05, 0.80, 0.15])
Q = np.array([0.30, 0.35, 0.35])
RESIDUAL = np.array([0.25, 0.0, 0.20]) / 0.45  # norm((q − p)₊)

# Rule, parameters, the acceptance probability of each candidate, what a rejection draws.
TABLE = [
    ("constant_threshold", {"threshold": 0.5}, (1, 0, 1), RESIDUAL),
    ("constant_threshold", {"threshold": 0.43}, (1, 1, 1), RESIDUAL),
    ("constant_threshold", {"threshold": 1}, (1, 0, 1), RESIDUAL),
    ("ratio_threshold", {"threshold": 0.5}, (1, 0.4375, 1), RESIDUAL),
    ("ratio_threshold", {"threshold": 0.43}, (1, 1, 1), RESIDUAL),
    ("truncated_typical", {"epsilon": 0.32, "alpha": 1}, (0, 0.625, 1), (0, 0, 1)),
    ("truncated_typical", {}, (1, 0.4375, 1), RESIDUAL),
    ("truncated_top_k", {"k": 1}, (0, 0.625, 1), (0, 0, 1)),
    ("truncated_top_p", {"top_p": 0.6}, (0, 0.625, 1), (0, 0, 1)),
    ("truncated_top_p", {"top_p": 0.71}, (1, 0.4375, 1), RESIDUAL),
    ("synthetic", {"rate": 0.7}, (0.7, 0.7, 0.7), RESIDUAL),
    ("synthetic", {"rate": 0.7, "recovery": "verifier"}, (0.7, 0.7, 0.7), Q),
    ("synthetic", {"rate": 0.7, "recovery": "argmax"}, (0.7, 0.7, 0.7), (0, 1, 0)),
]
IDS = [f"{name}-{values}" for name, values, *_ in TABLE]


@pytest.mark.parametrize(("name", "values", "accept", "recovery"), TABLE, ids=IDS)
def test_a_rule_of_an_engine_has_its_golden_law(name, values, accept, recovery):
    accept, recovery = np.array(accept), np.array(recovery)
    law = one_step(make_rule(name, **values), P, Q)
    output = P * accept
    for n in range(3):
        output = output + P[n] * (1 - accept[n]) * recovery
    np.testing.assert_allclose(law.acceptance, P @ accept, rtol=0, atol=1e-15)
    np.testing.assert_allclose(law.output, output, rtol=0, atol=1e-15)


@given(pair=pairs(), threshold=st.floats(0.01, 1))
def test_of_the_two_thresholds_the_random_one_accepts_more_and_stays_nearer(pair, threshold):
    p, q = pair
    constant, ratio = (
        one_step(make_rule(name, threshold=threshold), p, q)
        for name in ("constant_threshold", "ratio_threshold")
    )
    assert np.all(constant.acceptance <= ratio.acceptance + 1e-15)
    assert np.all(ratio.output <= np.maximum(p, q) + 1e-14)
    assert np.all(ratio.output <= q / threshold + 1e-14)
    rejected = np.maximum(p - q, 0).sum(-1)
    np.testing.assert_array_less(1 - ratio.acceptance, rejected + 1e-14)


@given(pair=pairs(), threshold=st.floats(0.01, 0.99))
def test_a_constant_threshold_emits_no_token_beyond_its_bound(pair, threshold):
    p, q = pair
    output = make_rule("constant_threshold", threshold=threshold).output(p, q)
    most = max(1 / threshold, 1 / (1 - threshold))
    assert np.all(output <= q * most * (1 + 1e-9) + 1e-12)


def test_a_ratio_at_the_threshold_passes():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25])
    for name in ("constant_threshold", "ratio_threshold"):
        assert one_step(make_rule(name, threshold=0.5), p, q).acceptance == 1
    assert one_step(make_rule("constant_threshold", threshold=0.51), p, q).acceptance == 0.5
    assert one_step(make_rule("ratio_threshold", threshold=0.51), p, q).acceptance == 0.75


def test_a_constant_threshold_of_one_is_not_strict():
    """A hair of mass from the first token to the last, and the first one is never emitted."""
    q = np.array([0.6, 0.39, 0.01])
    p = q + 1e-9 * np.array([1, 0, -1])
    law = one_step(make_rule("constant_threshold", threshold=1), p, q)
    np.testing.assert_allclose(law.output, [0, 0.39, 0.61], rtol=0, atol=1e-8)
    assert divergence("kl", law.output, q) > 2
    assert divergence("kl", make_rule("sps").output(p, q), q) == 0


CUTS = [
    ("truncated_typical", {"epsilon": 0.2, "alpha": 0.8}),
    ("truncated_top_k", {"k": 2}),
    ("truncated_top_p", {"top_p": 0.7}),
]


@pytest.mark.parametrize(("name", "values"), CUTS)
@given(pair=pairs())
def test_a_cut_law_is_emitted_whatever_the_draft_is(name, values, pair):
    p, q = pair
    rule = make_rule(name, **values)
    output = rule.output(p, q)
    np.testing.assert_allclose(output, rule.output(p[::-1], q), rtol=0, atol=1e-14)
    kept = np.where(output > 0, q, 0).sum(-1)
    np.testing.assert_allclose(divergence("kl", output, q), -np.log(kept), rtol=1e-9, atol=1e-12)
    at_most = 1 - np.abs(output - p).sum(-1) / 2  # no coupling accepts more
    np.testing.assert_allclose(one_step(rule, p, q).acceptance, at_most, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "own", "of_the_filter"),
    [
        ("truncated_top_k", {"k": 7}, {"top_k": 7}),
        ("truncated_top_p", {"top_p": 0.9}, {"top_p": 0.9}),
    ],
)
def test_a_cut_is_strict_sampling_of_the_filtered_verifier(name, own, of_the_filter):
    """The rows that a sampler filters itself, by the project's own filters."""
    rng = np.random.default_rng(11)
    p, q = rng.dirichlet(np.full(40, 0.2), 60), rng.dirichlet(np.full(40, 0.2), 60)
    cut = filter_probabilities(q, **of_the_filter)
    law, strict = one_step(make_rule(name, **own), p, q), one_step(make_rule("sps"), p, cut)
    np.testing.assert_allclose(law.output, strict.output, rtol=0, atol=1e-14)
    np.testing.assert_allclose(law.acceptance, strict.acceptance, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "values", "q", "kept"),
    [
        ("truncated_top_k", {"k": 1}, (0.4, 0.4, 0.2), (0.5, 0.5, 0)),
        ("truncated_top_k", {"k": 5}, (0.5, 0.5, 0), (0.5, 0.5, 0)),
        ("truncated_top_p", {"top_p": 0.5}, (0.5, 0.3, 0.2), (1, 0, 0)),
        ("truncated_top_p", {"top_p": 0.6}, (0.4, 0.3, 0.3), (0.4, 0.3, 0.3)),
        ("truncated_top_p", {"top_p": 5e-324}, (0.5, 0.3, 0.2), (1, 0, 0)),
        ("truncated_typical", {"epsilon": 1, "alpha": math.inf}, (0.5, 0.3, 0.2), (1, 0, 0)),
        ("truncated_typical", {"epsilon": 1, "alpha": 1}, (0.25, 0.25, 0.5), (0, 0, 1)),
        ("truncated_typical", {"epsilon": 1, "alpha": 1}, (0.5, 0.5, 0), (0.5, 0.5, 0)),
        ("truncated_typical", {"epsilon": 0.3, "alpha": 9}, (0.5, 0.3, 0.2), (0.625, 0.375, 0)),
        *((name, values, (0, 1, 0), (0, 1, 0)) for name, values in CUTS),
    ],
)
def test_ties_stay_together_and_the_likeliest_token_stays(name, values, q, kept):
    rule = make_rule(name, **values)
    for p in ([0.2, 0.3, 0.5], [1.0, 0.0, 0.0], list(q)):
        np.testing.assert_allclose(rule.output(p, np.array(q, float)), kept, rtol=0, atol=1e-15)


def test_of_the_two_readings_of_typical_acceptance_one_keeps_the_token_at_the_threshold():
    p, q = np.array([0.0, 1.0, 0.0]), np.array([0.5, 0.3, 0.2])
    values = {"epsilon": 0.3, "alpha": 9}
    assert one_step(make_rule("typical", **values), p, q).acceptance == 0
    assert one_step(make_rule("truncated_typical", **values), p, q).acceptance == 0.375


@pytest.mark.parametrize("recovery", ["residual", "verifier", "argmax"])
@given(pair=pairs(), rate=st.floats(0, 1))
def test_a_synthetic_rate_is_the_acceptance(recovery, pair, rate):
    p, q = pair
    law = one_step(make_rule("synthetic", rate=rate, recovery=recovery), p, q)
    np.testing.assert_allclose(law.acceptance, rate, rtol=0, atol=1e-12)
    if recovery == "verifier":
        np.testing.assert_allclose(law.output, rate * p + (1 - rate) * q, rtol=0, atol=1e-14)


@given(pair=pairs(), rate=st.floats(0, 1))
def test_a_one_hot_draft_is_recovered_from_the_verifier_without_it(pair, rate):
    """What the engine does where the draft gives no probabilities."""
    q = pair[1]
    width = q.shape[-1]
    for n in range(width):
        others = np.where(np.arange(width) == n, 0, q)
        mass = others.sum(-1, keepdims=True)
        expected = np.where(mass > 0, others / np.where(mass > 0, mass, 1), q)
        recovered = make_rule("synthetic", rate=rate).recovery(
            np.broadcast_to(np.eye(width)[n], q.shape), q, n
        )
        np.testing.assert_allclose(recovered, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "given", "own"),
    [
        ("top_n_delta", {"relaxed_topk": 10, "relaxed_delta": 0.6}, {"n": 10, "delta": 0.6}),
        (
            "target_only",
            {"speculative_accept_threshold_single": 0.5, "speculative_accept_threshold_acc": 0.9},
            {"threshold_single": 0.5, "threshold_acc": 0.9},
        ),
        ("typical", {"posterior_threshold": 0.2}, {"epsilon": 0.2}),
        ("truncated_typical", {"posterior_alpha": 0.4}, {"alpha": 0.4}),
        ("constant_threshold", {"acceptance_threshold": 0.4}, {"threshold": 0.4}),
        ("truncated_top_k", {"top_k": 3}, {"k": 3}),
        ("synthetic", {"rate": 0.3, "recovery": "argmax"}, {"rate": 0.3, "recover_by": "argmax"}),
    ],
)
def test_a_parameter_has_the_name_of_the_engine_as_well(name, given, own):
    assert make_rule(name, **given) == make_rule(name, **own)


def test_every_alias_is_a_name_of_a_field():
    for name, cls in RULES.items():
        fields = cls.__dataclass_fields__
        assert set(cls.aliases.values()) <= set(fields), name
        assert not set(cls.aliases) & set(fields), name


@pytest.mark.parametrize(("name", "values"), CUTS)
@given(pair=pairs())
def test_sampling_the_cut_law_and_comparing_is_the_rule_for_a_one_hot_draft(name, values, pair):
    """The engine's way: it draws a token of the cut law, and accepts a draft equal to it."""
    p, q = pair
    rule, width = make_rule(name, **values), q.shape[-1]
    cut = rule.output(p, q)
    for n in range(width):
        drafted = np.broadcast_to(np.eye(width)[n], q.shape)
        law = one_step(rule, drafted, q)
        np.testing.assert_allclose(law.acceptance, cut[:, n], rtol=0, atol=1e-14)
        np.testing.assert_allclose(law.output, cut, rtol=0, atol=1e-14)
    assert np.all((p * cut).sum(-1) <= one_step(rule, p, q).acceptance + 1e-14)


@given(rates=st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_unconditional_rates_are_those_of_a_prefix(rates):
    """Entry i of an engine's list: that the first i + 1 drafts are all accepted."""
    unconditional = np.sort(rates)[::-1]
    conditional = unconditional / np.concatenate([[1.0], unconditional[:-1]])
    kept = [
        float(one_step(make_rule("synthetic", rate=min(rate, 1.0)), P, Q).acceptance)
        for rate in conditional.tolist()
    ]
    np.testing.assert_allclose(np.cumprod(kept), unconditional, rtol=1e-12)
