"""Every stand-in of a fault is found and named; the right forms of the same claims pass.

A right sampler is rejected with probability at most 1e-6 here.
"""

import numpy as np
import pytest

from sim import audit
from sim.audit.samplers.faults import faulty_samplers
from theory import make_rule

FAULTS = faulty_samplers()
SURE = 1e-6
NAMED = {
    "reused_for_recovery": "the uniform of the test also draws the recovery",
    "reused_over_places": "one uniform serves the tests of all places",
    "shared_by_rows": "do rows of a batch share a uniform number?",
    "recovery_from_q": "the recovery is drawn from the verifier's row q",
    "argmax_recovery": "the likeliest token of norm((q − p)₊)",
    "bonus_one_row_early": "the bonus is drawn from the verifier's row of the last draft",
    "temperature_on_q": "temperature 0.8 is applied (once more) to the logits of the verifier's",
    "filter_after_draft": "top-k 3 is applied (after the draft) to the draft's rows only",
    "swapped": "p and q are swapped",
    "softmax_twice": "a softmax is taken of the probabilities of the verifier's rows only",
    "uncapped_block": "the test of the whole block is not capped",
    "block_residual_early": "the tests sum the residual of place i instead of i + 1",
    "bisection_wrong_way": "acceptance: too high",
    "top_k_short_support": "impossible acceptance",
    "entropy_offset": "drafted token 0: 0 of",
    "zero_uniform": "at u = 0 a draft that is never accepted is",
}
PARTS = {
    "reused_for_recovery": {"recovery"},
    "recovery_from_q": {"recovery"},
    "argmax_recovery": {"recovery"},
    "bonus_one_row_early": {"bonus"},
    "reused_over_places": {"acceptance", "accepted drafts"},
    "uncapped_block": {"acceptance", "accepted drafts"},
}
CLAIMS = {(fault.rule, fault.verification): name for name, fault in FAULTS.items()}


def audited(sampler, fault, samples=2_500, **more):
    pairs = audit.hostile_pairs(vocab=fault.wide) if fault.wide else None
    return audit.audit(
        sampler, fault.rule, verification=fault.verification, pairs=pairs,
        samples=300 if fault.wide else samples, level=SURE, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name):
    fault = FAULTS[name]
    report = audited(fault.sampler, fault)
    assert report.rejected is not fault.rare
    assert any(NAMED[name] in line for line in report.diagnosis), report.diagnosis


@pytest.mark.parametrize("name", PARTS)
def test_the_part_that_is_wrong_is_told_and_no_other(name):
    report = audited(FAULTS[name].sampler, FAULTS[name], samples=5_000)
    kinds = {"accepted drafts", "acceptance", "recovery", "bonus"}
    told = {line.partition(":")[0] for line in report.diagnosis} & kinds
    assert told == PARTS[name]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim[0]!r} by {claim[1]}")
def test_the_right_form_of_the_same_claim_passes(claim):
    rule, verification = claim
    fault = FAULTS[CLAIMS[claim]]
    report = audited(audit.reference_sampler(rule, verification), fault, samples=4_000)
    assert not report.rejected, str(report)
    assert report.diagnosis == []


def test_the_right_form_passes_in_torch_and_single_precision():
    pytest.importorskip("torch")
    for verification in ("token", "block"):
        rule = make_rule("cactus", delta=0.1)
        report = audit.audit(
            audit.reference_sampler(rule, verification), rule, verification=verification,
            samples=4_000, level=SURE, backend="torch", dtype="float32",
        )  # fmt: skip
        assert not report.rejected, str(report)


def test_a_search_in_the_wrong_direction_breaks_its_budget_and_the_right_one_keeps_it():
    fault = FAULTS["bisection_wrong_way"]
    given = {"samples": 2_000, "level": SURE}
    report = audit.audit_budget(fault.sampler, "reverse_kl", 0.05, **given)
    assert report.rejected
    assert "nats over" in report.diagnosis[0]
    right = audit.reference_sampler(fault.rule)
    assert not audit.audit_budget(right, "reverse_kl", 0.05, **given).rejected


@pytest.mark.parametrize("verification", ["token", "block"])
def test_strict_sampling_keeps_the_budget_zero_and_a_lax_rule_does_not_keep_it(verification):
    for rule, rejected in ((make_rule("sps"), False), (make_rule("lenience", l=0.5), True)):
        sampler = audit.reference_sampler(rule, verification)
        report = audit.audit_budget(sampler, "kl", 0.0, samples=3_000, level=SURE)
        assert report.rejected is rejected


def test_one_uniform_for_all_tests_of_a_block_is_named():
    fault, right = FAULTS["uncapped_block"], audit.reference_sampler(make_rule("sps"), "block")

    class Repeating:
        """A generator whose numbers are the same at every place."""

        def __init__(self, generator):
            self.random = lambda shape: (
                generator.random(shape)
                if len(shape) < 2
                else np.repeat(generator.random(shape[0]), shape[1]).reshape(shape)
            )

    def sampler(p, q, drafted, generator):
        return right(p, q, drafted, Repeating(generator))

    report = audited(sampler, fault, samples=4_000)
    assert report.rejected
    assert report.explanation[0] == "one uniform serves the tests of all places"


def test_a_fault_that_repeats_itself_is_not_taken_for_dependent_rows():
    told = [line for name in ("entropy_offset", "swapped", "recovery_from_q")
            for line in audited(FAULTS[name].sampler, FAULTS[name]).diagnosis]  # fmt: skip
    assert not [line for line in told if line.startswith("independence")]


def test_an_alarm_comes_again_with_the_same_seed_and_as_many_samples():
    fault = FAULTS["reused_for_recovery"]
    first = audited(fault.sampler, fault, seed=3)
    again = audited(fault.sampler, fault, samples=first.alarm_at, seed=3)
    assert again.alarm_at == first.alarm_at == again.samples
    assert again.history.log_e == first.history.log_e[: len(again.history.log_e)]


def test_the_reproducer_is_python_that_gives_the_alarm_again():
    fault = FAULTS["swapped"]
    report = audited(fault.sampler, fault)
    printed: list[str] = []
    code = compile(report.reproducer, "reproducer", "exec")
    exec(code, {"print": lambda text: printed.append(str(text))})
    assert f"REJECTED after {report.alarm_at:,} rounds" in printed[0]


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.rare])
def test_a_fault_is_found_within_1e5_rounds_whatever_the_seed(name):
    for seed in range(10):
        assert audited(FAULTS[name].sampler, FAULTS[name], samples=20_000, seed=seed).rejected
