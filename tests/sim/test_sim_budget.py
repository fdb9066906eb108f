"""A budget of a text: what rounds spend per token, on a corpus, against sums and simulation."""

import numpy as np
import pytest

from sim.tables.budget import spend
from sim.tables.calibration import MET, SLACK
from sim.tables.corpus import Corpus
from theory import CorpusFrontier, Pair, make_rule, one_step
from theory.frontier import RoundMeans, schedule, schedule_at

LEVEL, DRAFTS = 0.05, 3


def rows(seed=0, count=12, size=6):
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.7), size=(2, count))


def corpus(p, q):
    halves = np.array_split(np.arange(len(p)), 2)  # more than one batch
    batches = [(Pair.prepare(p[h], q[h], sort=True), [str(i) for i in h]) for h in halves]
    return Corpus("rows", "", p.shape[-1], batches)


def simulated(p, q, rules, rounds=20_000):
    """Tokens of a round and KL per token when each place meets a row at random, and the errors."""
    stream = np.random.default_rng(1)
    laws = [one_step(rule, p, q) for rule in rules]
    spent = [np.sum(law.output * np.log(law.output / q), axis=-1) for law in laws]
    alive, tokens, nats = np.ones(rounds, bool), np.ones(rounds), np.zeros(rounds)
    for law, cost in zip(laws, spent):
        at = stream.integers(len(p), size=rounds)
        nats += alive * cost[at]
        alive &= stream.random(rounds) < law.acceptance[at]
        tokens += alive
    ratio = nats.mean() / tokens.mean()
    errors = tokens.std(), (nats - ratio * tokens).std() / tokens.mean()
    return tokens.mean(), ratio, np.array(errors) / np.sqrt(rounds)


@pytest.mark.parametrize("rule", ["lenience", "frontier", "frontier_corpus", "cactus"])
def test_rounds_of_the_value_spend_the_budget(rule):
    """Five standard errors: a right value fails once in 10⁶ runs; the seed is fixed."""
    p, q = rows()
    found = spend(corpus(p, q), [rule], LEVEL, DRAFTS)[0]
    assert LEVEL * (1 - 2e-3) <= found.means.cost_per_token <= LEVEL
    made = make_rule(rule, **{found.parameter: found.values[0]})
    tokens, nats, errors = simulated(p, q, [made] * DRAFTS)
    assert abs(tokens - found.means.tokens) < 5 * errors[0]
    assert abs(nats - LEVEL) < 5 * errors[1] + 1e-3 * LEVEL
    assert abs(nats - 1.3 * LEVEL) > 5 * errors[1]  # the control: the value of a larger budget


def test_the_schedule_spends_the_budget_and_is_worth_most():
    p, q = rows()
    ways = spend(corpus(p, q), ["lenience", "cactus", "frontier", "frontier_corpus"], LEVEL, DRAFTS)
    best = ways[-1]
    assert (best.status, len(best.values)) == (MET, DRAFTS)
    assert list(best.values) == sorted(best.values, reverse=True)
    assert LEVEL * (1 - 1e-3) <= best.means.cost_per_token <= LEVEL * (1 + 1e-9)
    assert all(way.means.tokens <= best.means.tokens + 1e-3 for way in ways)
    made = [make_rule("frontier_corpus", multiplier=value) for value in best.values]
    tokens, nats, errors = simulated(p, q, made)
    assert abs(tokens - best.means.tokens) < 5 * errors[0]
    assert abs(nats - LEVEL) < 5 * errors[1] + 1e-3 * LEVEL


def test_the_schedule_of_a_corpus_is_that_of_its_rows():
    p, q = rows(3)
    frontier = CorpusFrontier("kl")
    frontier.add(Pair.prepare(p, q))
    exact = schedule_at(Pair.prepare(p, q), LEVEL, DRAFTS)
    found = schedule_at(frontier, LEVEL, DRAFTS)
    np.testing.assert_allclose(found.multipliers, exact.multipliers, rtol=2e-3)
    assert found.tokens == pytest.approx(exact.tokens, rel=1e-4)
    for multiplier in (1e-3, 0.17, 3.0):
        means = frontier.at(multiplier)
        one = schedule(Pair.prepare(p, q), 1 / multiplier, 1)
        np.testing.assert_allclose(means, (one.accepted[0], one.spent[0]), rtol=3e-3)
    with pytest.raises(ValueError, match="multiplier must be positive, got 0"):
        frontier.at(0)


def test_positions_that_are_added_later_count():
    p, q = rows(4)
    frontier = CorpusFrontier("kl")
    frontier.add(Pair.prepare(p[:3], q[:3]))
    before = frontier.at(0.5)
    frontier.add(Pair.prepare(p[3:], q[3:]))
    whole = CorpusFrontier("kl")
    whole.add(Pair.prepare(p, q))
    assert frontier.at(0.5) == pytest.approx(whole.at(0.5), rel=1e-12)
    assert before != frontier.at(0.5)


def test_rows_that_cannot_spend_so_much():
    p, q = rows()
    found = spend(corpus(p, 0.999 * p + 0.001 * q), ["frontier_corpus"], 2.0, DRAFTS)
    assert [way.status for way in found] == [SLACK, SLACK]
    assert all(way.means.cost_per_token < 0.01 for way in found)


def test_a_rule_without_a_parameter_spends_what_it_spends():
    p, q = rows()
    (strict, _) = spend(corpus(p, q), ["sps", "sps"], LEVEL, DRAFTS)
    accepted = np.minimum(p, q).sum(-1).mean()
    assert (strict.values, strict.means.cost_per_token) == ((), 0.0)
    assert strict.means.tokens == pytest.approx(sum(accepted**i for i in range(DRAFTS + 1)))


def test_the_means_of_a_round():
    means = RoundMeans((0.5, 0.8), (0.1, 0.2))
    assert means.reached == (1.0, 0.5, 0.4)
    assert (means.tokens, means.cost) == (pytest.approx(1.9), pytest.approx(0.2))
    assert means.cost_per_token == pytest.approx(0.2 / 1.9)
