"""The frontier: no rule above it, an independent conic solver on it, one multiplier per corpus."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from theory_strategies import (
    ALL_KINDS,
    EXAMPLES,
    KINDS,
    label,
    normalised,
    pairs,
    rules,
)

from theory import (
    CorpusFrontier,
    Pair,
    divergence,
    frontier_acceptance,
    frontier_step,
    make_rule,
    one_step,
)
from theory.frontier.levels import MULTIPLIERS, CorpusArrays


def dirichlet_pair(rows, width, seed, concentration=0.6):
    rng = np.random.default_rng(seed)
    return tuple(rng.dirichlet(np.full(width, concentration), rows) for _ in range(2))


# --- nothing lies above it ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs(), rule=rules())
def test_no_rule_accepts_more_at_its_own_divergence(kind, pair, rule):
    law = one_step(rule, *pair)
    best = frontier_acceptance(*pair, divergence(kind, law.output, pair[1]), kind)
    assert np.all(best >= law.acceptance - 1e-9)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_no_rule_accepts_more_on_spread_rows(setting):
    p, q = dirichlet_pair(60, 9, seed=1)
    q[:20, 4], p[10:30, 2] = 0, 0
    p, q = normalised(p), normalised(q)
    law = one_step(make_rule(setting[0], **setting[1]), p, q)
    for kind in ALL_KINDS:
        best = frontier_acceptance(p, q, divergence(kind, law.output, q), kind)
        assert np.all(best >= law.acceptance - 1e-9), kind


def test_cactus_leaves_acceptance_on_the_table():
    """The control: the frontier is above cactus by a known amount, and not above itself."""
    p, q = (row[:5] for row in dirichlet_pair(60, 9, seed=1))
    law = one_step(make_rule("cactus", delta=0.1), p, q)
    gap = frontier_acceptance(p, q, divergence("kl", law.output, q)) - law.acceptance
    assert 1e-3 < gap.max() < 0.1
    own = one_step(make_rule("frontier", level=0.05), p, q)
    at_own = frontier_acceptance(p, q, divergence("kl", own.output, q))
    np.testing.assert_allclose(at_own, own.acceptance, rtol=0, atol=1e-9)


# --- the level is met --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs(), level=st.floats(-20, 2).map(math.exp))
def test_the_level_is_never_exceeded(kind, pair, level):
    # Where f grows faster than t log t, the rounding of the mass costs more than any level there.
    steep = kind in ("pearson_chi2", "power:1.5")
    assume(not (steep and np.any((pair[1] > 0) & (pair[1] < 1e-300))))
    law, q = frontier_step(*pair, level, kind), pair[1]
    # b·q of the smallest floats is 0, which costs everything where f(0) is infinite.
    q = np.where((law.output == 0) & (q < 1e-300), 0, q)
    assert np.all(divergence(kind, law.output, q) <= level * (1 + 1e-9) + 1e-15)
    overlap = np.minimum(pair[0], law.output).sum(-1)
    np.testing.assert_allclose(law.acceptance, overlap, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("zeros", [False, True])
def test_the_level_is_used_up_unless_everything_possible_is_accepted(kind, zeros):
    p, q = dirichlet_pair(80, 7, seed=2)
    if zeros:
        q[:, 3], p[:40, 5] = 0, 0
        p, q = normalised(p), normalised(q)
    reachable = 1 - np.where(q == 0, p, 0).sum(-1) if math.isinf(_leak(kind)) else np.ones(80)
    used_up = 0
    for level in (1e-6, 1e-3, 0.05, 0.4, 2.0):
        law = frontier_step(p, q, level, kind)
        inside = law.acceptance < reachable - 1e-12
        found = divergence(kind, law.output, q)[inside]
        np.testing.assert_allclose(found, level, rtol=1e-9)
        used_up += np.count_nonzero(inside)
        np.testing.assert_allclose(law.acceptance[~inside], reachable[~inside], rtol=1e-12)
    assert used_up > 100


def _leak(kind):
    """The divergence of a row that leaves the support of the verifier."""
    return divergence(kind, [0.5, 0.5], [1.0, 0.0])


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs())
def test_level_zero_is_strict_and_no_limit_accepts_everything(kind, pair):
    p, q = pair
    strict = frontier_step(p, q, 0.0, kind)
    np.testing.assert_allclose(strict.output, q, rtol=0, atol=1e-15)
    np.testing.assert_allclose(strict.acceptance, np.minimum(p, q).sum(-1), rtol=0, atol=1e-14)
    free = frontier_step(p, q, math.inf, kind)
    np.testing.assert_allclose(free.output, p, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(free.acceptance, 1)


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(pair=pairs(), ends=st.tuples(*(st.floats(-16, 2).map(math.exp),) * 2))
def test_acceptance_rises_with_the_level_and_is_concave(kind, pair, ends):
    low, high = sorted(ends)
    values = [frontier_acceptance(*pair, level, kind) for level in (low, (low + high) / 2, high)]
    assert np.all(values[0] <= values[2] + 1e-12)
    assert np.all(values[1] >= (values[0] + values[2]) / 2 - 1e-9)


def test_a_faint_verifier_token_does_not_hide_the_root():
    """Rounding makes the divergence infinite at the strict end; the root lies before it."""
    law = one_step(make_rule("mentored", level=0.001), [[0.5, 0.5]], [[1.0, 5e-324]])
    # KL(q‖π) = −log π₁ = level where the rest of the mass is accepted.
    np.testing.assert_allclose(law.output[0, 0], math.exp(-0.001), rtol=1e-12)


@pytest.mark.parametrize("kind", ["reverse_kl", "power:-0.5", "power:-1", "js", "kl"])
@pytest.mark.parametrize("width", [2, 3, 50, 3000])
def test_rows_with_all_their_mass_apart_use_up_the_level(kind, width):
    """TV(p, q) is 1 to rounding: what the clipped donors keep is lost in 1 − m, and is at least q.

    The draft is almost sure of one token and the verifier of another; to both the others are dust.
    """
    rng = np.random.default_rng(22)
    for dust in 10.0 ** rng.uniform(-19, -8, size=(8, 2)):
        p, q = rng.random((2, width)) * dust[:, None] / width
        p[0], q[1] = 1.0 - p[1:].sum(), 1.0 - q[0] - q[2:].sum()
        for level in (0.01, 0.1, 0.3):
            law = frontier_step(p, q, level, kind)
            spent = divergence(kind, law.output, q)
            np.testing.assert_allclose(spent, level, rtol=2e-6)


@given(pair=pairs(), level=st.floats(-12, 1).map(math.exp))
def test_acceptance_alone_is_that_of_the_law(pair, level):
    for kind in KINDS:
        law, alone = frontier_step(*pair, level, kind), frontier_acceptance(*pair, level, kind)
        np.testing.assert_allclose(alone, law.acceptance, rtol=0, atol=1e-15)


def test_a_level_for_every_row():
    p, q = dirichlet_pair(3, 5, seed=3)
    levels = np.array([0.0, 0.05, math.inf])
    together = frontier_step(p, q, levels)
    for row, level in enumerate(levels):
        alone = frontier_step(p[row], q[row], level)
        np.testing.assert_allclose(together.output[row], alone.output, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_rows_that_are_found_at_once_do_not_disturb_the_others(kind):
    """Rows without limit, without distance, of one token, and of faint ones, beside a plain one."""
    p = np.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.5, 0.5, 0], [1, 0, 0], [1, 5e-324, 1e-310]])
    q = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.5, 0], [0, 0, 1], [1, 0, 0]])
    levels = np.array([0.01, math.inf, 0.05, 0.1, 0.1])
    together = frontier_step(p, q, levels, kind)
    for row, level in enumerate(levels):
        alone = frontier_step(p[row], q[row], level, kind)
        np.testing.assert_allclose(together.acceptance[row], alone.acceptance, rtol=0, atol=1e-13)
        np.testing.assert_allclose(together.output[row], alone.output, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (-0.1, r"level .*-0\.1"),
        (math.nan, "level .*nan"),
        ([0.1, -2.0], r"level .*-2\.0 at index 1"),
    ],
)
def test_bad_levels_are_refused(level, message):
    p, q = dirichlet_pair(2, 4, seed=4)
    for solve in (frontier_step, frontier_acceptance):
        with pytest.raises(ValueError, match=message):
            solve(p, q, level)


# --- an independent solver ---------------------------------------------------------------------


def conic(kind, p, q, level):
    """The best acceptance by cvxpy: maximise Σ min(p, h) subject to D(h‖q) ≤ level."""
    cp = pytest.importorskip("cvxpy")
    h = cp.Variable(p.size, nonneg=True)
    middle = (h + q) / 2
    spent = {
        "kl": lambda: cp.sum(cp.kl_div(h, q)),
        "reverse_kl": lambda: cp.sum(cp.kl_div(q, h)),
        "pearson_chi2": lambda: cp.sum(cp.multiply(1 / q, cp.square(h - q))),
        "total_variation": lambda: cp.norm1(h - q) / 2,
        "squared_hellinger": lambda: 1 - cp.sum(cp.multiply(np.sqrt(q), cp.sqrt(h))),
        "jensen_shannon": lambda: (
            (cp.sum(cp.rel_entr(h, middle)) + cp.sum(cp.rel_entr(q, middle))) / 2
        ),
    }[kind]()
    problem = cp.Problem(cp.Maximize(cp.sum(cp.minimum(p, h))), [cp.sum(h) == 1, spent <= level])
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "level"), [(5, 0.03), (6, 0.1)])
def test_a_conic_solver_finds_the_same_optimum(kind, seed, level):
    p, q = (row[0] for row in dirichlet_pair(1, 12, seed, concentration=0.8))
    best = frontier_acceptance(p, q, level, kind)
    assert np.minimum(p, q).sum() + 0.01 < best < 1
    np.testing.assert_allclose(best, conic(kind, p, q, level), rtol=0, atol=1e-5)


# --- lenience (claim 16) -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_lenience_accepts_like_the_frontier_that_clips_at_the_same_factor(kind):
    p, q = dirichlet_pair(40, 8, seed=7)
    law = frontier_step(p, q, 0.02, kind)
    checked = 0
    for row in range(40):
        lowered = p[row] > law.output[row] * (1 + 1e-9)
        if np.any(lowered):
            factor = (law.output[row] / q[row])[lowered].max()
            lenient = one_step(make_rule("lenience", l=1 / factor), p[row], q[row])
            np.testing.assert_allclose(lenient.acceptance, law.acceptance[row], rtol=0, atol=1e-12)
            checked += 1
    assert checked > 30


# --- a corpus with a mean budget (claim 17) ----------------------------------------------------

MIXED = dirichlet_pair(40, 6, seed=8)
MIXED[1][:10] = normalised(MIXED[0][:10] + 0.02)
LEVELS = (1e-5, 1e-3, 0.02, 0.1, 0.5)


def corpus(p, q, kind="kl", parts=1):
    found = CorpusFrontier(kind)
    for rows in np.array_split(np.arange(len(p)), parts):
        found.add(Pair.prepare(p[rows], q[rows]))
    return found


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_corpus_of_one_position_is_the_frontier_there(kind, level):
    p, q = MIXED[0][20:21], MIXED[1][20:21]
    exact = frontier_acceptance(p, q, level, kind)[0]
    np.testing.assert_allclose(corpus(p, q, kind).acceptance(level), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_multiplier_beats_equal_budgets(kind):
    found = corpus(*MIXED, kind)
    gains = [
        found.acceptance(level) - frontier_acceptance(*MIXED, level, kind).mean()
        for level in LEVELS
    ]
    assert min(gains) > -2e-6
    assert max(gains) > 1e-3


def test_one_multiplier_is_shared_by_all_positions():
    """For KL a/b is constant over the corpus; a direct search over it gives the same optimum."""
    p, q = MIXED
    found = corpus(p, q)
    for log_ratio in (0.3, 1.0, 2.0):
        laws = [_clip_with_ratio(*rows, log_ratio) for rows in zip(p, q)]
        level = np.mean([divergence("kl", law, row) for law, row in zip(laws, q)])
        accepted = np.mean([np.minimum(law, row).sum() for law, row in zip(laws, p)])
        np.testing.assert_allclose(found.acceptance(level), accepted, rtol=0, atol=2e-6)


def _clip_with_ratio(p, q, log_ratio):
    """clip(p, bq, aq) with a = b·e^log_ratio and b ≤ 1 ≤ a, by bisection over b."""
    low, high = math.exp(-log_ratio), 1.0
    for _ in range(100):
        b = (low + high) / 2
        mass = np.clip(p, b * q, b * math.exp(log_ratio) * q).sum()
        low, high = (b, high) if mass < 1 else (low, b)
    return np.clip(p, b * q, b * math.exp(log_ratio) * q)


@pytest.mark.parametrize("kind", ["kl", "reverse_kl", "jensen_shannon"])
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_no_rule_is_above_the_corpus_frontier(kind, setting):
    p, q = MIXED
    law = one_step(make_rule(setting[0], **setting[1]), p, q)
    realised = divergence(kind, law.output, q)
    bound = CORPORA[kind].bound(realised)
    assert bound.shape == (40,)
    assert bound.mean() >= law.acceptance.mean() - 2e-6
    expected = CORPORA[kind].acceptance(realised.mean())
    np.testing.assert_allclose(bound.mean(), expected, rtol=0, atol=1e-12)


CORPORA = {kind: corpus(*MIXED, kind) for kind in ("kl", "reverse_kl", "jensen_shannon")}


def test_streaming_and_merging_are_one_batch():
    whole, streamed = corpus(*MIXED), corpus(*MIXED, parts=7)
    left, right = corpus(*(side[:15] for side in MIXED)), corpus(*(side[15:] for side in MIXED))
    left.merge(right)
    realised = np.linspace(0, 0.1, 40)
    for other in (streamed, left):
        assert other.positions == whole.positions == 40
        np.testing.assert_allclose(other.bound(realised), whole.bound(realised), rtol=0, atol=1e-12)
        for mine, theirs in zip(other.curve(), whole.curve()):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def test_the_curve_starts_strict_and_rises():
    levels, acceptances = corpus(*MIXED).curve()
    assert levels[0] == 0
    np.testing.assert_allclose(acceptances[0], np.minimum(*MIXED).sum(-1).mean(), rtol=1e-12)
    assert np.all(np.diff(levels) >= 0)
    assert np.all(np.diff(acceptances) >= -1e-12)
    np.testing.assert_allclose(acceptances[-1], 1, rtol=1e-12)
    found = [corpus(*MIXED).acceptance(level) for level in (0.0, 10.0, math.inf)]
    np.testing.assert_allclose(found, [acceptances[0], 1, 1], rtol=1e-9)


def test_a_corpus_comes_back_from_its_arrays():
    found = corpus(*MIXED)
    accepted, spent, ends = found.arrays()
    assert accepted.shape == spent.shape == (40, len(MULTIPLIERS))
    np.testing.assert_allclose(ends[:, 0], np.minimum(*MIXED).sum(-1), rtol=1e-12)
    fortran = CorpusArrays(*map(np.asfortranarray, found.arrays()))
    again = CorpusFrontier.from_arrays(fortran)
    assert again.positions == found.positions
    for level in (0.0, 1e-3, 0.1, 10.0):
        assert again.acceptance(level) == found.acceptance(level)
    for one, other in zip(again.curve(), found.curve()):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="arrays of a corpus have shapes"):
        CorpusFrontier.from_arrays(CorpusArrays(accepted, spent[:3], ends))
    with pytest.raises(ValueError, match="arrays of a corpus have shapes"):
        CorpusFrontier.from_arrays(CorpusArrays(accepted[:, 1:], spent, ends))
    with pytest.raises(ValueError, match="the corpus is empty"):
        CorpusFrontier().arrays()


def test_a_corpus_refuses_what_does_not_fit():
    found = corpus(*MIXED)
    with pytest.raises(ValueError, match="cannot merge a frontier of reverse_kl into one of kl"):
        found.merge(CorpusFrontier("reverse_kl"))
    with pytest.raises(ValueError, match=r"realised has shape \(3,\), the corpus has 40 positions"):
        found.bound(np.zeros(3))
    with pytest.raises(ValueError, match="level must be at least 0, got -1"):
        found.acceptance(-1)
    with pytest.raises(ValueError, match="the corpus is empty"):
        CorpusFrontier().acceptance(0.1)
