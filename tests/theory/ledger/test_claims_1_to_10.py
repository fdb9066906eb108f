"""Claims 1 to 10 and two refutations: none survives a broken formula."""

import importlib
import inspect

import numpy as np
import pytest

import theory
from theory.divergences.contrast import Contrast
from theory.law import OneStep
from theory.ledger.derivations import solvers
from theory.ledger.verdicts import Outcome, load_claims

CLAIMS = {claim.number: claim for claim in load_claims()}


def _scaled(factor):
    return lambda original: lambda *args: factor * original(*args)


def _swapped_contrast(original):
    return lambda self, contrast: original(self, Contrast.of(contrast.q, contrast.h))


def _swapped_arguments(original):
    def term(self, h, q, difference=None):
        return original(self, q, h, None if difference is None else -difference)

    return term


def _second_order_with(scale):
    return lambda original: lambda xp, q, rest, budget: original(xp, q, rest, scale * budget)


def _recovering_from_the_verifier(original):
    def law(self, pair):
        acceptance, output = original(self, pair)
        member = self.accepted(pair)
        return OneStep(acceptance, pair.xp.where(member, output, pair.q))

    return law


def _squared_acceptance(original):
    def law(self, pair):
        acceptance, output = original(self, pair)
        return OneStep(acceptance * acceptance, output)

    return law


def _negated_property(original):
    return property(lambda self: -original.func(self))


def _replaced_by(new):
    return lambda original: new


def _unscaled_target(q, n, gamma):
    target = np.array(q)
    target[n] = gamma
    return target / target.sum()


BREAKAGES = [
    (1, "theory.rules.base.coupled_accept", _scaled(0.9)),
    (2, "theory.divergences.kinds.KL.term", _swapped_arguments),
    (2, "theory.candidate_target", _replaced_by(_unscaled_target)),
    (2, "theory.divergences.kinds.JensenShannon.slope", _scaled(2.0)),
    (2, "theory.optimum.gamma._cost_of_certainty", _scaled(2.0)),
    (3, "theory.law._received", _scaled(2.0)),
    (4, "theory.pair.Pair.verifier_entropy", _negated_property),
    (5, "theory.divergences.kinds.KL.summand", _swapped_contrast),
    (5, "theory.divergences.kinds.KL.over", _scaled(0.5)),
    (6, "theory.optimum.gamma._second_order", _second_order_with(0.5)),
    (7, "theory.optimum.gamma._second_order", _second_order_with(2.0)),
    (7, "theory.optimum.gamma._second_order", _second_order_with(0.5)),
    (8, "theory.rules.base.AcceptSetRule.law", _recovering_from_the_verifier),
    (9, "theory.rules.base.TargetRule.law", _squared_acceptance),
    (
        10,
        "theory.rules.target.Mentored._kind",
        _replaced_by(lambda self: theory.DIVERGENCES["kl"]),
    ),
    ("R3", "theory.rules.cascades._TokenCascade.target", _replaced_by(lambda self, pair: pair.q)),
    ("R4", "theory.rules.accept_set.Typical.accepted", _replaced_by(lambda self, pair: pair.q > 0)),
]


@pytest.mark.parametrize(("number", "where", "change"), BREAKAGES)
def test_a_broken_formula_breaks_the_claim(monkeypatch, number, where, change):
    owner, name = _owner(where)
    original = inspect.getattr_static(owner, name)
    monkeypatch.setattr(owner, name, change(original))
    claim = CLAIMS[number]
    with np.errstate(all="ignore"):
        check = claim.check(np.random.default_rng(1))
    assert Outcome(claim, (), check, 0.0).verdict == "broken", check


def _owner(path):
    """Return the module or class that a dotted path names, and the last name of the path."""
    *parts, name = path.split(".")
    owner = importlib.import_module(parts.pop(0))
    for part in parts:
        inside = vars(owner).get(part)
        owner = inside or importlib.import_module(f"{owner.__name__}.{part}")
    return owner, name


@pytest.mark.parametrize("kind", [*solvers.KINDS, "power:3", "power:-1"])
def test_the_two_solvers_agree(kind):
    pytest.importorskip("cvxpy")
    rng = np.random.default_rng(5)
    for _ in range(4):
        size = int(rng.integers(2, 7))
        p, q = rng.dirichlet(np.ones(size), size=2) * 0.95 + 0.05 / size
        level = float(10.0 ** rng.uniform(-2.5, -0.5))
        conic = solvers.maximal_acceptance(p, q, kind, level, solver="conic")
        other = solvers.maximal_acceptance(p, q, kind, level, solver="sequential")
        assert conic.method != other.method
        assert conic.value == pytest.approx(other.value, abs=3e-6)
        raised = solvers.best_candidate(q, 0, kind, level, solver="sequential")
        assert raised.value == pytest.approx(
            float(theory.optimal_gamma(q[0], level, kind).value), abs=1e-7
        )


def test_a_solver_names_an_unknown_kind():
    with pytest.raises(ValueError, match="unknown kind"):
        solvers.maximal_acceptance([0.5, 0.5], [0.5, 0.5], "nonsense", 0.1)
