"""A rule is the value of its parameters: printed, replaced, pickled and named, it is the same."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
from theory_strategies import EXAMPLES, label

from theory import DIVERGENCES, RULES, Rule, make_rule

CLASSES = {cls.__name__: cls for cls in RULES.values()}
LIMITS = [
    ("frontier", {"level": math.inf}),
    ("cascade_opt", {"alpha": -math.inf}),
    ("frontier", {"level": 0.1, "divergence": DIVERGENCES["jensen_shannon"]}),
    ("cactus_exact", {"delta": np.float32(0.1), "divergence": "power:2.5"}),
    ("top_k", {"k": np.int8(100)}),
]


@pytest.mark.parametrize("setting", [*EXAMPLES, *LIMITS], ids=label)
def test_a_rule_comes_back(setting):
    rule = make_rule(setting[0], **setting[1])
    assert eval(repr(rule), dict(CLASSES)) == rule
    assert dataclasses.replace(rule) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert make_rule(rule.name, **rule.parameters) == rule
    assert make_rule(rule.name, **dataclasses.asdict(rule)) == rule
    assert callable(rule.recovery)


@pytest.mark.parametrize(
    ("name", "given", "other"),
    [("typical", {"epsilon": 0.2}, "verifier"), ("top_k", {"k": 2}, "indicator")],
)
def test_the_choice_of_a_recovery_can_be_replaced(name, given, other):
    rule = make_rule(name, **given)
    chosen = dataclasses.replace(rule, recover_by=other)
    assert chosen != rule
    assert chosen.recover_by == other
    assert chosen == make_rule(name, **given, recover_by=other)
    assert chosen == make_rule(name, **given, recovery=other)
    assert chosen == dataclasses.replace(rule, recovery=other)


def test_a_rule_of_ones_own_comes_back():
    rule = OwnRule(math.inf, 2)
    assert repr(rule) == "OwnRule(factor=float('inf'), most=2)"
    assert eval(repr(rule)) == rule
    assert rule.parameters == {"factor": math.inf, "most": 2}


@dataclasses.dataclass(frozen=True)
class OwnRule(Rule):
    """A rule with two parameters that accepts everything."""

    factor: float
    most: int = 1
    name = "own_rule_of_the_round_trip"

    def accept(self, pair):
        return pair.xp.ones_like(pair.p)

    def recover(self, pair, candidate):
        return pair.q


@pytest.mark.parametrize("name", [None, 3, ["cactus"], b"cactus", 1.5])
def test_a_rule_is_asked_for_by_a_name(name):
    with pytest.raises(ValueError, match="a rule is named by a text such as 'cactus', got") as told:
        make_rule(name)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", [None, 3, ["kl"], {}])
def test_a_divergence_is_asked_for_by_a_name(kind):
    with pytest.raises(ValueError, match="unknown divergence"):
        make_rule("frontier", level=0.1, divergence=kind)


def test_every_rule_is_tried():
    assert {name for name, _ in EXAMPLES} == set(RULES)
