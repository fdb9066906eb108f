"""Rounds on Markov pairs against enumeration, sampling, and numbers that are known."""

import itertools

import numpy as np
import pytest

from sim.chain import (
    Kernel,
    MarkovPair,
    kernels,
    long_run,
    ngram_pair,
    places,
    random_pair,
    speed_up,
)
from sim.tables.grid import settings
from theory import divergence, make_rule

RULES = [s.build() for s in {s.rule: s for s in settings()[::-1]}.values()]  # one of each
GOLDEN = MarkovPair.first_order(
    np.tile([0.05, 0.80, 0.15], (3, 1)), np.tile([0.30, 0.35, 0.35], (3, 1))
)


def strict(pair):
    return kernels(pair, [make_rule("sps")])[0]


def enumerated(pair, kernel, start, drafts, verification):
    """P(τ ≥ i) and Σ A(v) KL from the definition, prefix by prefix."""
    spent = divergence("kl", kernel.output, pair.verifier)
    reached, cost = np.zeros(drafts + 1), 0.0
    for length in range(drafts + 1):
        for prefix in itertools.product(range(pair.draft.shape[1]), repeat=length):
            state, alive, drawn = start, 1.0, 1.0
            for token in prefix:
                drawn *= pair.draft[state, token]
                if verification == "token":
                    alive *= kernel.accepted[state, token]
                else:
                    alive = min(drawn, alive * kernel.output[state, token])
                state = pair.follow[state, token]
            reached[length] += alive
            cost += alive * spent[state] if length < drafts and alive else 0.0
    return reached, cost


@pytest.mark.parametrize(
    ("drafts", "token", "block"), [(2, 0.8525, 0.9425), (4, 1.110381, 1.441081)]
)
def test_the_golden_pair_accepts_as_is_known(drafts, token, block):
    for verification, wanted in (("token", token), ("block", block)):
        found = long_run(GOLDEN, strict(GOLDEN), drafts, verification)
        assert found.accepted == pytest.approx(wanted, abs=5e-7)
        assert found.divergence == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_round_is_that_of_the_definition(rule, verification):
    pair = random_pair(4, seed=3)
    kernel = kernels(pair, [rule])[0]
    found = long_run(pair, kernel, 3, verification)
    each = [enumerated(pair, kernel, start, 3, verification) for start in range(4)]
    np.testing.assert_allclose(found.by_state, [reached for reached, _ in each], atol=1e-10)
    np.testing.assert_allclose(found.reached, found.starts @ found.by_state, atol=1e-10)
    costs = np.array([cost for _, cost in each])
    met = found.starts > 0
    wanted = found.starts[met] @ costs[met] / found.tokens
    assert found.divergence == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_a_lossless_rule_emits_the_law_of_the_verifier(verification):
    pair = random_pair(5, seed=8)
    found = long_run(pair, strict(pair), 3, verification)
    own = pair.verifier
    for _ in range(12):
        own = own @ own
    np.testing.assert_allclose(found.emitted, own[0], atol=1e-10)
    np.testing.assert_allclose(found.lengths.sum(), 1.0, atol=1e-12)
    # Of a rule that is lossy it is another.
    lossy = kernels(pair, [make_rule("lenience", l=0.3)])[0]
    assert np.abs(long_run(pair, lossy, 3, verification).emitted - own[0]).max() > 1e-3


def sampled(pair, kernel, drafts, rounds, seed, starts):
    """Tokens by round and the emitted counts of a decoder that draws token by token."""
    rng = np.random.default_rng(seed)
    p, h = pair.draft, kernel.output
    chance = np.divide(kernel.accepted, p, out=np.zeros_like(p), where=p > 0)
    left = np.maximum(h - kernel.accepted, 0.0)
    state = rng.choice(pair.states, size=rounds, p=starts / starts.sum())
    lengths = []
    for _ in range(6):  # side by side; rounds that start in the long run stay in it
        alive, length = np.ones(rounds, dtype=bool), np.zeros(rounds, dtype=int)
        for _ in range(drafts):
            token = drawn(rng, p[state])
            kept = rng.random(rounds) < chance[state, token]
            token = np.where(kept, token, drawn(rng, left[state]))
            length += alive & kept
            state = np.where(alive, pair.follow[state, token], state)
            alive &= kept
        bonus = drawn(rng, pair.verifier[state])
        state = np.where(alive, pair.follow[state, bonus], state)
        lengths.append(length)
    return lengths[-1]


def drawn(rng, mass):
    total = np.cumsum(mass, axis=1)
    return np.minimum(
        (total < rng.random((len(mass), 1)) * total[:, -1:]).sum(axis=1), mass.shape[1] - 1
    )


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(2, 50))]
)
def test_samples_agree(seed):
    """4 standard errors: 6e-5 false fails a comparison; 8% in 50 chains × 26 rules, 0.4% by day."""
    pair = random_pair(5, seed)
    for kernel in kernels(pair, RULES):
        found = long_run(pair, kernel, 3)
        lengths = sampled(pair, kernel, 3, 4000, seed, found.starts)
        second = found.lengths @ np.arange(4) ** 2
        error = np.sqrt(max(second - found.accepted**2, 0.0) / len(lengths))
        assert abs(lengths.mean() - found.accepted) <= 4 * error + 1e-9


def test_the_samples_see_another_rule():
    pair = random_pair(5, 0)
    kernel, other = kernels(pair, [make_rule("sps"), make_rule("lenience", l=0.7)])
    found = long_run(pair, kernel, 3)
    lengths = sampled(pair, other, 3, 4000, 0, found.starts)
    assert abs(lengths.mean() - found.accepted) > 4 * lengths.std() / np.sqrt(len(lengths))


def test_a_text_gives_a_pair_of_two_orders():
    pair = ngram_pair("the cat sat on the mat and the dog sat on the log. " * 20, tokens=6)
    assert pair.draft.shape == (36, 6)
    token, block = (long_run(pair, strict(pair), 3, v).accepted for v in ("token", "block"))
    assert 1.0 < token < block < 3.0


def test_blocks_that_explode_are_refused():
    pair = random_pair(60)
    with pytest.raises(ValueError, match="take fewer drafts"):
        places(pair, strict(pair), 6, "block")


def test_what_cannot_be_is_refused():
    eye = MarkovPair.first_order(np.eye(3), np.eye(3))
    with pytest.raises(ValueError, match="classes that never meet"):
        long_run(eye, Kernel(eye.draft, eye.draft), 2)
    with pytest.raises(ValueError, match="no verification 'tree'"):
        long_run(GOLDEN, strict(GOLDEN), 2, "tree")
    with pytest.raises(ValueError, match="drafts must be"):
        long_run(GOLDEN, strict(GOLDEN), 0)
    with pytest.raises(ValueError, match="a round takes no time"):
        speed_up(2.0, 3, 0.0, 0.0)
    assert speed_up(2.5, 3, 0.1, 1.2) == pytest.approx(2.5 / 1.5)
