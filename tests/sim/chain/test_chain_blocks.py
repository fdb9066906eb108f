"""The best of a block against a conic programme, the scaled clip, and a text's own divergence."""

import itertools
import math

import numpy as np
import pytest

from sim.chain import (
    MarkovPair,
    ScaledClip,
    best_block,
    kernels,
    long_run,
    of_rounds,
    places,
    random_pair,
    text_divergence,
)
from sim.chain.longrun import stationary
from sim.chain.texts import token_step
from theory import make_rule
from theory.ledger.derivations.claim_33_frontier_of_blocks import programme


def tree(pair, drafts, start=0):
    """The rows behind every prefix of a round that starts in a state."""
    size, rows = pair.draft.shape[1], {}
    for length in range(drafts):
        for prefix in itertools.product(range(size), repeat=length):
            state = start
            for token in prefix:
                state = pair.follow[state, token]
            rows[prefix] = pair.draft[state], pair.verifier[state]
    return rows


@pytest.mark.parametrize(
    ("drafts", "seed"),
    [(2, 0), (2, 2), *(pytest.param(3, s, marks=pytest.mark.nightly) for s in range(4))],
)
def test_the_best_block_is_that_of_the_programme(drafts, seed):
    pytest.importorskip("cvxpy")
    pair = random_pair(3, seed)
    for price in (1.0, 2.5):
        found = best_block(pair, price, drafts, points=4_001)
        wanted = programme(tree(pair, drafts), price)
        assert found.value[0] == pytest.approx(wanted, abs=1e-6)
        coarse = best_block(pair, price, drafts)
        assert wanted - 1e-4 < coarse.value[0] < wanted + 1e-7


def test_nothing_in_blocks_is_worth_more_than_the_best():
    pair, price = random_pair(4, 7), 1.5
    best = best_block(pair, price, 3)
    multiplier = 1 / price
    clip = kernels(pair, [make_rule("frontier_corpus", multiplier=multiplier)])[0]
    runs = {name: worth(pair, k, price, 3) for name, k in {
        "plain": clip, "scaled": ScaledClip(pair, multiplier),
        "lenience": kernels(pair, [make_rule("lenience", l=0.5)])[0],
    }.items()}  # fmt: skip
    for name, value in runs.items():
        assert np.all(value <= best.value + 1e-6), name
    assert np.all(runs["plain"] < runs["scaled"] + 1e-12)


def worth(pair, kernel, price, drafts):
    """Accepted drafts less the price of what they spend, by the state in which a round starts."""
    accepted, spent = of_rounds(places(pair, kernel, drafts, "block"))
    each = [round_cost(pair, kernel, drafts, start) for start in range(pair.states)]
    np.testing.assert_allclose(spent, each, atol=1e-12)
    return accepted - price * spent


def round_cost(pair, kernel, drafts, start):
    """Σ A(v) KL(h‖q) of one round, by going through all prefixes."""
    stack, cost = [(start, 0, 1.0, 1.0)], 0.0
    while stack:
        state, place, alive, drawn = stack.pop()
        if place == drafts or alive == 0:
            continue
        p, q = pair.draft[state], pair.verifier[state]
        h = kernel.at(place, np.array([state]), np.array([alive / drawn]))[0]
        cost += alive * float(np.sum(h * np.log(np.where(h > 0, h / q, 1.0))))
        for token in range(len(p)):
            kept = min(drawn * p[token], alive * h[token])
            stack.append((pair.follow[state, token], place + 1, kept, drawn * p[token]))
    return cost


def test_without_a_multiplier_the_scaled_clip_is_the_verifier():
    pair = random_pair(4, 1)
    strict = long_run(pair, kernels(pair, [make_rule("sps")])[0], 3, "block")
    scaled = long_run(pair, ScaledClip(pair, 0.0), 3, "block")
    np.testing.assert_allclose(scaled.reached, strict.reached, atol=1e-12)
    assert scaled.divergence == pytest.approx(0.0, abs=1e-12)


def test_a_price_that_is_none_is_refused():
    pair = random_pair(3)
    for price in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="price must be a positive number"):
            best_block(pair, price, 2)
    with pytest.raises(ValueError, match="drafts must be a whole number"):
        best_block(pair, 1.0, 0)
    with pytest.raises(ValueError, match="points"):
        best_block(pair, 1.0, 2, points=1)


# --- texts ---------------------------------------------------------------------------------------


def enumerated(pair, kernel, drafts, length, verification):
    """The law of texts, round by round from A(vy); nothing of `places` is used."""
    law, starts = {}, {(): 1.0}
    while starts:
        start, mass = starts.popitem()
        going = {start: (mass, mass)}
        while going:
            text, (alive, drawn) = going.popitem()
            state = text[-1] if text else 0
            p, q, place = pair.draft[state], pair.verifier[state], len(text) - len(start)
            h = q if place == drafts else kernel.output[state]
            for token in range(len(p)):
                kept = 0.0
                if place < drafts and verification == "block":
                    kept = min(drawn * p[token], alive * h[token])
                elif place < drafts:
                    kept = alive * kernel.accepted[state, token]
                longer, left = (*text, token), alive * h[token] - kept
                if len(longer) == length:
                    law[longer] = law.get(longer, 0.0) + kept + left
                    continue
                if left > 0:
                    starts[longer] = starts.get(longer, 0.0) + left
                if kept > 0:
                    going[longer] = kept, drawn * p[token]
    return law


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("rule", [make_rule("lenience", l=0.4), make_rule("cactus", delta=0.3)])
def test_the_divergence_of_a_text_is_that_of_its_law(rule, verification):
    pair = random_pair(3, 5)
    kernel = kernels(pair, [rule])[0]
    law = enumerated(pair, kernel, 2, 5, verification)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    own = sum(m * math.log(m / reference(pair, text)) for text, m in law.items() if m > 0)
    found = text_divergence(pair, kernel, 2, 5, verification)
    assert found.own == pytest.approx(own, abs=1e-10)
    assert 0.8 * found.spent < found.own < found.spent


def reference(pair, text):
    return math.prod(pair.verifier[a, b] for a, b in itertools.pairwise((0, *text)))


def test_the_first_token_hides_nothing_and_strict_texts_are_the_verifiers():
    pair = random_pair(4, 2)
    lossy, strict = kernels(pair, [make_rule("lenience", l=0.4), make_rule("sps")])
    first = text_divergence(pair, lossy, 3, 1)
    assert first.own == pytest.approx(first.spent, rel=1e-9)
    for verification in ("token", "block"):
        found = text_divergence(pair, strict, 3, 4, verification)
        assert max(found.own, found.spent) < 1e-12


@pytest.mark.parametrize("verification", ["token", "block"])
def test_in_the_long_run_a_token_spends_what_the_long_run_says(verification):
    pair = random_pair(3, 4)
    kernel = kernels(pair, [make_rule("lenience", l=0.8)])[0]
    found = places(pair, kernel, 2, verification)
    hidden = stationary(token_step(found).toarray())
    spent = np.concatenate([place.spent for place in found])
    run = long_run(pair, kernel, 2, verification)
    assert hidden @ spent == pytest.approx(run.divergence, rel=1e-9)


def test_texts_that_cannot_be_gone_through_are_refused():
    pair = random_pair(5)
    kernel = kernels(pair, [make_rule("sps")])[0]
    with pytest.raises(ValueError, match="length: 5 tokens have more than 200,000 texts"):
        text_divergence(pair, kernel, 2, 9)
    with pytest.raises(ValueError, match="start"):
        text_divergence(pair, kernel, 2, 2, start=5)
    same = MarkovPair(pair.draft, pair.verifier, np.zeros((5, 5), dtype=int), pair.tokens)
    with pytest.raises(ValueError, match="two tokens lead to one state"):
        text_divergence(same, kernel, 2, 2)
