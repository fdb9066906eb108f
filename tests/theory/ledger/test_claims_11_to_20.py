"""Claims 11 to 20 and two refutations: none survives a broken formula."""

import importlib
import inspect
from fractions import Fraction

import numpy as np
import pytest

from theory.law import OneStep
from theory.ledger.derivations import claim_12_feasible_region as region
from theory.ledger.derivations import claim_17_corpus_frontier as joint
from theory.ledger.derivations.claim_14_on_yins_line import exact_law
from theory.ledger.derivations.claim_18_reads import reads_per_token
from theory.ledger.verdicts import Outcome, load_claims

CLAIMS = {claim.number: claim for claim in load_claims()}


def _scaled(factor):
    return lambda original: lambda *args: factor * original(*args)


def _swapped_arguments(original):
    def term(self, h, q, difference=None):
        return original(self, q, h, None if difference is None else -difference)

    return term


def _second_order_with(scale):
    return lambda original: lambda xp, q, rest, budget: original(xp, q, rest, scale * budget)


def _root_at_twice_the_budget(original):
    return lambda xp, kind, q, rest, budget: original(xp, kind, q, rest, 2.0 * budget)


def _squared_acceptance(original):
    def law(*args):
        acceptance, output = original(*args)
        return OneStep(acceptance * acceptance, output)

    return law


def _rejecting_more(original):
    return lambda self, *args, **options: 1.02 * original(self, *args, **options)


def _smaller_cap(original):
    return lambda rows, cap: original(rows, 0.9 * cap)


def _half_the_level(original):
    return lambda rows, level: original(rows, 0.5 * level)


def _complement_for_value(original):
    return lambda pair, value, complement: original(pair, complement, value)


def _strict(original):
    return lambda self, pair: OneStep(1.0 - pair.total_variation, pair.q)


BREAKAGES = [
    (11, "theory.optimum.gamma._second_order", _second_order_with(2.0)),
    (11, "theory.optimum.gamma._second_order", _second_order_with(0.5)),
    (12, "theory.optimum.gamma._second_order", _second_order_with(2.0)),
    (12, "theory.divergences.kinds.KL.term", _swapped_arguments),
    (13, "theory.optimum.gamma._root", _root_at_twice_the_budget),
    (13, "theory.law._received", _scaled(2.0)),
    (14, "theory.law._received", _scaled(2.0)),
    (15, "theory.frontier.clipped.ClippedFamily.solve", _rejecting_more),
    (16, "theory.rules.target.kept_and_recovered", _scaled(0.9)),
    (16, "theory.frontier.clipped.ClippedFamily.solve", _rejecting_more),
    (17, "theory.frontier.clipped.ClippedFamily.mass_at", _scaled(1.02)),
    (18, "theory.rules.candidate.candidate_law", _squared_acceptance),
    (19, "theory.certificates.reach._capped", _smaller_cap),
    (19, "theory.certificates.reach._mentored", _half_the_level),
    (20, "theory.rules.candidate.target_only_law", _complement_for_value),
    (20, "theory.optimum.gamma._root", _root_at_twice_the_budget),
    ("R1", "theory.rules.candidate.CandidateRule.law", _strict),
    ("R2", "theory.optimum.gamma._second_order", _second_order_with(0.25)),
]


@pytest.mark.parametrize(("number", "where", "change"), BREAKAGES)
def test_a_broken_formula_breaks_the_claim(monkeypatch, number, where, change):
    owner, name = _owner(where)
    original = inspect.getattr_static(owner, name)
    monkeypatch.setattr(owner, name, change(original))
    claim = CLAIMS[number]
    with np.errstate(all="ignore"):
        try:
            check = claim.check(np.random.default_rng(1))
        except ValueError:  # what the broken formula gives may no longer be a distribution
            return
    assert Outcome(claim, (), check, 0.0).verdict == "broken", check


def _owner(path):
    """Return the module or class that a dotted path names, and the last name of the path."""
    *parts, name = path.split(".")
    owner = importlib.import_module(parts.pop(0))
    for part in parts:
        inside = vars(owner).get(part)
        owner = inside or importlib.import_module(f"{owner.__name__}.{part}")
    return owner, name


def test_the_law_in_exact_arithmetic_on_an_example():
    third = Fraction(1, 3)
    rejected, output = exact_law(
        [Fraction(2, 3), third, Fraction(0)], [third] * 3, [Fraction(1, 2)] * 3
    )
    assert rejected == Fraction(1, 6)
    assert output == [Fraction(1, 2), third, Fraction(1, 6)]


def test_the_predicted_region_is_a_region():
    assert region.critical_budget(0.6) == 0.0
    budgets = np.array([0.01, 0.2, 0.5, 0.8, 1.0])
    np.testing.assert_array_equal(
        region.feasible(np.full(5, 0.4), budgets), [True, True, False, False, True]
    )
    assert region.feasible(np.array([0.28]), np.array([1.28])).all()


def test_a_corpus_can_be_solved_by_dividing_the_budget_too():
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(4), size=(2, 3)) * 0.96 + 0.01
    divided = joint._divided(p, q, "kl", 0.05)
    assert divided == pytest.approx(joint.corpus(p, q, "kl").acceptance(0.05), abs=1e-5)


def test_reads_per_token_without_acceptance_and_with_little_vocabulary():
    assert reads_per_token(0.0, 4, 100) == pytest.approx(2 + 200)
    assert reads_per_token(0.5, 1, 10) == pytest.approx((2 + 2 * 10 * 0.5 + 10 * 0.5) / 1.5)
