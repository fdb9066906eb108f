"""Rounds along texts of the verifier: their mean over all texts, by enumeration."""

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.rounds.along_texts import TARGETS, gain, load_rounds
from benchmarks.rounds.page import BASE, gains, rounds_table, worth
from benchmarks.rounds.paths import (
    MULTIPLIERS,
    Kernel,
    VerifierText,
    rounds,
    scaled_rounds,
    schedule,
)
from theory import divergence, effective_draft, make_rule, one_step
from theory.blocks import scaled_clip
from theory.pair import Pair

V, M = 3, 3
PAGE = Path(__file__).resolve().parents[1] / "docs/rounds.md"
RNG = np.random.default_rng(6)
ROWS = {
    prefix: RNG.dirichlet(np.ones(V), 2)
    for length in range(M)
    for prefix in itertools.product(range(V), repeat=length)
}
PICKED = [0, 20, 40]  # of MULTIPLIERS


def texts():
    """(tokens, rows p [M, V], rows q [M, V], q(text)) of every text."""
    for text in itertools.product(range(V), repeat=M):
        p, q = (np.array([ROWS[text[:i]][side] for i in range(M)]) for side in (0, 1))
        yield np.array(text), p, q, float(np.prod(q[range(M), text]))


def expected(candidates, target, accept, *, block):
    """1 + Σ_v A(v) and Σ_v A(v) KL(h(·|v)‖q), v shorter than M for the second, by recursion."""
    tokens, nats = 1.0, 0.0

    def visit(prefix, alive, reached):
        nonlocal tokens, nats
        if len(prefix) == M:
            return
        p, q = ROWS[prefix]
        u = effective_draft(p, q, candidates)
        h = target(u, q, alive / reached)
        nats += alive * float(divergence("kl", h, q))
        for y in range(V):
            joint = reached * u[y]
            kept = min(joint, alive * h[y]) if block else alive * accept(u, q, h)[y]
            tokens += kept
            if kept > 0:
                visit((*prefix, y), kept, joint)

    visit((), 1.0, 1.0)
    return tokens, nats


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("name", ["multiplier", "cactus"])
def test_the_mean_over_texts_is_the_expectation(candidates, verification, name):
    values = [0.05, 0.3] if name == "cactus" else MULTIPLIERS[PICKED]
    found = np.zeros((2, len(values)))
    for tokens, p, q, weight in texts():
        text = VerifierText.of(p, q, tokens, candidates)
        kernel = text.by_rule("cactus", values) if name == "cactus" else text.by_multiplier(values)
        found += weight * np.array(rounds(text.drawn, kernel, M, verification))
    for column, value in enumerate(values):
        parameter = {"delta": value} if name == "cactus" else {"multiplier": value}
        rule = make_rule("cactus" if name == "cactus" else "frontier_corpus", **parameter)
        wanted = expected(
            candidates,
            lambda u, q, scale, rule=rule: one_step(rule, u, q).output,
            lambda u, q, h, rule=rule: u * rule.accept_prob(u, q),
            block=verification == "block",
        )
        np.testing.assert_allclose(found[:, column], wanted, rtol=0, atol=1e-9)


def test_the_mean_of_scaled_rounds_is_the_expectation():
    values = MULTIPLIERS[PICKED]
    found = np.zeros((2, len(values)))
    for tokens, p, q, weight in texts():
        found += weight * np.array(scaled_rounds(VerifierText.of(p, q, tokens, 1), values, M))

    def target(u, q, scale, multiplier):
        ends = np.full((1, 1), scale), np.full((1, 1), multiplier)
        clip = scaled_clip(Pair.prepare(u, q), *ends)
        return np.clip(u / scale, clip.below[0, 0] * q, clip.above[0, 0] * q)

    for column, value in enumerate(values):
        wanted = expected(1, lambda u, q, s, value=value: target(u, q, s, value), None, block=True)
        np.testing.assert_allclose(found[:, column], wanted, rtol=0, atol=1e-9)


def test_a_schedule_stands_at_its_places():
    tokens, p, q, _ = next(texts())
    text = VerifierText.of(p, q, tokens, 1)
    kernel = text.by_multiplier(MULTIPLIERS)
    places = np.array([[30], [20], [10]])
    mixed = Kernel(
        *(np.stack([part[i, n] for i, n in enumerate((30, 20, 10))])[:, None] for part in kernel)
    )
    np.testing.assert_allclose(
        rounds(text.drawn, kernel, M, "token", places), rounds(text.drawn, mixed, M, "token")
    )
    chosen = schedule(kernel, 0.5, M)
    assert list(chosen) == sorted(chosen, reverse=True)
    assert MULTIPLIERS[chosen[-1]] == pytest.approx(0.5, rel=0.06)


def test_a_gain_has_the_error_of_a_jackknife():
    base = pd.Series({"tokens": 2.0, "without": [2.0, 2.1, 1.9]})
    way = pd.Series({"tokens": 2.2, "without": [2.2, 2.31, 2.09]})
    assert gain(way, base) == pytest.approx((0.1, 0.0), abs=1e-12)
    other = pd.Series({"tokens": 2.2, "without": [2.2, 2.4, 2.0]})
    ratios = np.array([2.2, 2.4, 2.0]) / np.array(base["without"])
    assert gain(other, base)[1] == pytest.approx(np.sqrt(2 * np.var(ratios)))


def test_the_page_is_the_recorded_one():
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- rounds -->\n(.*?)\n<!-- end of rounds -->", text, re.S)
    assert table == rounds_table()
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"<!-- worth -->\n(.*?)\n<!-- end of worth -->", readme, re.S)
    assert told == worth()


def test_the_recorded_rows_are_in_order():
    rows = load_rounds()
    assert set(rows["target"]) <= set(TARGETS)
    strict = rows[rows["target"] == 0]
    same = strict.groupby(["draft", "settings", "drafts", "candidates", "verification"])["tokens"]
    assert (same.max() - same.min()).max() < 1e-9  # without loss every way is the verifier's law
    table = gains(rows)
    assert set(table["way"]) & {"blocks", "2 candidates"}
    assert table.loc[table["way"] == "blocks", "gain"].min() > -1e-3
    assert BASE == (1, "token", "multiplier")
