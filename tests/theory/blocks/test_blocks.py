"""Blocks: tests and residuals along a path, the alive mass, the scaled clip, all by enumeration."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from theory import Pair, divergence, make_rule, one_step
from theory.blocks import (
    alive,
    block_residual,
    block_test,
    round_law,
    scaled_clip,
)

P, Q = np.array([0.05, 0.8, 0.15]), np.array([0.3, 0.35, 0.35])
TWO = np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3])


def tree(seed, tokens=3, depth=4, zeros=False):
    """Draft and verifier rows at every prefix."""
    rng = np.random.default_rng(seed)
    rows = {}
    for length in range(depth):
        for prefix in itertools.product(range(tokens), repeat=length):
            p, q = rng.dirichlet(np.full(tokens, 0.7), size=2)
            if zeros:
                p, q = (np.where(rng.random(tokens) < 0.3, 0.0, side) for side in (p, q))
                p, q = (side + (side.sum() == 0) for side in (p, q))
                if rng.random() < 0.2:
                    q = np.eye(tokens)[rng.integers(tokens)]
            rows[prefix] = p / p.sum(), q / q.sum()
    return rows


def kernels(rows):
    return (lambda v: rows[v][0]), (lambda v: rows[v][1])


def sampled_law(rows, drafts):
    """E(v, ·) of the algorithm itself: all drafts, and the uniforms integrated out."""
    draft, target = kernels(rows)
    tokens = len(draft(()))
    found = {}
    for path in itertools.product(range(tokens), repeat=drafts):
        p = np.array([draft(path[:i]) for i in range(drafts)])
        h = np.array([target(path[:i]) for i in range(drafts)])
        weight = np.prod(p[range(drafts), path])
        if weight == 0:
            continue
        accept, scale = block_test(p, h, np.array(path))
        for length in range(drafts, -1, -1):
            # The longest i with U_i < accept_i is this one.
            chance = np.prod(1 - accept[length:]) * (accept[length - 1] if length else 1.0)
            row = (
                target(path)
                if length == drafts
                else block_residual(scale[length], p[length], h[length])
            )
            key = path[:length]
            found[key] = found.get(key, 0.0) + weight * chance * row
    return found


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_the_algorithm_has_the_law_of_the_bounds(drafts, zeros):
    for seed in range(8):
        rows = tree(seed, zeros=zeros)
        draft, target = kernels(rows)
        law = round_law(draft, target, drafts, bonus=target)
        for prefix, row in sampled_law(rows, drafts).items():
            np.testing.assert_allclose(row, law.ends[prefix], rtol=0, atol=1e-13)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_round_is_lossless(verification, zeros):
    for seed in range(6):
        rows = tree(seed, zeros=zeros)
        draft, target = kernels(rows)
        law = round_law(draft, target, 3, verification, bonus=target)
        for text, mass in law.text(target, 4).items():
            wanted = np.prod([target(text[:i])[text[i]] for i in range(4)])
            assert mass == pytest.approx(wanted, abs=1e-13)
        assert sum(row.sum() for row in law.ends.values()) == pytest.approx(1, abs=1e-12)


def test_the_residual_of_the_place_before_is_not_lossless():
    """The control: that rule is far from lossless in the same enumeration."""
    rows = tree(2)
    draft, target = kernels(rows)
    law = round_law(draft, target, 2, bonus=target)
    wrong = dict(law.ends)
    for token in range(3):
        scale = law.alive[(token,)] / draft(())[token]
        row = block_residual(np.array(scale), draft(()), target(()))
        wrong[(token,)] = law.ends[(token,)].sum() * row
    text = type(law)(2, law.alive, wrong).text(target, 2)
    exact = {v: target(())[v[0]] * target(v[:1])[v[1]] for v in text}
    assert 0.5 * sum(abs(text[v] - exact[v]) for v in text) > 0.01


@pytest.mark.parametrize(
    ("rows", "drafts", "token", "block"),
    [((P, Q), 2, 0.8525, 0.9425), ((P, Q), 4, 1.110381, 1.441081), (TWO, 2, 10 / 9, 11 / 9)],
)
def test_golden_accepted_lengths(rows, drafts, token, block):
    draft, target = (lambda v: rows[0]), (lambda v: rows[1])
    for verification, wanted in (("token", token), ("block", block)):
        law = round_law(draft, target, drafts, verification, bonus=target)
        assert law.accepted_length == pytest.approx(wanted, abs=5e-7)


def test_a_certain_draft_gains_nothing_by_blocks():
    rows = {v: (np.eye(3)[len(v) % 3], q) for v, (_, q) in tree(5).items()}
    draft, target = kernels(rows)
    laws = [round_law(draft, target, 3, way, bonus=target) for way in ("token", "block")]
    np.testing.assert_allclose(laws[0].reached, laws[1].reached, atol=1e-15)


def test_no_verification_accepts_more():
    """The programme over all A within both bounds; claims 21 and 22 have that over all laws."""
    for seed in range(4):
        rows = tree(seed, tokens=2)
        draft, target = kernels(rows)
        law = round_law(draft, target, 3, bonus=target)
        for length in (1, 2, 3):
            assert best_reach(draft, target, 3, length) == pytest.approx(
                law.reached[length], abs=1e-8
            )


def best_reach(draft, target, drafts, length):
    """max P(τ ≥ length) over A with A(vy) ≤ p(vy), A(vy) ≤ A(v) h(y|v), A(root) = 1."""
    prefixes = [v for i in range(1, drafts + 1) for v in itertools.product(range(2), repeat=i)]
    index = {v: n for n, v in enumerate(prefixes)}
    cost = np.array([-float(len(v) == length) for v in prefixes])
    drawn = {(): 1.0}
    uneven, limit, bounds = [], [], []
    for v in prefixes:
        drawn[v] = drawn[v[:-1]] * draft(v[:-1])[v[-1]]
        bounds.append((0.0, drawn[v]))
        row = np.zeros(len(prefixes))
        row[index[v]] = 1.0
        share = target(v[:-1])[v[-1]]
        if len(v) > 1:
            row[index[v[:-1]]] = -share
        uneven.append(row)
        limit.append(share if len(v) == 1 else 0.0)
    return -linprog(cost, A_ub=np.array(uneven), b_ub=limit, bounds=bounds).fun


@pytest.mark.parametrize("verification", ["token", "block"])
def test_alive_mass_along_paths_of_any_law(verification):
    rows = tree(9)
    draft, target = kernels(rows)
    law = round_law(draft, target, 3, verification, bonus=target)
    for path in itertools.product(range(3), repeat=3):
        p, h = ([kernel(path[:i])[path[i]] for i in range(3)] for kernel in (draft, target))
        over = np.array([0.2, 0.5, 0.9])
        wanted = np.array([law.alive[path[: i + 1]] for i in range(3)])
        np.testing.assert_allclose(alive(p, h, verification) * np.cumprod(p), wanted, atol=1e-14)
        found = alive(np.array(p), np.array(h), verification, over=over)
        np.testing.assert_allclose(found * np.cumprod(over), wanted, atol=1e-14)


@pytest.mark.parametrize("name", ["cactus", "lenience", "typical", "frontier_corpus"])
def test_what_any_rule_emits_may_stand_for_the_verifier(name):
    rows = tree(11)
    draft, verifier = kernels(rows)
    given = {"cactus": {"delta": 0.1}, "lenience": {"l": 0.5}, "frontier_corpus": {"multiplier": 1}}
    rule = make_rule(name, **given.get(name, {}))
    law_of = {v: one_step(rule, *rows[v]).output for v in rows}
    law = round_law(draft, law_of.__getitem__, 3, bonus=law_of.__getitem__)
    for text, mass in law.text(law_of.__getitem__, 3).items():
        assert mass == pytest.approx(
            np.prod([law_of[text[:i]][text[i]] for i in range(3)]), abs=1e-13
        )
    assert divergence("kl", law_of[()], verifier(())) > 0


def test_torch_batches_and_single_precision():
    rows = tree(1)
    draft, target = kernels(rows)
    paths = list(itertools.product(range(3), repeat=3))
    p = np.array([[draft(v[:i]) for i in range(3)] for v in paths])
    h = np.array([[target(v[:i]) for i in range(3)] for v in paths])
    plain = block_test(p, h, np.array(paths))
    for kind, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        found = block_test(
            torch.tensor(p, dtype=kind), torch.tensor(h, dtype=kind), torch.tensor(paths)
        )
        np.testing.assert_allclose(found.accept.numpy(), plain.accept, atol=tolerance)
        np.testing.assert_allclose(found.scale.numpy(), plain.scale, atol=tolerance)
    alone = block_test(p[5], h[5], np.array(paths[5]))
    np.testing.assert_array_equal(alone.accept, plain.accept[5])


def test_equal_rows_are_accepted_whole():
    same = np.tile(Q, (3, 1))
    accept, scale = block_test(same, same, np.array([0, 1, 2]))
    np.testing.assert_array_equal(accept, 1)
    np.testing.assert_array_equal(scale, 1)
    np.testing.assert_array_equal(block_residual(np.array(1.0), Q, Q), Q)


def test_a_token_that_the_target_lacks_is_never_accepted():
    h = np.array([[0.0, 0.5, 0.5]] * 2)
    accept, _ = block_test(np.tile(P, (2, 1)), h, np.array([0, 0]))
    np.testing.assert_array_equal(accept, 0)


# --- the scaled clip -------------------------------------------------------------------------


def test_the_scaled_clip_is_a_law_with_its_multiplier():
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(9), (2, 6))
    q[1, 2] = 0.0
    q[1] /= q[1].sum()
    scale = rng.uniform(0.3, 1.0, (6, 5))
    scale[:, 0] = 1.0
    multiplier = np.broadcast_to(np.geomspace(0.05, 1.5, 5), (6, 5))
    clip = scaled_clip(Pair.prepare(p, q), scale, multiplier)
    for row, column in itertools.product(range(6), range(5)):
        s, a, b = (part[row, column] for part in (scale, clip.above, clip.below))
        h = np.clip(p[row] / s, b * q[row], a * q[row])
        assert h.sum() == pytest.approx(1, abs=1e-12)
        assert b <= 1 + 1e-12
        assert a >= 1 - 1e-12
        assert clip.spent[row, column] == pytest.approx(divergence("kl", h, q[row]), abs=1e-12)
        clipped = np.any(h < p[row] / s - 1e-12) and np.any(h > p[row] / s + 1e-12)
        if clipped:
            assert np.log(a / b) == pytest.approx(multiplier[row, column], abs=1e-9)


def hostile_rows(rng, width):
    """A distribution with zeros, at times a single token."""
    row = rng.dirichlet(np.full(width, 0.4)) * (rng.random(width) < 0.6)
    row[rng.integers(width)] += 1e-3
    return row / row.sum()


@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-9, 1e-100])
@pytest.mark.parametrize("multiplier", [0.0, 0.1, 5.0, 800.0])
def test_hostile_rows_have_a_scaled_clip(scale, multiplier):
    """Zeros in p and in q, supports apart, equal rows, faint scales: a law, and its divergence."""
    rng = np.random.default_rng(6)
    for width in (1, 2, 3, 5) * 10:
        p, q = hostile_rows(rng, width), hostile_rows(rng, width)
        p = q if rng.random() < 0.2 else p
        ends = np.full((1, 1), scale), np.full((1, 1), multiplier)
        (a,), (b,), (spent,) = (part[0] for part in scaled_clip(Pair.prepare(p, q), *ends))
        with np.errstate(over="ignore"):
            h = np.minimum(np.maximum(p / scale, b * q), a * q)
        assert h.sum() == pytest.approx(1, abs=1e-12)
        assert spent == pytest.approx(float(divergence("kl", h / h.sum(), q)), abs=1e-12)
        if multiplier < 690:
            assert np.log(a) - np.log(b) == pytest.approx(multiplier, abs=1e-12)


def test_at_scale_1_it_is_the_frontier_of_one_multiplier():
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(12), (2, 5))
    for multiplier in (0.1, 0.7, 2.0):
        law = one_step(make_rule("frontier_corpus", multiplier=multiplier), p, q)
        clip = scaled_clip(Pair.prepare(p, q), np.ones((5, 1)), np.full((5, 1), multiplier))
        clipped = np.clip(p, clip.below * q, clip.above * q)
        np.testing.assert_allclose(clipped, law.output, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: block_test(P, Q, np.array([0])), "rows \\[..., m, V\\]"),
        (lambda: block_test(P[None], 2 * Q[None], np.array([0])), "h row 0 sums to 2"),
        (lambda: block_test(P[None], Q[None], np.array([3])), "drafted holds 3"),
        (lambda: block_test(P[None], Q[None], np.array([0.0])), "integer token indices"),
        (lambda: block_test(P[None], Q[None], np.array([0, 1])), "drafted has shape"),
        (lambda: block_test(np.eye(3)[:1], Q[None], np.array([1])), "no mass to the drafted"),
        (lambda: alive([0.5], [0.5], "tree"), "no verification 'tree'"),
        (lambda: alive([0.5], [1.5]), "h_at must lie in"),
        (lambda: alive([0.5], [0.5], over=[0.0]), "over is 0 at a token"),
        (lambda: round_law(lambda v: P, lambda v: Q, 2, "tree", bonus=lambda v: Q), "'tree'"),
        (lambda: round_law(lambda v: P, lambda v: Q, 0, bonus=lambda v: Q), "at least 1, got 0"),
        (lambda: round_law(lambda v: P, lambda v: Q, 40, bonus=lambda v: Q), "too many prefixes"),
    ],
)
def test_bad_input_is_refused_by_name(call, told):
    with pytest.raises(ValueError, match=told):
        call()
