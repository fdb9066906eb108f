"""What enters theory: numbers of every kind beside every kind of rows; what is refused by name."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from theory_strategies import EXAMPLES, label

from theory import (
    CorpusFrontier,
    Pair,
    candidate_target,
    certified_divergence,
    certifying_budget,
    divergence,
    frontier_acceptance,
    frontier_step,
    make_rule,
    one_step,
    optimal_gamma,
    second_order_gamma,
)

P = np.array([[0.05, 0.80, 0.15], [0.2, 0.5, 0.3]])
Q = np.array([[0.30, 0.35, 0.35], [0.1, 0.1, 0.8]])
TORCH = torch.tensor(P), torch.tensor(Q)
KINDS = {
    "float64": np.float64,
    "float32": np.float32,
    "int64": lambda value: np.int64(round(value)),
    "0-d array": np.asarray,
    "0-d tensor": lambda value: torch.tensor(value, dtype=torch.float64),
    "0-d float32 tensor": lambda value: torch.tensor(value, dtype=torch.float32),
    "fraction": Fraction,
}


def plain(value):
    """The Python number that a number of any kind stands for."""
    return value.item() if hasattr(value, "item") else float(value)


def numbers(parameters, kind):
    """The parameters with their numbers as another kind, and as Python's."""
    chosen = {
        name: kind(value) if type(value) in (int, float) else value
        for name, value in parameters.items()
    }
    for name in ("k", "n"):
        if name in chosen:
            chosen[name] = np.int64(parameters[name])
    told = {n: v if isinstance(v, str | bool) else plain(v) for n, v in chosen.items()}
    return chosen, told


@pytest.mark.parametrize("rows", [(P, Q), TORCH], ids=["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_parameter_of_any_kind_goes_beside_any_rows(setting, kind, rows):
    name, parameters = setting
    chosen, told = numbers(parameters, KINDS[kind])
    try:
        expected = make_rule(name, **told)
    except ValueError:  # rounded to a whole number it is out of range
        with pytest.raises(ValueError, match="must lie in"):
            make_rule(name, **chosen)
        return
    rule = make_rule(name, **chosen)
    assert rule == expected
    assert all(type(v) in (int, float, str, bool) for v in rule.parameters.values())
    found, law = one_step(rule, *rows), one_step(expected, P, Q)
    assert type(found.output) is type(rows[0])
    np.testing.assert_allclose(np.asarray(found.output), law.output, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(rule.accept_prob(*rows)), rule.accept_prob(P, Q))
    np.testing.assert_allclose(
        np.asarray(rule.recovery(*rows, np.int64(1))), rule.recovery(P, Q, 1), atol=1e-15
    )


FUNCTIONS = {
    "optimal_gamma": lambda p, q, d: optimal_gamma(q, d).value,
    "second_order_gamma": lambda p, q, d: second_order_gamma(q, d).value,
    "candidate_target": lambda p, q, d: candidate_target(q[0], np.int64(1), d),
    "frontier_step": lambda p, q, d: frontier_step(p, q, d).output,
    "frontier_acceptance": lambda p, q, d: frontier_acceptance(p, q, d),
    "certifying_budget": lambda p, q, d: certifying_budget(q, d),
}


@pytest.mark.parametrize("rows", [(P, Q), TORCH], ids=["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_budget_of_any_kind_goes_beside_any_rows(name, kind, rows):
    budget = KINDS[kind](0.125)
    found = FUNCTIONS[name](*rows, budget)
    expected = FUNCTIONS[name](P, Q, plain(budget))
    assert type(found) is type(rows[0]) or (found.ndim == 0 and isinstance(rows[0], np.ndarray))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)


def test_a_budget_per_row_may_be_of_another_library():
    assert isinstance(optimal_gamma(TORCH[1], torch.tensor(0.1)).value, torch.Tensor)
    with pytest.raises(ValueError, match="arrays of one library are needed"):
        frontier_step(*TORCH, np.array([0.1, 0.2]))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_corpus_takes_a_level_of_any_kind(kind):
    corpus = CorpusFrontier()
    corpus.add(Pair.prepare(*TORCH))
    level = KINDS[kind](0.125)
    assert corpus.acceptance(level) == corpus.acceptance(plain(level))
    realised = torch.tensor([0.1, 0.2], dtype=torch.float64)
    np.testing.assert_array_equal(corpus.bound(realised), corpus.bound([0.1, 0.2]))


MASKED = np.ma.array(P, mask=[[True, False, False], [False] * 3])
UNFIT = {
    "masked": (MASKED, "masked"),
    "list of masked": (list(MASKED), "masked"),
    "nested": ([[MASKED[0]], [MASKED[1]]], "masked"),
    "complex": (P + 0j, "complex"),
    "complex list": ((P + 0j).tolist(), "complex"),
    "complex tensor": (torch.tensor(P + 0j), "complex"),
    "text": (P.astype(str), "dtype"),
    "objects": (P.astype(object), "dtype"),
}
SPS = make_rule("sps")


def beside(bad):
    return TORCH if isinstance(bad, torch.Tensor) else (P, Q)


@pytest.mark.parametrize("bad", UNFIT, ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda bad, p, q: one_step(SPS, bad, q),
        lambda bad, p, q: one_step(SPS, p, bad),
        lambda bad, p, q: one_step(SPS, p, q, p_raw=bad, q_raw=q),
        lambda bad, p, q: one_step(SPS, bad, q, validate=False),
        lambda bad, p, q: SPS.accept_prob(bad, q),
        lambda bad, p, q: SPS.recovery(p, bad, 0),
        lambda bad, p, q: divergence("kl", bad, q),
        lambda bad, p, q: divergence("kl", p, bad),
        lambda bad, p, q: optimal_gamma(bad, 0.1),
        lambda bad, p, q: optimal_gamma(q, bad),
        lambda bad, p, q: frontier_step(bad, q, 0.1),
        lambda bad, p, q: frontier_step(p, q, bad),
        lambda bad, p, q: certified_divergence(bad, make_rule("cactus", delta=0.1)),
        lambda bad, p, q: certifying_budget(q, bad),
        lambda bad, p, q: candidate_target(bad, 0, 0.5),
        lambda bad, p, q: candidate_target(q[0], 0, bad),
    ],
)
def test_what_is_no_plain_real_array_is_refused(call, bad):
    values, message = UNFIT[bad]
    with pytest.raises(ValueError, match=message) as told:
        call(values, *beside(values))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("bad", [np.ma.masked, 1j, np.complex128(1), np.array([0.1]), "0.1", [0.1]])
def test_a_parameter_is_one_real_number(bad):
    with pytest.raises(ValueError, match="delta must be a number, got"):
        make_rule("cactus", delta=bad)


@pytest.mark.parametrize("name", ["indices", "realised", "arrays"])
def test_masked_arrays_are_refused_where_integers_and_levels_enter(name):
    corpus = CorpusFrontier()
    corpus.add(Pair.prepare(P, Q))
    masked = np.ma.array([1, 0], mask=[True, False])
    calls = {
        "indices": lambda: SPS.recovery(P, Q, masked),
        "realised": lambda: corpus.bound(masked),
        "arrays": lambda: CorpusFrontier.from_arrays(
            corpus.arrays()._replace(ends=np.ma.array(np.ones((2, 2)), mask=True))
        ),
    }
    with pytest.raises(ValueError, match="masked"):
        calls[name]()


def test_a_target_is_made_of_one_distribution():
    for bad in (Q, Q[0] * 1.1, np.array([0.5, math.nan, 0.5])):
        with pytest.raises(ValueError, match=r"^q "):
            candidate_target(bad, 0, 0.5)
    with pytest.raises(ValueError, match="gamma must be one number"):
        candidate_target(Q[0], 0, [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="n is"):
        candidate_target(Q[0], None, 0.5)
    assert candidate_target(Q[0], torch.tensor(1), 0.5).sum() == pytest.approx(1)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_acceptance_lies_between_nothing_and_certainty(setting, dtype):
    """Rows sum to a little more or less than 1, as a softmax in single precision leaves them."""
    off = 5e-5 if dtype is np.float32 else 9e-8
    over = np.array([[0.3, 0.5, 0.2], [0.7, 0.2, 0.1]]) * (1 + off)
    under = np.array([[0.3, 0.5, 0.2], [0.1, 0.2, 0.7]]) * (1 - off)
    rule = make_rule(setting[0], **setting[1])
    for p, q in ((over, over), (over, under), (under, over), (np.eye(2, 3), over)):
        p, q = p.astype(dtype), q.astype(dtype)
        for p_rows, q_rows in ((p, q), (torch.tensor(p), torch.tensor(q))):
            found = np.asarray(one_step(rule, p_rows, q_rows).acceptance)
            assert np.all((found >= 0) & (found <= 1)), found
            law = rule.law(Pair.prepare(p_rows, q_rows)).acceptance
            assert np.all((np.asarray(law) >= 0) & (np.asarray(law) <= 1))
            accepted = np.asarray(rule.accept_prob(p_rows, q_rows))
            assert np.all((accepted >= 0) & (accepted <= 1))


@pytest.mark.parametrize("level", [0.0, 0.1, math.inf])
def test_the_frontier_lies_between_nothing_and_certainty(level):
    over = np.array([[1.0 + 9e-8, 0, 0], [0.5, 0.5 + 9e-8, 0]])
    under = np.array([[0, 1.0 - 9e-8, 0], [0, 0, 1.0 - 9e-8]])
    for p, q in ((over, under), (under, over), (over, over)):
        corpus = CorpusFrontier()
        corpus.add(Pair.prepare(p, q))
        for found in (
            frontier_acceptance(p, q, level),
            frontier_step(p, q, level).acceptance,
            corpus.acceptance(level),
            corpus.curve()[1],
        ):
            assert np.all((np.asarray(found) >= 0) & (np.asarray(found) <= 1)), found


def test_a_rule_of_ones_own_with_an_impossible_acceptance_is_told():
    class Eager(type(SPS)):
        name = "eager"

        def law(self, pair):
            return super().law(pair)._replace(acceptance=pair.total_variation + 1.5)

    with pytest.raises(ValueError, match=r"acceptance by .* must lie in"):
        one_step(Eager(), P, Q)


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["large", "small"])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [("cactus", "delta"), ("frontier", "level"), ("cascade_opt", "alpha"), ("top_k", "k")],
)
def test_a_number_beyond_float64_is_refused_in_one_short_line(name, parameter, number):
    with pytest.raises(ValueError, match=f"{parameter} must be a number of float64") as told:
        make_rule(name, **{parameter: number})
    assert len(str(told.value)) < 100


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certified_divergence(Q, "cactus"), "rule must come from make_rule"),
        (lambda: certified_divergence(Q, None), "rule must come from make_rule"),
        (lambda: certifying_budget(Q, 0.1, ["cactus"]), "no budget for rule"),
        (lambda: certifying_budget(Q, 0.1, None), "no budget for rule"),
        (lambda: certifying_budget(Q, np.ma.masked), "wanted is a masked array"),
    ],
)
def test_a_certificate_is_asked_for_by_a_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()


NO_NUMBERS = (True, np.True_, "0.1", b"1", ["0.1"], np.asarray(True), np.asarray("1"))


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("level", lambda v: frontier_acceptance(P[0], Q[0], v)),
        ("level", lambda v: frontier_step(P, Q, v)),
        ("budget", lambda v: optimal_gamma(Q[0], v)),
        ("budget", lambda v: second_order_gamma(Q, v)),
        ("wanted", lambda v: certifying_budget(Q[0], v, "cactus")),
    ],
    ids=[
        "frontier_acceptance",
        "frontier_step",
        "optimal_gamma",
        "second_order",
        "certifying_budget",
    ],
)
def test_text_and_truth_values_are_no_numbers(name, call, value):
    with pytest.raises(ValueError, match=name):
        call(value)


def test_rows_of_text_are_no_distributions():
    with pytest.raises(ValueError, match=r"h holds the text .0\.5."):
        divergence("kl", ["0.5", "0.5"], [0.5, 0.5])


def test_a_sparse_tensor_is_refused_by_name():
    rows = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match=r"p has the layout torch\.sparse_coo"):
        one_step(make_rule("sps"), rows.to_sparse(), rows)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("level", lambda v: frontier_acceptance(P[0], Q[0], v)),
        ("budget", lambda v: optimal_gamma(Q[0], v)),
        ("wanted", lambda v: certifying_budget(Q[0], v, "cactus")),
        ("n", lambda v: make_rule("sps").recovery(P[0], Q[0], (v > 0).astype(int))),
    ],
    ids=["frontier_acceptance", "optimal_gamma", "certifying_budget", "recovery"],
)
def test_an_array_that_does_not_go_beside_the_rows_is_refused_by_name(name, call):
    with pytest.raises(ValueError, match=rf"^{name} has shape \(2,\)"):
        call(np.array([0.1, 0.2]))
