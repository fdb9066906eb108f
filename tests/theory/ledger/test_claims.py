"""Every claim of the ledger: in order, and told completely."""

import pytest

from theory.ledger.claims import run_claim
from theory.ledger.verdicts import load_claims

CLAIMS = load_claims()


def number(claim):
    return str(claim.number)


@pytest.mark.parametrize("claim", CLAIMS, ids=number)
def test_a_claim_is_in_order(claim):
    outcome = run_claim(claim)
    failed = [step.statement for step in outcome.steps if not step.holds]
    assert not failed
    assert outcome.in_order, outcome.check


@pytest.mark.parametrize("claim", CLAIMS, ids=number)
def test_a_claim_is_told_completely(claim):
    assert claim.statement.endswith(".")
    assert claim.notebook in {f"{i:02d}" for i in (*range(1, 8), 9, 10, 11)}
    assert claim.source
    assert claim.instead or claim.expected == "proved"
    assert claim.derive is not claim.check


def test_no_claim_is_lost():
    assert len(CLAIMS) == 40
