"""The deviations that an audit says it would have seen, in samplers that have just these.

Ten seeds each. A deviation twice as large as stated is found nearly always, one of a third hardly
ever.
"""

import numpy as np
import pytest

from sim import audit
from sim.audit.power import power_lines
from theory import make_rule

SPS = make_rule("sps")
P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
BONUS = np.full(3, 1 / 3)
PAIRS = audit.Blocks(P[None, None], np.stack([Q, BONUS])[None])
SAMPLES = 3_000


def shifted(accept=0.0, bonus=0.0):
    """Strict sampling whose acceptance of token 0 is off, and whose bonus is."""
    chance = np.array([0.4 + accept, 1.0, 1.0])
    law = BONUS + bonus * np.array([1.0, -1.0, 0.0])

    def sampler(p, q, drafted, generator):
        count = len(drafted)
        accepted = (generator.random(count) < chance[drafted[:, 0]]).astype(int)
        drawn = np.where(accepted == 1, generator.choice(3, size=count, p=law), 2)
        tokens = np.where(accepted[:, None] == 1, np.stack([drafted[:, 0], drawn], axis=-1),
                          np.stack([drawn, np.full(count, -1)], axis=-1))  # fmt: skip
        return accepted, tokens

    return sampler


def found(**deviation):
    given = {"pairs": PAIRS, "samples": SAMPLES}
    reports = [audit.audit(shifted(**deviation), SPS, seed=s, **given) for s in range(10)]
    return sum(report.rejected for report in reports)


@pytest.fixture(scope="module")
def power():
    return audit.audit(shifted(), SPS, pairs=PAIRS, samples=SAMPLES).power


@pytest.mark.parametrize(
    ("kind", "name"), [("accept", "acceptance_of_one_token"), ("bonus", "bonus_in_one_block")]
)
def test_what_would_have_been_seen_is_seen(power, kind, name):
    assert found(**{kind: 2 * power[name]}) >= 8
    assert found(**{kind: power[name] / 3}) <= 2


def test_more_samples_see_smaller_deviations(power):
    more = audit.audit(shifted(), SPS, pairs=PAIRS, samples=4 * SAMPLES).power
    assert set(more) == set(power)
    assert all(0.4 < more[name] / power[name] < 0.7 for name in power)
    assert len(power_lines(power)) == len(power)


def test_an_impossible_event_is_missed_as_often_as_is_said():
    """A draft with q = 0 is accepted with the stated probability: missed about once in twenty."""
    pairs = audit.Blocks(P[None, None], np.array([[[0.0, 0.4, 0.6], BONUS]]))
    right = audit.reference_sampler(SPS)

    def sampler(rate):
        def faulty(p, q, drafted, generator):
            accepted, tokens = right(p, q, drafted, generator)
            wrong = (drafted[:, 0] == 0) & (generator.random(len(drafted)) < rate)
            tokens[wrong] = np.stack([drafted[wrong, 0], np.full(wrong.sum(), 1)], axis=-1)
            return np.where(wrong, 1, accepted), tokens

        return faulty

    given = {"pairs": pairs, "samples": 600}
    rate = audit.audit(right, SPS, **given).power["impossible_acceptance"]
    rejected = [audit.audit(sampler(rate), SPS, seed=seed, **given).rejected for seed in range(30)]
    assert sum(rejected) >= 23  # 28.5 are expected; fewer than 23 with probability 1e-3


def test_the_power_against_a_budget_is_stated():
    far = audit.hostile_pairs()
    few, more = (
        audit.audit_budget(audit.reference_sampler(SPS), "kl", 0.05, pairs=far, samples=n).power
        for n in (1_000, 4_000)
    )
    assert few.keys() == more.keys()
    assert all(0.05 < more[name] < few[name] for name in few)
