"""Drafted trees: their law against all trees, one tree as a decoder runs it, the best there is."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from theory import make_rule, one_step
from theory.blocks import (
    TREE_SCHEMES,
    TREE_VERIFICATIONS,
    RoundLaw,
    block_residual,
    block_test,
    round_law,
    traverse,
    tree_law,
)
from theory.candidates import one_by_one
from theory.ledger.derivations import tree_rounds
from theory.ledger.derivations.candidate_sets import candidate_sets, strict_optimum

P, Q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
ROUND_OF = {"traversal": "block", "one_by_one": "token"}
FALSE_FAIL = 1e-6


def kernels(seed, tokens=3, depth=3, *, zeros=False):
    """Draft and target rows at every prefix."""
    rng = np.random.default_rng(seed)
    rows = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(tokens), repeat=length):
            p, h = rng.dirichlet(np.full(tokens, 0.8), size=2)
            if zeros:
                p, h = (np.where(rng.random(tokens) < 0.3, 0.0, side) for side in (p, h))
                p, h = (side + (side.sum() == 0) for side in (p, h))
            rows[prefix] = p / p.sum(), h / h.sum()
    return (lambda v: rows[v][0]), (lambda v: rows[v][1])


def same(row):
    return lambda v: np.array(row)


def off(law, target, length):
    """The largest error of a text of some length beside the product of the target."""
    texts, tokens = law.text(target, length), range(len(target(())))
    return max(
        abs(texts.get(v, 0.0) - np.prod([target(v[:i])[v[i]] for i in range(length)]))
        for v in itertools.product(tokens, repeat=length)
    )


# --- the law -----------------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("scheme", TREE_SCHEMES)
@pytest.mark.parametrize("verification", TREE_VERIFICATIONS)
def test_one_child_at_every_node_is_a_round_of_one_path(verification, scheme, zeros):
    for seed in range(6):
        draft, target = kernels(seed, zeros=zeros)
        law = tree_law(draft, target, 3, 1, scheme, verification, bonus=target)
        wanted = round_law(draft, target, 3, ROUND_OF[verification], bonus=target)
        assert law.alive.keys() == wanted.alive.keys()
        for prefix, row in wanted.ends.items():
            np.testing.assert_allclose(law.ends[prefix], row, rtol=0, atol=1e-14)
            assert law.alive[prefix] == pytest.approx(wanted.alive[prefix], abs=1e-14)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("scheme", TREE_SCHEMES)
@pytest.mark.parametrize("verification", TREE_VERIFICATIONS)
def test_a_round_is_lossless(verification, scheme, zeros):
    for seed, count in itertools.product(range(3), (2, 3)):
        draft, target = kernels(seed, zeros=zeros)
        law = tree_law(draft, target, 2, count, scheme, verification, bonus=target)
        assert off(law, target, 3) < 1e-14
        assert sum(row.sum() for row in law.ends.values()) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("scheme", TREE_SCHEMES)
def test_what_a_rule_emits_may_stand_for_the_verifier(scheme):
    draft, verifier = kernels(4)
    rule = make_rule("cactus", delta=0.2)

    def target(prefix):
        return one_step(rule, draft(prefix), verifier(prefix)).output

    law = tree_law(draft, target, 2, 2, scheme, bonus=target)
    assert off(law, target, 3) < 1e-14
    assert off(law, verifier, 3) > 0.01  # the control: another law is told apart


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("scheme", TREE_SCHEMES)
def test_the_law_is_that_of_all_drafted_trees(scheme, zeros):
    sizes = [(2, 2, 2), (3, 1, 2), (2, 1, 3), (3, 2, 2)]
    for seed, (tokens, drafts, count) in enumerate(sizes):
        draft, target = kernels(seed, tokens, zeros=zeros)
        bonus = same(np.full(tokens, 1 / tokens))
        asked = draft, target, drafts, count, scheme
        for verification, of_trees in (
            ("traversal", tree_rounds.tree_rounds),
            ("one_by_one", tree_rounds.one_by_one),
        ):
            law = tree_law(*asked, verification, bonus=bonus)
            exact = of_trees(*asked, bonus)
            for prefix, row in law.ends.items():
                np.testing.assert_allclose(row, exact.get(prefix, 0.0), rtol=0, atol=1e-14)
        last = (0,) * drafts
        np.testing.assert_allclose(law.ends[last], law.alive[last] / tokens, atol=1e-15)


@pytest.mark.parametrize("scheme", TREE_SCHEMES)
@pytest.mark.parametrize("verification", TREE_VERIFICATIONS)
def test_one_place_is_one_by_one(verification, scheme):
    for seed, count in itertools.product(range(5), (1, 2, 3)):
        draft, target = kernels(seed, 4, 0)
        law = tree_law(draft, target, 1, count, scheme, verification, bonus=same(np.full(4, 0.25)))
        wanted = one_by_one(draft(()), target(()), count, replace=scheme == "independent")
        assert law.accepted_length == pytest.approx(float(wanted), abs=1e-14)


def test_children_beyond_the_tokens_of_the_draft_are_not_there():
    asked = same([0.4, 0.6, 0.0]), same(Q), 2
    few, many = (tree_law(*asked, n, "without_replacement", bonus=same(Q)) for n in (2, 9))
    assert few.alive == many.alive


# --- what is best ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "tokens", "drafts", "count", "trees"),
    [
        ("independent", 2, 2, 2, 6),
        ("without_replacement", 3, 2, 2, 6),
        pytest.param("independent", 2, 3, 2, 30, marks=pytest.mark.nightly),
        pytest.param("independent", 3, 2, 2, 30, marks=pytest.mark.nightly),
        pytest.param("without_replacement", 4, 2, 2, 30, marks=pytest.mark.nightly),
    ],
)
def test_no_law_is_above_the_programme(scheme, tokens, drafts, count, trees):
    gaps = []
    for seed in range(trees):
        draft, target = kernels(seed, tokens, drafts)
        asked = draft, target, drafts, count, scheme
        best = tree_rounds.longest(*asked)
        laws = [tree_law(*asked, way, bonus=target) for way in TREE_VERIFICATIONS]
        gaps.append([best - law.accepted_length for law in laws])
    assert np.min(gaps) > 1e-4  # none is above it, and none of these reaches it


def test_the_programme_knows_blocks_and_several_candidates():
    for seed in range(3):
        draft, target = kernels(seed)
        block = round_law(draft, target, 2, bonus=target).accepted_length
        chain = tree_rounds.longest(draft, target, 2, 1, "independent")
        assert chain == pytest.approx(block, abs=1e-8)
        for scheme in TREE_SCHEMES:
            p, h = draft(()), target(())
            best = strict_optimum(candidate_sets(p, 2, scheme), h)
            assert tree_rounds.longest(draft, target, 1, 2, scheme) == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("zeros", [False, True])
def test_independent_children_are_accepted_at_every_prefix_at_least_as_often(zeros):
    more = 0.0
    for seed, (tokens, drafts, count) in enumerate(
        [(2, 3, 2), (3, 2, 3), (4, 2, 2), (2, 4, 2)] * 3
    ):
        draft, target = kernels(seed, tokens, drafts, zeros=zeros)
        laws = [tree_law(draft, target, drafts, count, "independent", verification, bonus=target)
                for verification in TREE_VERIFICATIONS]  # fmt: skip
        gains = [laws[0].alive[v] - laws[1].alive[v] for v in laws[0].alive]
        assert min(gains) > -1e-14
        more = max(more, *gains)
    assert more > 0.01


EVEN, QUARTER = same([0.5, 0.5]), same([0.25, 0.75])


def by_place(first, behind):
    return lambda v: np.array(behind if v else first) / sum(behind if v else first)


WORSE = by_place([1, 0, 0, 0], [1, 1, 10, 0]), by_place([1, 1, 0, 0], [6, 1, 0, 5])


@pytest.mark.parametrize(
    ("rows", "drafts", "scheme", "verification", "accepted"),
    [
        ((EVEN, QUARTER), 1, "independent", "traversal", 7 / 8),
        ((EVEN, QUARTER), 2, "independent", "traversal", 107 / 64),
        ((same(P), same(Q)), 1, "independent", "traversal", 0.64),
        ((same(P), same(Q)), 1, "without_replacement", "traversal", 0.8625),
        ((same(P), same(Q)), 2, "independent", "traversal", 1.136475),
        (WORSE, 2, "without_replacement", "one_by_one", 19 / 24),
        (WORSE, 2, "without_replacement", "traversal", 19 / 24 - 23 / 5544),
    ],
)
def test_golden_accepted_lengths(rows, drafts, scheme, verification, accepted):
    law = tree_law(*rows, drafts, 2, scheme, verification, bonus=rows[1])
    assert law.accepted_length == pytest.approx(accepted, abs=1e-14)


# --- one drafted tree --------------------------------------------------------------------------


def arrays(tree, draft, target):
    """(prefix of each node, p, h, parents, tokens) of a tree of nested tuples, level by level."""
    prefixes, parents, level = [()], [0], [(0, tree)]
    while level:
        children = [(node, *child) for node, below in level for child in below]
        level = []
        for node, token, below in children:
            level.append((len(prefixes), below))
            prefixes.append((*prefixes[node], token))
            parents.append(node)
    inner = max([node + 1 for node in parents], default=1)
    p = np.array([draft(v) for v in prefixes[:inner]])
    h = np.array([target(v) for v in prefixes])
    return prefixes, p, h, parents, [v[-1] if v else -1 for v in prefixes]


def integrated(tree, draft, target, scheme, found, weight):
    """Add E(v, ·) of one tree, the uniforms integrated out by the chances that are told."""
    prefixes, *given = arrays(tree, draft, target)
    failing = np.ones(len(prefixes))
    last = traverse(*given, failing, scheme)
    for node, chance in last.tests:
        uniforms = failing.copy()
        uniforms[node] = 0.0
        if chance > 0:
            passed = traverse(*given, uniforms, scheme)
            assert passed.path[-1] == node
            key = prefixes[node]
            found[key] = found.get(key, 0.0) + weight * chance * np.asarray(passed.law)
        weight *= 1 - chance
    assert last.path == () or weight == 0
    found[()] = found.get((), 0.0) + weight * np.asarray(last.law)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("scheme", TREE_SCHEMES)
def test_a_drafted_tree_is_traversed_by_the_law(scheme, zeros):
    for seed, (tokens, drafts, count) in enumerate([(2, 2, 2), (3, 1, 3), (3, 2, 2)]):
        draft, target = kernels(seed, tokens, drafts, zeros=zeros)
        law, found = tree_law(draft, target, drafts, count, scheme, bonus=target), {}
        for tree, weight in tree_rounds.drafted_trees(draft, drafts, count, scheme):
            integrated(tree, draft, target, scheme, found, weight)
        for prefix, row in law.ends.items():
            np.testing.assert_allclose(found.get(prefix, 0.0), row, rtol=0, atol=1e-13)


def prune(tree, drop):
    """The tree without what is below the second child of the root, and without some children."""
    kept = [child for child in tree if not drop(child)]
    return tuple((token, below if place == 0 else ()) for place, (token, below) in enumerate(kept))


def test_nodes_may_have_fewer_children_but_not_for_their_tokens():
    draft, target = kernels(5, 2)
    for drop, lossless in ((lambda child: False, True), (lambda child: child[0] == 0, False)):
        found = {}
        for tree, weight in tree_rounds.drafted_trees(draft, 2, 2, "independent"):
            integrated(prune(tree, drop), draft, target, "independent", found, weight)
        assert (off(RoundLaw(2, {}, found), target, 3) < 1e-14) == lossless


def sample(draft, target, scheme, rounds, rng, *, wrong=False):
    """Counts of (accepted prefix, next token) over drafted trees of depth 2 with two children."""
    trees, weights = zip(*tree_rounds.drafted_trees(draft, 2, 2, scheme))
    counts = {}
    for drawn in rng.choice(len(trees), rounds, p=weights):
        prefixes, *given = arrays(trees[drawn], draft, target)
        done = traverse(*given, rng.random(len(prefixes)), scheme, validate=False)
        end = prefixes[done.path[-1]] if done.path else ()
        law = target(end) if wrong else done.law
        key = end, int(rng.choice(len(law), p=law))
        counts[key] = counts.get(key, 0) + 1
    return counts


def chance_of(counts, law):
    """The chi-square p-value of counts beside E(v, y); rare cells are one."""
    cells = [(v, y) for v, row in law.ends.items() for y in range(len(row))]
    seen = np.array([counts.get(cell, 0) for cell in cells])
    wanted = np.array([law.ends[v][y] for v, y in cells]) * sum(counts.values())
    rare = wanted < 5
    assert wanted[rare].sum() > 1
    return chisquare(*(np.append(side[~rare], side[rare].sum()) for side in (seen, wanted))).pvalue


@pytest.mark.parametrize("scheme", TREE_SCHEMES)
def test_samples_have_the_law_and_a_wrong_residual_does_not(scheme):
    """Chi-square at a false-fail rate of 1e-6; the next token from the target's row must fail."""
    draft, target = kernels(7)
    law = tree_law(draft, target, 2, 2, scheme, bonus=target)
    rng = np.random.default_rng(28)
    assert chance_of(sample(draft, target, scheme, 4000, rng), law) > FALSE_FAIL
    assert chance_of(sample(draft, target, scheme, 4000, rng, wrong=True), law) < FALSE_FAIL


def test_a_single_path_has_the_tests_of_a_block():
    rng = np.random.default_rng(2)
    p, h = rng.dirichlet(np.ones(5), (2, 5))
    path = np.array([3, 3, 4, 1])
    block = block_test(p[:4], h[:4], path)
    assert np.all(block.accept > 0)
    for length in range(5):
        uniforms = np.where(np.arange(5) == length, 0.0, 1.0)
        done = traverse(p[:4], h, [0, 0, 1, 2, 3], [-1, *path], uniforms)
        assert done.path == tuple(range(1, length + 1))
        for node, chance in done.tests:
            assert chance == pytest.approx(block.accept[node - 1], abs=1e-14)
        left = block_residual(block.scale[length], p[length], h[length]) if length < 4 else h[4]
        np.testing.assert_allclose(done.law, left, atol=1e-14)


@pytest.mark.parametrize("scheme", TREE_SCHEMES)
def test_tensors_and_single_precision(scheme):
    draft, target = kernels(3)
    tree = ((0, ((1, ()), (2, ()))), (2, ((0, ()), (1, ()))))
    _, p, h, parents, tokens = arrays(tree, draft, target)
    p.flags.writeable = h.flags.writeable = False  # nothing is written into what is given
    plain = traverse(p, h, parents, tokens, np.ones(7), scheme)
    assert len(plain.tests) == 6
    for kind, tolerance in ((torch.float64, 1e-15), (torch.float32, 1e-6)):
        rows = (torch.tensor(side, dtype=kind) for side in (p, h))
        numbers = torch.tensor(parents), torch.tensor(tokens), torch.ones(7)
        found = traverse(*rows, *numbers, scheme)
        assert found.law.dtype == torch.float64
        np.testing.assert_allclose(found.law.numpy(), plain.law, rtol=0, atol=tolerance)
        for (node, chance), (wanted, exact) in zip(found.tests, plain.tests, strict=True):
            assert node == wanted
            assert chance == pytest.approx(exact, abs=tolerance)


def test_no_children_at_all_is_a_draw_from_the_target():
    done = traverse(np.zeros((0, 3)), Q[None], [0], [-1], [0.5])
    assert done.path == done.tests == ()
    np.testing.assert_array_equal(done.law, Q)


def test_equal_rows_accept_the_first_leaf():
    done = traverse(Q[None], np.tile(Q, (3, 1)), [0, 0, 0], [0, 1, 2], [0.0, 0.999, 0.0])
    assert done.path == (1,)
    np.testing.assert_array_equal(done.law, Q)


# --- bad input ---------------------------------------------------------------------------------

THREE, APART = np.tile(Q, (3, 1)), {"scheme": "without_replacement"}


def verify(p=P[None], h=THREE, parents=(0, 0, 0), tokens=(0, 1, 2), uniforms=(0, 0, 0), **rest):
    return traverse(p, h, parents, tokens, uniforms, **rest)


def law_of(drafts=2, count=2, scheme="independent", verification="traversal"):
    return tree_law(same(P), same(Q), drafts, count, scheme, verification, bonus=same(Q))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: law_of(drafts=0), "drafts must be an integer of at least 1, got 0"),
        (lambda: law_of(count=True), "count must be an integer of at least 1, got True"),
        (lambda: law_of(scheme="greedy"), "no scheme 'greedy' for trees; there are independent"),
        (lambda: law_of(verification="block"), "no verification 'block' of trees"),
        (lambda: law_of(drafts=7), "3 tokens, 2 children and 7 drafts are too many nodes"),
        (lambda: law_of(count=10**30), "are too many nodes; at most 200000"),
        (lambda: law_of(8, 10**9, "without_replacement"), "children and 8 drafts are too many"),
        (lambda: verify(scheme="likeliest"), "no scheme 'likeliest' for trees"),
        (lambda: verify(p=P), r"p and h must be \[M, V\] and \[N, V\]"),
        (lambda: verify(p=np.tile(P, (4, 1))), r"of M <= N nodes, got \(\(4, 3\), \(3, 3\)\)"),
        (lambda: verify(h=THREE[:, :2]), r"got \(\(1, 3\), \(3, 2\)\)"),
        (lambda: verify(h=2 * THREE), "h row 0 sums to 2"),
        (lambda: verify(p=-P[None]), "p row 0 has the negative entry"),
        (lambda: verify(parents=(0, 0)), "parents has 2 entries for 3 nodes"),
        (lambda: verify(uniforms=(0, 0, 1.5)), r"uniforms must lie in \[0, 1\], got 1.5"),
        (lambda: verify(uniforms=(0, 0, np.nan)), r"uniforms must lie in \[0, 1\], got nan"),
        (lambda: verify(parents=(0, 0, 2)), r"parents\[2\] = 2 is no node before it"),
        (lambda: verify(parents=(0, 0, 1)), r"parents\[2\] = 1 has no row in p, which has 1"),
        (lambda: verify(tokens=(0, 1, 3)), r"tokens\[2\] = 3, no token index in \[0, 2\]"),
        (lambda: verify(tokens=(0, 1.0, 2)), "tokens must be a row of integers"),
        (lambda: verify(p=np.eye(3)[:1]), r"tokens\[1\] = 1 has no mass in p\[0\]"),
        (lambda: verify(tokens=(0, 1, 1), **APART), r"tokens\[2\] = 1 was drawn before, by a sib"),
    ],
)
def test_bad_input_is_refused_by_name(call, told):
    with pytest.raises(ValueError, match=told):
        call()
