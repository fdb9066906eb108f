"""The evidence is an e-process: its mean under the claim is at most 1, exactly, at every time."""

import itertools

import numpy as np
import pytest
from scipy.special import rel_entr

from sim import audit
from sim.audit.evidence.budget import BALLS, BudgetEvidence, nearest_in_ball
from sim.audit.evidence.claim import PARTS, ClaimEvidence
from sim.audit.evidence.events import Events, Rounds
from sim.audit.evidence.learned import Copies, Learned, log_mean_exp
from sim.audit.laws.explanations import explanations
from sim.audit.laws.rounds import round_law
from theory import make_rule

STEPS = 5


def event(law, outcome, slack=0.0):
    most = np.log(np.maximum(law[outcome] * (1 + slack), 1e-300))
    nowhere = np.zeros(1, dtype=int)
    return Events(nowhere, nowhere, np.array([outcome]), law[None], np.array([most]))


def means(make, laws, cells):
    """E[e] after each step, by the enumeration of all outcomes."""
    total = np.zeros(len(laws))
    for outcomes in itertools.product(*(range(len(law)) for law in laws)):
        evidence, chance = make(), 1.0
        for step, (law, outcome, cell) in enumerate(zip(laws, outcomes, cells)):
            chance *= law[outcome]
            if chance == 0:
                break
            evidence.update(np.array([cell]), event(law, outcome))
            rest = np.prod([len(other) for other in laws[step + 1 :]])
            total[step] += chance * np.exp(logs(evidence)) / rest
    return total


def logs(evidence):
    if isinstance(evidence, Copies):
        return evidence.log_e
    return log_mean_exp(list(evidence.log_es))


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_learned_has_mean_one_under_the_claim(seed, pooled):
    rng = np.random.default_rng(seed)
    laws = rng.dirichlet(np.full(3, 0.6), size=STEPS)
    laws[1] = [0.5, 0.5, 0.0]
    cells = rng.integers(2, size=STEPS)
    found = means(lambda: Learned(2, 3, pooled=pooled), laws, cells)
    np.testing.assert_allclose(found, 1, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_copies_have_mean_one_under_the_claim(seed):
    rng = np.random.default_rng(seed)
    laws, cells = rng.dirichlet(np.ones(3), size=STEPS), rng.integers(2, size=STEPS)
    np.testing.assert_allclose(means(lambda: Copies(2), laws, cells), 1, atol=1e-12)


def test_copies_within_a_batch_are_those_of_single_events():
    rng = np.random.default_rng(0)
    laws, cells = rng.dirichlet(np.ones(3), size=40), rng.integers(4, size=40)
    outcomes = np.array([rng.choice(3, p=law) for law in laws])
    one_by_one, together = Copies(4), Copies(4)
    for law, outcome, cell in zip(laws, outcomes, cells):
        one_by_one.update(np.array([cell]), event(law, outcome))
    log_most = np.log(laws[np.arange(40), outcomes])
    for part in (slice(0, 15), slice(15, 40)):
        size = len(laws[part])
        batch = (np.arange(size), np.zeros(size, dtype=int), outcomes[part], laws[part])
        together.update(cells[part], Events(*batch, log_most[part]))
    assert together.log_e == pytest.approx(one_by_one.log_e, abs=1e-12)


def test_a_wrong_law_is_learned_at_the_cost_of_a_few_nats():
    rng = np.random.default_rng(0)
    evidence, law, true = Learned(1, 3), np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.3, 0.3])
    outcomes = rng.choice(3, size=400, p=true)
    for outcome in outcomes:
        evidence.update(np.array([0]), event(law, outcome))
    known = np.log(true / law)[outcomes].sum()
    assert known - 6 < logs(evidence) < known + 3


# --- the whole audit ------------------------------------------------------------------------------


def every_round(law, draft):
    """All (accepted, token) of one round on block 0 with their probabilities."""
    none = np.zeros(1, dtype=int)
    lengths = law.accepted_law(none, draft[None])[0]
    for accepted, chance in enumerate(lengths):
        rows = law.token_law(none, draft[None], np.array([accepted]))[0]
        for token, share in enumerate(rows):
            if chance * share > 0:
                yield accepted, token, chance * share


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize(("name", "parameters"), [("sps", {}), ("cactus", {"delta": 0.05})])
def test_the_audits_evidence_has_a_mean_of_at_most_one_after_every_round(
    name, parameters, verification
):
    """Three rounds of two drafts, one after the other: all that can happen is enumerated."""
    rule = make_rule(name, **parameters)
    p, q = np.array([[0.7, 0.3], [0.5, 0.5]]), np.array([[0.4, 0.6], [0.6, 0.4], [0.5, 0.5]])
    blocks = audit.Blocks(p[None], q[None])
    claim = round_law(rule, blocks, verification)
    known = explanations(rule, blocks, claim)[::6]
    drafts = np.array([[0, 0], [0, 1], [0, 0]])
    total, parts = np.zeros(3), dict.fromkeys(PARTS, 0.0)
    for played in itertools.product(*(list(every_round(claim, draft)) for draft in drafts)):
        evidence, chance = ClaimEvidence(claim, q[None], known, 1e-6), 1.0
        weight = np.prod([share for *_, share in played])
        for at, (draft, (accepted, token, share)) in enumerate(zip(drafts, played)):
            chance *= share
            ended = np.array([accepted]), np.array([token])
            evidence.update(Rounds(np.zeros(1, dtype=int), draft[None], *ended))
            total[at] += weight * np.exp(evidence.log_e())
        for part, log_e in evidence.log_e_of_parts().items():
            parts[part] += weight * np.exp(log_e)
        assert chance == pytest.approx(weight)
    assert np.all((total > 0.9) & (total <= 1 + 1e-9)), total
    assert all(0.9 < mean <= 1 + 1e-9 for mean in parts.values()), parts


# --- budgets -------------------------------------------------------------------------------------


def spent(h, q, divergence):
    pair = (h, q) if divergence == "kl" else (q, h)
    return rel_entr(*pair).sum(axis=-1)


def rows(seed, count=40):
    rng = np.random.default_rng(seed)
    r, q = rng.dirichlet(np.full(5, 0.6), size=(2, count))
    r[::3, 0] = 0
    return r / r.sum(axis=-1, keepdims=True), q


@pytest.mark.parametrize("level", [0.0, 1e-4, 0.01, 0.3])
@pytest.mark.parametrize("divergence", BALLS)
def test_the_nearest_law_lies_in_the_ball_and_is_r_inside_it(divergence, level):
    r, q = rows(0)
    nearest = nearest_in_ball(r, q, level, divergence)
    np.testing.assert_allclose(nearest.sum(axis=-1), 1, atol=1e-10)
    assert np.all(spent(nearest, q, divergence) <= level + 1e-9)
    inside = spent(r, q, divergence) <= level
    np.testing.assert_array_equal(nearest[inside], r[inside])


@pytest.mark.parametrize("divergence", BALLS)
def test_no_law_of_the_ball_gives_the_factor_a_mean_above_one(divergence):
    """The worst laws are sought: random ones, and q tilted towards the factor."""
    level, rng = 0.05, np.random.default_rng(1)
    r, q = rows(2)
    factor = np.where(r > 0, r, 0) / nearest_in_ball(r, q, level, divergence)
    worst = 0.0
    for strength in np.geomspace(1e-3, 1e3, 200):
        tilted = q * np.exp(strength * (factor - factor.max(axis=-1, keepdims=True)))
        tilted /= tilted.sum(axis=-1, keepdims=True)
        for other in (tilted, rng.dirichlet(np.ones(5), size=len(q))):
            for share in (0.01, 0.1, 0.3, 1.0):
                h = share * other + (1 - share) * q
                within = spent(h, q, divergence) <= level
                worst = max(worst, (h * factor).sum(axis=-1)[within].max(initial=0))
    assert 0.99 < worst <= 1 + 1e-8


@pytest.mark.parametrize(("within", "reached"), [(True, False), (False, True)])
def test_a_budget_is_held_against_what_is_emitted(within, reached):
    """Half of the draft in the output lies 0.1 nats from q here."""
    p, q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
    h = 0.5 * p + 0.5 * q
    level = spent(h, q, "kl") * (1.02 if within else 0.3)
    evidence, rng, most = BudgetEvidence(q[None, None], "kl", level), np.random.default_rng(0), 0.0
    for _ in range(60):
        token = rng.choice(3, size=50, p=h)
        none = np.zeros(50, dtype=int)
        evidence.update(Rounds(none, np.zeros((50, 0), dtype=int), none, token))
        most = max(most, evidence.log_e())
    assert bool(most >= np.log(100)) is reached


@pytest.mark.parametrize("divergence", BALLS)
def test_evidence_against_a_budget_has_a_mean_of_at_most_one_under_laws_that_keep_it(divergence):
    """Four tokens of a law at the edge of the ball, out of which the first drive the guess."""
    q = np.array([0.6, 0.3, 0.1])
    h = nearest_in_ball(np.array([[0.1, 0.2, 0.7]]), q[None], 0.05, divergence)[0]
    none, total = np.zeros(1, dtype=int), np.zeros(4)
    for tokens in itertools.product(range(3), repeat=4):
        evidence = BudgetEvidence(q[None, None], divergence, 0.05)
        for at, token in enumerate(tokens):
            rounds = Rounds(none, np.zeros((1, 0), dtype=int), none, np.array([token]))
            evidence.update(rounds)
            total[at] += np.prod(h[list(tokens)]) * np.exp(evidence.log_e())
    assert np.all((total > 0.8) & (total <= 1 + 1e-9)), total
    assert total[-1] < 1 - 1e-6  # something was wagered


def test_a_token_without_mass_is_beyond_every_budget_of_kl():
    q = np.array([[[0.5, 0.5, 0.0]]])
    none = np.zeros(1, dtype=int)
    rounds = Rounds(none, np.zeros((1, 0), dtype=int), none, np.array([2]))
    for divergence, log_e in (("kl", np.inf), ("reverse_kl", 0.0)):
        evidence = BudgetEvidence(q, divergence, 10.0)
        evidence.update(rounds)
        assert evidence.log_e() == log_e
