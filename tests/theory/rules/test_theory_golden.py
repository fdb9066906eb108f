"""The golden vector: every rule on one pair of rows, to the six digits that are known."""

import numpy as np
import pytest

from theory import divergence, make_rule, one_step, one_steps

P = np.array([0.05, 0.80, 0.15])
Q = np.array([0.30, 0.35, 0.35])
DIGITS = 1e-6

TABLE = [
    ("sps", {}, 0.55, (0.30, 0.35, 0.35)),
    ("lenience", {"l": 0.7}, 0.70, (0.216667, 0.5, 0.283333)),
    ("lenience", {"l": 0.5}, 0.90, (0.105556, 0.7, 0.194444)),
    ("cactus", {"delta": 0.1}, 0.763307, (0.201550, 0.563307, 0.235142)),
    ("cactus_exact", {"delta": 0.1}, 0.769644, (0.198626, 0.569644, 0.231730)),
    ("cactus", {"delta": 0.25}, 0.887268, (0.144338, 0.687268, 0.168394)),
    ("cactus", {"delta": 1}, 1, P),
    ("mentored", {"level": 0.05}, 0.707002, (0.227538, 0.507002, 0.265461)),
    ("mentored", {"level": 0.2}, 0.860571, (0.156660, 0.660571, 0.182769)),
    (
        "frontier",
        {"level": 0.05, "divergence": "reverse_kl"},
        0.707002,
        (0.227538, 0.507002, 0.265461),
    ),
    ("interpolation", {"alpha": 0.5}, 0.775, (0.175, 0.575, 0.25)),
    ("ears", {"tau": 0.3}, 0.706, (0.213333, 0.506, 0.280667)),
    ("ears", {"tau": 0.6}, 0.862, (0.126667, 0.662, 0.211333)),
    ("typical", {"epsilon": 0.09, "alpha": 0.3}, 1, P),
    ("cascade_token_v3", {"alpha": 0.1}, 0.965, (0.015, 0.8175, 0.1675)),
    ("cascade_token_v1", {"alpha": 0.1}, 0.92, (0.06, 0.87, 0.07)),
    ("top_k", {"k": 2, "recovery": "indicator"}, 0.95, (0, 0.809524, 0.190476)),
    ("target_only", {"threshold_single": 1, "threshold_acc": 1}, 0.3475, Q),
    ("target_only", {"threshold_single": 0.34, "threshold_acc": 0.5}, 0.98, (0.03, 0.81, 0.16)),
    ("cactus_target_only", {"delta": 0.1}, 0.560389, (0.216720, 0.498294, 0.284986)),
    (
        "cactus_target_only",
        {"delta": 0.1, "exact": True},
        0.566893,
        (0.214426, 0.502609, 0.282965),
    ),
    ("top_n_delta", {"n": 2, "delta": 0.02}, 0.95, (0, 0.85, 0.15)),
    # Worked out by hand: the switches emit one row or the other.
    ("cascade_chow", {"alpha": 0.2}, 1, P),
    ("cascade_chow", {"alpha": 0.19}, 0.55, Q),
    ("cascade_diff", {"alpha": -0.44}, 1, P),
    ("cascade_diff", {"alpha": -0.46}, 0.55, Q),
    ("cascade_opt", {"alpha": -0.99}, 1, P),
    ("cascade_opt", {"alpha": -1.01}, 0.55, Q),
    ("cascade_token_v2", {"alpha": 0.04}, 0.965, (0.015, 0.8175, 0.1675)),
    ("fuzzy", {"threshold": 0.115322}, 1, P),
    ("fuzzy", {"threshold": 0.115320}, 0.55, Q),
]
IDS = [f"{name}-{values}" for name, values, *_ in TABLE]


@pytest.mark.parametrize(("name", "values", "acceptance", "output"), TABLE, ids=IDS)
def test_a_rule_has_its_golden_law(name, values, acceptance, output):
    law = one_step(make_rule(name, **values), P, Q)
    np.testing.assert_allclose(law.acceptance, acceptance, rtol=0, atol=DIGITS)
    np.testing.assert_allclose(law.output, output, rtol=0, atol=DIGITS)


def test_the_whole_table_at_once():
    laws = one_steps([make_rule(name, **values) for name, values, *_ in TABLE], P, Q)
    for law, (_, _, acceptance, output) in zip(laws, TABLE, strict=True):
        np.testing.assert_allclose(law.acceptance, acceptance, rtol=0, atol=DIGITS)
        np.testing.assert_allclose(law.output, output, rtol=0, atol=DIGITS)


@pytest.mark.parametrize(
    ("kind", "h", "q", "value"),
    [
        ("total_variation", P, Q, 0.45),
        ("kl", P, Q, 0.444660),
        ("kl", Q, P, 0.544745),
        ("reverse_kl", P, Q, 0.544745),
        ("jensen_shannon", P, Q, 0.115321),
        ("js", Q, P, 0.115321),
    ],
)
def test_the_golden_divergences(kind, h, q, value):
    assert abs(divergence(kind, h, q) - value) < DIGITS


@pytest.mark.parametrize(("delta", "value"), [(0.1, 0.094382), (0.25, 0.234960)])
def test_the_golden_realised_divergence_of_cactus(delta, value):
    output = make_rule("cactus", delta=delta).output(P, Q)
    assert abs(divergence("kl", output, Q) - value) < DIGITS


@pytest.mark.parametrize(
    ("level", "alpha", "beta"), [(0.05, 0.690333, 1.318463), (0.2, 0.529845, 1.914981)]
)
def test_mentored_decoding_clips_at_the_golden_factors(level, alpha, beta):
    output = make_rule("mentored", level=level).output(P, Q)
    assert abs(Q[1] / output[1] - alpha) < DIGITS
    assert abs(Q[0] / output[0] - beta) < DIGITS
    assert abs(divergence("reverse_kl", output, Q) - level) < 1e-12
