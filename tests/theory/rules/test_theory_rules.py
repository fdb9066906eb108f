"""The registry, the ranges of the parameters, and rules that a user adds."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import EXAMPLES, label, pairs, rules

from theory import RULES, Gamma, Pair, Rule, make_rule, one_step, one_steps, register
from theory.arrays import normalised_or, one_hot, quotient
from theory.rules import CandidateRule, TargetOnlyRule

NAMES = {
    *("sps", "lenience", "interpolation", "ears", "mentored", "frontier"),
    *("frontier_corpus", "cascade_chow", "cascade_diff", "cascade_opt"),
    *("cascade_token_v1", "cascade_token_v2", "cascade_token_v3", "fuzzy"),
    *("cactus", "cactus_exact", "cactus_target_only", "target_only"),
    *("typical", "top_k", "top_n_delta"),
    *("constant_threshold", "ratio_threshold", "synthetic"),
    *("truncated_typical", "truncated_top_k", "truncated_top_p"),
}


def test_every_rule_is_registered_under_its_name():
    assert set(RULES) == NAMES
    for name, cls in RULES.items():
        assert cls.name == name
        assert issubclass(cls, Rule)
        assert cls.family in ("target", "candidate", "target only", "accept set", "fixed rate")


def kept_and_strict(rule, p, q):
    """The mass that a rule accepts at each candidate, and the one that strict sampling accepts."""
    return rule.accept_prob(p, q) * p, np.minimum(p, q)


@pytest.mark.parametrize("name", [name for name, cls in RULES.items() if cls.keeps_strict])
@given(data=st.data())
def test_a_rule_that_keeps_what_strict_sampling_keeps_says_so(name, data):
    p, q = data.draw(pairs())
    kept, strict = kept_and_strict(data.draw(rules(name)), p, q)
    assert np.all(kept >= strict * (1.0 - 1e-12) - 1e-300)


@pytest.mark.parametrize(
    "setting", [s for s in EXAMPLES if not RULES[s[0]].keeps_strict], ids=label
)
def test_the_other_rules_reject_what_strict_sampling_may_accept(setting):
    p, q = (np.random.default_rng(seed).dirichlet(np.full(9, 0.5), 50) for seed in (0, 1))
    kept, strict = kept_and_strict(make_rule(setting[0], **setting[1]), p, q)
    assert np.any(kept < strict - 1e-3)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_rule_is_a_frozen_value(setting):
    rule, same = (make_rule(setting[0], **setting[1]) for _ in range(2))
    assert rule == same
    assert hash(rule) == hash(same)
    for name, value in setting[1].items():
        assert getattr(rule, "recover_by" if name == "recovery" else name) == value
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.delta = 3.0


def test_the_parameter_that_a_sweep_varies_exists():
    for cls in RULES.values():
        fields = {field.name for field in dataclasses.fields(cls)}
        assert cls.parameter in fields or (cls.parameter is None and not fields)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("catcus", {}, "unknown rule 'catcus'; did you mean 'cactus'"),
        ("zzz", {}, "unknown rule 'zzz'; known are sps, lenience"),
        ("cactus", {"detla": 1}, "rule 'cactus' has no parameter 'detla'; did you mean 'delta'"),
        ("sps", {"delta": 1}, "rule 'sps' has no parameter 'delta'"),
        ("cactus", {}, "rule 'cactus' needs the parameter 'delta'"),
        ("frontier", {"divergence": "kl"}, "rule 'frontier' needs the parameter 'level'"),
        ("frontier", {"level": 1, "divergence": "kll"}, "unknown divergence 'kll'"),
        ("cactus_exact", {"delta": 1, "divergence": "x"}, "unknown divergence 'x'"),
        ("fuzzy", {"threshold": 1, "divergence": "x"}, "unknown divergence 'x'"),
        ("typical", {"recovery": "mode"}, "recovery must be one of argmax, verifier, got 'mode'"),
        ("top_k", {"k": 2, "recovery": "p"}, "recovery must be one of verifier, indicator"),
        ("top_k", {"k": 2.5}, "k must be a whole number of at least 1, got 2.5"),
        ("cactus", {"delta": "much"}, "delta must be a number, got 'much'"),
        ("cactus", {"delta": None}, "delta must be a number, got None"),
        ("cactus", {"delta": "0.1"}, "delta must be a number, got '0.1'"),
        ("top_k", {"k": True}, "k must be a number, got True"),
        ("synthetic", {"rate": 1, "recover_by": "p"}, "recover_by must be one of residual, verif"),
        ("truncated_top_k", {"k": 2.5}, "k must be a whole number of at least 1, got 2.5"),
        ("top_n_delta", {"relaxed_topk": 2, "n": 2}, "'top_n_delta' is given 'n' twice: 'n' is a"),
        ("cactus", {"relaxed_delta": 1}, "rule 'cactus' has no parameter 'relaxed_delta'"),
    ],
)
def test_what_make_rule_refuses(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        make_rule(name, **parameters)


RANGES = [
    ("lenience", "l", (1e-300, 0.5, 1), (0, -0.1, 1.1, math.nan)),
    ("interpolation", "alpha", (0, 0.5, 1), (-0.1, 1.1, math.nan)),
    ("ears", "tau", (0, 1), (-0.1, 1.1, math.nan)),
    ("mentored", "level", (0, 1e9, math.inf), (-1e-9, math.nan)),
    ("frontier_corpus", "multiplier", (0, 1e9, math.inf), (-1e-9, math.nan)),
    ("frontier", "level", (0, 1e9, math.inf), (-1e-9, math.nan)),
    ("cascade_chow", "alpha", (0, 1), (-0.1, 1.1, math.nan)),
    ("cascade_diff", "alpha", (-1, 1), (-1.1, 1.1, math.nan)),
    ("cascade_opt", "alpha", (-math.inf, 0, math.inf), (math.nan,)),
    ("cascade_token_v1", "alpha", (-1, 1), (-1.1, 1.1, math.nan)),
    ("cascade_token_v2", "alpha", (-1, 1), (-1.1, 1.1, math.nan)),
    ("cascade_token_v3", "alpha", (0, 1), (-0.1, 1.1, math.nan)),
    ("fuzzy", "threshold", (-1, 0, math.inf), (math.nan,)),
    ("cactus", "delta", (0, 1e300, math.inf), (-1e-9, math.nan)),
    ("cactus_exact", "delta", (0, 1e300, math.inf), (-1e-9, math.nan)),
    ("cactus_target_only", "delta", (0, 1e300, math.inf), (-1e-9, math.nan)),
    ("target_only", "threshold_single", (1e-300, 1), (0, 1.1, math.nan)),
    ("target_only", "threshold_acc", (1e-300, 1), (0, 1.1, math.nan)),
    ("typical", "epsilon", (0, 1), (-0.1, 1.1, math.nan)),
    ("typical", "alpha", (0, math.inf), (-0.1, math.nan)),
    ("top_k", "k", (1, 10**6), (0, -1, math.inf, math.nan)),
    ("top_n_delta", "n", (1, 10**6), (0, -1, math.inf, math.nan)),
    ("top_n_delta", "delta", (0, 1), (-0.1, 1.1, math.nan)),
    ("constant_threshold", "threshold", (1e-300, 1), (0, -0.1, 1.1, math.nan)),
    ("ratio_threshold", "threshold", (1e-300, 1), (0, -0.1, 1.1, math.nan)),
    ("truncated_typical", "epsilon", (0, 1), (-0.1, 1.1, math.nan)),
    ("truncated_typical", "alpha", (0, math.inf), (-0.1, math.nan)),
    ("truncated_top_k", "k", (1, 10**6), (0, -1, math.inf, math.nan)),
    ("truncated_top_p", "top_p", (1e-300, 1), (0, 1.1, math.nan)),
    ("synthetic", "rate", (0, 1), (-0.1, 1.1, math.nan)),
]


@pytest.mark.parametrize(
    ("name", "parameter", "good", "bad"), RANGES, ids=[f"{r[0]}-{r[1]}" for r in RANGES]
)
def test_the_range_of_each_parameter(name, parameter, good, bad):
    p, q = np.array([0.05, 0.80, 0.15]), np.array([0.30, 0.35, 0.35])
    for value in good:
        law = one_step(make_rule(name, **{parameter: value}), p, q)
        assert abs(law.output.sum() - 1) < 1e-12
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{parameter} must lie in .*got {value}"):
            make_rule(name, **{parameter: value})


# --- rules of a user ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Halved(Rule):
    """Strict sampling with every acceptance halved, and what is missing drawn from q without n."""

    name = "halved"
    family = "mine"

    def accept(self, pair):
        return 0.5 * pair.xp.minimum(quotient(pair.xp, pair.q, pair.p, 1.0), 1.0)

    def recover(self, pair, candidate):
        others = pair.xp.where(one_hot(pair.xp, candidate, pair.q) > 0, 0.0, pair.q)
        return normalised_or(pair.xp, others, pair.q)


@dataclass(frozen=True)
class Raised(CandidateRule):
    """γ = q^power: a curve of a user's own under the paper's coupling."""

    power: float = 0.5
    name = "raised"

    def gamma(self, q):
        return Gamma(q**self.power, 1.0 - q**self.power)


@dataclass(frozen=True)
class RaisedTargetOnly(TargetOnlyRule):
    """The same curve under the target-only coupling."""

    name = "raised_target_only"

    def gamma(self, q):
        return Gamma(q**0.5, 1.0 - q**0.5)


def loop(rule, p, q):
    """The law by its definition, with the kernels that a user wrote."""
    b = rule.accept_prob(p, q)
    output = p * b
    for n in range(p.shape[-1]):
        output = output + (p[:, n] * (1 - b[:, n]))[:, None] * rule.recovery(p, q, n)
    return (p * b).sum(-1), output


@pytest.mark.parametrize("rule", [Halved(), Raised(), Raised(0.9), RaisedTargetOnly()], ids=str)
@given(pair=pairs())
def test_a_users_rule_has_its_exact_law(rule, pair):
    p, q = pair
    law, (acceptance, output) = one_step(rule, p, q), loop(rule, p, q)
    np.testing.assert_allclose(law.acceptance, acceptance, rtol=0, atol=1e-12)
    np.testing.assert_allclose(law.output, output, rtol=0, atol=1e-12)
    np.testing.assert_allclose(law.output.sum(-1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
@given(pair=pairs())
def test_one_candidate_is_accepted_as_it_is_among_all(setting, pair):
    p, q = pair
    rule, everyone = make_rule(setting[0], **setting[1]), np.arange(p.shape[-1])
    among_all = rule.accept_prob(p, q)
    prepared = Pair.prepare(p, q, sort=False, compress=False)
    for n in everyone:
        alone = rule.accept_at(prepared, np.full(p.shape[0], n))
        np.testing.assert_array_max_ulp(alone, among_all[:, n], 4)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_rule_says_whether_it_reads_the_rows_before_the_filters(setting):
    rule = make_rule(setting[0], **setting[1])
    rows = np.random.default_rng(3).dirichlet(np.full(5, 0.4), (4, 60))
    p, q, other, another = rows
    plain = rule.accept_prob(p, q)
    differs = [
        np.any(rule.accept_prob(p, q, p_raw=p_raw, q_raw=q_raw) != plain)
        for p_raw, q_raw in ((other, another), (one_hot(np, p.argmax(-1), p), q), (p, other))
    ]
    assert any(differs) == rule.reads_raw


def test_a_users_rule_by_hand():
    law = one_step(Halved(), np.array([0.8, 0.2]), np.array([0.4, 0.6]))
    np.testing.assert_allclose(law.acceptance, 0.3, rtol=1e-15)
    np.testing.assert_allclose(law.output, [0.3, 0.7], rtol=1e-15)


def test_a_users_rule_stands_beside_the_others():
    p, q = np.array([[0.8, 0.2, 0.0]]), np.array([[0.4, 0.5, 0.1]])
    several = [make_rule("cactus", delta=0.1), Halved(), Raised()]
    for rule, law in zip(several, one_steps(several, p, q), strict=True):
        np.testing.assert_allclose(law.output, one_step(rule, p, q).output, rtol=0, atol=1e-15)


def test_a_rule_must_say_when_it_accepts_and_what_it_recovers():
    @dataclass(frozen=True)
    class Unfinished(Rule):
        name = "unfinished"
        family = "mine"

        def accept(self, pair):
            return pair.q

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()


@pytest.mark.parametrize("rule", ["sps", RULES["sps"], None])
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(ValueError, match="rule must come from make_rule or be a Rule, got"):
        one_step(rule, [0.5, 0.5], [0.5, 0.5])


def test_a_users_rule_can_be_registered_once():
    try:
        assert register(Halved) is Halved
        assert make_rule("halved") == Halved()
        with pytest.raises(ValueError, match="a rule named 'halved' is registered already"):
            register(Halved)
    finally:
        RULES.pop("halved", None)
    assert set(RULES) == NAMES


def test_a_taken_name_is_refused():
    @dataclass(frozen=True)
    class Impostor(Halved):
        name = "cactus"

    before = RULES["cactus"]
    with pytest.raises(ValueError, match="a rule named 'cactus' is registered already"):
        register(Impostor)
    assert RULES["cactus"] is before


@given(pair=pairs(), power=st.floats(0.05, 1))
def test_a_users_curve_stays_on_the_line_of_yin(pair, power):
    """Rejection + TV(output, q) = TV(p, q), whatever γ ≥ q the user chose (claim 14)."""
    p, q = pair
    law = one_step(Raised(power), p, q)
    moved = np.abs(law.output - q).sum(-1) / 2
    distance = np.maximum(p - q, 0).sum(-1)
    np.testing.assert_allclose(1 - law.acceptance + moved, distance, rtol=0, atol=1e-13)
