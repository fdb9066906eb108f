"""Claims 36 to 38, of partial rows: none survives a broken formula."""

import importlib

import numpy as np
import pytest

from theory.ledger.derivations.completions import listed_pairs
from theory.ledger.verdicts import Outcome, load_claims

CLAIMS = {claim.number: claim for claim in load_claims()}


def _times(factor):
    return lambda original: lambda *args: factor * original(*args)


def _first_of_two(factor):
    def change(original):
        def broken(*args):
            low, high = original(*args)
            return factor * low, high

        return broken

    return change


def _less_budget_for_likely_tokens(original):
    return lambda xp, q, rest, budget: original(xp, q, rest, xp.where(q < 0.01, 1.0, 0.1) * budget)


BREAKAGES = [
    (36, "theory.partial.candidates", "_residual", _times(1.5)),
    (36, "theory.partial.candidates", "_spread", _times(0.9)),
    (36, "theory.partial.candidates", "_most_kept", _times(0.3)),
    (36, "theory.partial.kept", "pieces_of", _first_of_two(1.05)),
    (36, "theory.partial.targets", "pieces_of", _first_of_two(1.05)),
    (36, "theory.partial.accepted", "pieces_of", _first_of_two(1.05)),
    (36, "theory.partial.accepted", "thresholds", _first_of_two(3.0)),
    (37, "theory.partial.envelope", "SMALLEST", lambda original: 0.9),
    (38, "theory.optimum.gamma", "_second_order", _less_budget_for_likely_tokens),
]


@pytest.mark.parametrize(("number", "module", "name", "change"), BREAKAGES)
def test_a_broken_formula_breaks_the_claim(monkeypatch, number, module, name, change):
    owner = importlib.import_module(module)
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    claim = CLAIMS[number]
    with np.errstate(all="ignore"):
        check = claim.check(np.random.default_rng(1))
    assert Outcome(claim, (), check, 0.0).verdict == "broken", check


def test_completions_have_the_lists_and_differ_elsewhere():
    rows, wholes = listed_pairs(np.random.default_rng(0), 12, 40, 8)
    for number, name in enumerate(("p", "q")):
        known = getattr(rows, f"{name}_known") & (rows.token >= 0)
        for whole in wholes:
            full = np.take_along_axis(whole[number], np.maximum(rows.token, 0), axis=-1)
            np.testing.assert_allclose(full[known], getattr(rows, name)[known], rtol=1e-12)
            np.testing.assert_allclose(whole[number].sum(-1), 1.0, rtol=1e-12)
            assert np.all(np.where(known, 0.0, full) <= getattr(rows, f"{name}_cap")[:, None])
        assert np.abs(wholes[1][number] - wholes[0][number]).max() > 1e-3
