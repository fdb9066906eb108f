"""One code for every array library: values, shapes, dtypes, devices, and what is refused.

`array_api_strict` has nothing beyond the standard, and a second device on which every array must be
made on purpose; torch's `meta` device has shapes and no values; read-only numpy arrays show a write
into an input.
"""

import copy
import math
import platform
import subprocess
import sys

import array_api_compat
import array_api_strict
import numpy as np
import pytest
from theory_strategies import ALL_KINDS, EXAMPLES, label, normalised

from theory import (
    CorpusFrontier,
    Pair,
    divergence,
    frontier_acceptance,
    frontier_step,
    make_rule,
    one_step,
    one_steps,
    optimal_gamma,
    second_order_gamma,
)
from theory.arrays import to_numpy

SECOND = array_api_strict.Device("device1")


def _numpy_rows():
    rng = np.random.default_rng(11)
    p, q = rng.dirichlet(np.full(6, 0.6), (2, 4)), rng.dirichlet(np.full(6, 0.6), (2, 4))
    p[0, 1, :3], q[0, 2, 2:], q[1, 0] = 0, 0, p[1, 0]
    p[1, 3], q[1, 3] = np.eye(6)[2], np.eye(6)[4]
    return normalised(p), normalised(q)


P, Q = _numpy_rows()
# The same rows in a vocabulary of which most is outside both supports: the compressed path.
WIDE_P, WIDE_Q = (np.concatenate([side, np.zeros((2, 4, 20))], axis=-1) for side in (P, Q))


def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


def strict(array, device=None):
    return array_api_strict.asarray(array.copy(), device=device)


def torch_on(device):
    def convert(array):
        torch = pytest.importorskip("torch")
        return torch.asarray(array.copy(), device=device)

    return convert


def _iterates(name, parameters):
    """Whether a rule is solved by steps that stop when every value is found."""
    bracketed = parameters.get("divergence") in ("reverse_kl", "power:1.5", "power:-0.5")
    return name in ("frontier", "frontier_corpus", "mentored") or (
        name == "cactus_exact" and bracketed
    )


LIBRARIES = [
    pytest.param(np.array, id="numpy"),
    pytest.param(read_only, id="read-only numpy"),
    pytest.param(np.asfortranarray, id="numpy in column order"),
    pytest.param(torch_on("cpu"), id="torch"),
    pytest.param(lambda array: strict(array, SECOND), id="strict on device1"),
    pytest.param(torch_on("cuda"), id="torch on cuda", marks=pytest.mark.cuda),
]


def close(found, expected, given, atol=1e-13):
    """Same values, and the library, device and dtype of the input."""
    assert array_api_compat.array_namespace(found) == array_api_compat.array_namespace(given)
    assert array_api_compat.device(found) == array_api_compat.device(given)
    assert found.dtype == given.dtype
    np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-12, atol=atol)


@pytest.mark.parametrize("convert", LIBRARIES)
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_rule_is_the_same_in_every_library(setting, convert):
    rule = make_rule(setting[0], **setting[1])
    for rows in ((P, Q), (WIDE_P, WIDE_Q)):
        p, q = map(convert, rows)
        law, expected = one_step(rule, p, q), one_step(rule, *rows)
        close(law.acceptance, expected.acceptance, p)
        close(law.output, expected.output, p)
        close(rule.output(p, q), expected.output, p)
        close(rule.accept_prob(p, q), rule.accept_prob(*rows), p)
        close(rule.recovery(p, q, 1), rule.recovery(*rows, 1), p, atol=1e-11)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_faint_token_is_the_same_in_torch(setting):
    """1e-300/q is finite for every q > 0, but torch multiplies by 1/q, which is not."""
    rule = make_rule(setting[0], **setting[1])
    p = np.array([[0.2, 0.3, 0.5, 0.0], [0.2, 0.3, 0.5, 0.0], [1e-310, 0.5, 0.5, 0.0]])
    q = np.array([[5e-324, 0.5, 0.5, 0.0], [1e-310, 0.4, 0.6, 0.0], [0.2, 0.8, 5e-324, 0.0]])
    convert = torch_on("cpu")
    law, expected = one_step(rule, convert(p), convert(q)), one_step(rule, p, q)
    np.testing.assert_allclose(to_numpy(law.output), expected.output, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("convert", [np.array, torch_on("cpu")])
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_negative_zeros_are_zeros(setting, convert):
    rule = make_rule(setting[0], **setting[1])
    p, q = np.array([[0.5, 0.5, -0.0, -0.0]]), np.array([[-0.0, 0.7, 0.3, 0.0]])
    expected = rule.accept_prob(np.abs(p), np.abs(q)), rule.output(np.abs(p), np.abs(q))
    for validate in (True, False):
        rows = convert(p), convert(q)
        found = (work(*rows, validate=validate) for work in (rule.accept_prob, rule.output))
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(to_numpy(one), other)


def test_rows_that_are_checked_are_kept_as_they_were():
    p, q = P[0].copy(), Q[0].copy()
    pair = Pair.prepare(p, q, sort=False, compress=False)
    p[:], q[:] = 0.0, 1.0
    np.testing.assert_array_equal(pair.p, P[0])
    np.testing.assert_array_equal(pair.q, Q[0])


@pytest.mark.parametrize("convert", LIBRARIES)
def test_many_rules_are_the_same_in_every_library(convert):
    several = [make_rule(name, **parameters) for name, parameters in EXAMPLES]
    p, q = convert(P), convert(Q)
    for law, expected in zip(one_steps(several, p, q), one_steps(several, P, Q), strict=True):
        close(law.output, expected.output, p)


@pytest.mark.parametrize("convert", [LIBRARIES[i] for i in (0, 3, 4, 5)])
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_a_recovery_for_each_row_in_every_library(setting, convert):
    rule = make_rule(setting[0], **setting[1])
    n = np.array([[0, 1, 2, 3], [4, 5, 0, 1]])
    p, q = convert(P), convert(Q)
    close(rule.recovery(p, q, convert(n)), rule.recovery(P, Q, n), p, atol=1e-11)
    flags = rule.rejectable(p, q)
    np.testing.assert_array_equal(to_numpy(flags), rule.rejectable(P, Q))


@pytest.mark.parametrize("convert", LIBRARIES)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_divergence_optimum_and_frontier_are_the_same_in_every_library(kind, convert):
    p, q = convert(P), convert(Q)
    close(divergence(kind, p, q), divergence(kind, P, Q), p)
    for found, expected in zip(optimal_gamma(q, 0.1, kind), optimal_gamma(Q, 0.1, kind)):
        close(found, expected, q)
    budget = np.linspace(0, 2, 8).reshape(2, 4, 1)
    budget[0, 0] = math.inf
    found = optimal_gamma(q, convert(budget), kind)
    close(found.value, optimal_gamma(Q, budget, kind).value, q)
    level = convert(np.linspace(0, 0.4, 8).reshape(2, 4))
    law, expected = frontier_step(p, q, level, kind), frontier_step(P, Q, to_numpy(level), kind)
    close(law.output, expected.output, p)
    close(frontier_acceptance(p, q, level, kind), expected.acceptance, p)


@pytest.mark.parametrize("convert", LIBRARIES)
def test_the_closed_form_and_the_corpus_are_the_same_in_every_library(convert):
    p, q = convert(P), convert(Q)
    for found, expected in zip(second_order_gamma(q, 0.1), second_order_gamma(Q, 0.1)):
        close(found, expected, q)
    corpora = []
    for rows in ((p, q), (P, Q)):
        corpora.append(CorpusFrontier("reverse_kl"))
        corpora[-1].add(Pair.prepare(*rows))
    found, expected = ([c.acceptance(x) for x in (0.0, 0.01, 0.3)] for c in corpora)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("convert", [LIBRARIES[i] for i in (0, 3, 4, 5)])
@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_float32_in_float32_out(setting, convert):
    rule = make_rule(setting[0], **setting[1])
    narrow = P.astype(np.float32), Q.astype(np.float32)
    p, q = map(convert, narrow)
    law = one_step(rule, p, q)
    wide = one_step(rule, *(side.astype(np.float64) for side in narrow), validate=False)
    close(law.acceptance, wide.acceptance, p, atol=3e-7)
    close(law.output, wide.output, p, atol=3e-7)
    assert rule.accept_prob(p, q).dtype == rule.recovery(p, q, 0).dtype == p.dtype


def close_float32(found, wide, given):
    assert found.dtype == given.dtype
    np.testing.assert_allclose(to_numpy(found), wide, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_float32_in_the_other_functions(kind):
    p, q = P.astype(np.float32), Q.astype(np.float32)
    wide = [side.astype(np.float64) for side in (p, q)]
    close_float32(divergence(kind, p, q), divergence(kind, *wide, validate=False), p)
    law = frontier_step(p, q, 0.1, kind)
    close_float32(law.output, frontier_step(*wide, 0.1, kind, validate=False).output, p)
    assert frontier_acceptance(p, q, 0.1, kind).dtype == np.float32
    assert optimal_gamma(q, 0.1, kind).complement.dtype == np.float32


# Without values a solver cannot see that it is done; there its hundred steps take seconds.
LONG = pytest.mark.nightly
ON_META = [
    pytest.param(setting, id=label(setting), marks=[LONG] if _iterates(*setting) else [])
    for setting in EXAMPLES
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("setting", ON_META)
def test_shapes_and_devices_on_torch_meta(setting, dtype):
    torch = pytest.importorskip("torch")
    rule = make_rule(setting[0], **setting[1])
    p = torch.empty((2, 3, 50), dtype=getattr(torch, dtype), device="meta")
    law = one_step(rule, p, p)
    found = [law.output, law.acceptance, rule.accept_prob(p, p), rule.recovery(p, p, 1)]
    assert [tuple(x.shape) for x in found] == [(2, 3, 50), (2, 3), (2, 3, 50), (2, 3, 50)]
    assert {(x.device.type, x.dtype) for x in found} == {("meta", p.dtype)}


@pytest.mark.parametrize("kind", ["kl", *(pytest.param(k, marks=LONG) for k in ALL_KINDS[1:])])
def test_the_other_functions_on_torch_meta(kind):
    torch = pytest.importorskip("torch")
    q = torch.empty((2, 3, 50), dtype=torch.float64, device="meta")
    found = [
        divergence(kind, q, q),
        frontier_acceptance(q, q, 0.1, kind),
        optimal_gamma(q, q, kind).complement,
        second_order_gamma(q, 0.1).value,
    ]
    shapes = [(2, 3), (2, 3), *((2, 3, 50),) * 2]
    assert [tuple(x.shape) for x in found] == shapes
    assert {x.device.type for x in found} == {"meta"}


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_lists_are_accepted(setting):
    rule = make_rule(setting[0], **setting[1])
    p, q = [[0.05, 0.80, 0.15], [0.5, 0.5, 0.0]], [[0.30, 0.35, 0.35], [1, 0, 0]]
    law, expected = one_step(rule, p, q), one_step(rule, np.array(p), np.array(q))
    np.testing.assert_array_equal(law.output, expected.output)
    np.testing.assert_array_equal(
        rule.recovery(p, q, [0, 1]), rule.recovery(p, q, np.array([0, 1]))
    )
    # A list beside an array joins its library.
    mixed = one_step(rule, strict(np.array(p)), q)
    assert array_api_compat.is_array_api_strict_namespace(
        array_api_compat.array_namespace(mixed.output)
    )


def test_whole_numbers_are_accepted():
    law = one_step(make_rule("sps"), np.array([1, 0]), np.array([0, 1]))
    assert law.output.dtype == np.float64
    np.testing.assert_array_equal(law.output, [0, 1])


# --- what is refused, and in which words --------------------------------------------------------

GOOD = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
FUNCTIONS = [
    pytest.param(lambda p, q: one_step(make_rule("sps"), p, q), id="one_step"),
    pytest.param(lambda p, q: one_steps([make_rule("cactus", delta=1)], p, q), id="one_steps"),
    pytest.param(lambda p, q: make_rule("top_k", k=1).accept_prob(p, q), id="accept_prob"),
    pytest.param(lambda p, q: make_rule("typical").recovery(p, q, 0), id="recovery"),
    pytest.param(lambda p, q: make_rule("ears", tau=0).output(p, q), id="output"),
    pytest.param(lambda p, q: make_rule("sps").rejectable(p, q), id="rejectable"),
    pytest.param(lambda p, q: frontier_step(p, q, 0.1), id="frontier_step"),
    pytest.param(lambda p, q: frontier_acceptance(p, q, 0.1), id="frontier_acceptance"),
    pytest.param(lambda p, q: Pair.prepare(p, q), id="Pair.prepare"),
]


def spoilt(value, row=1, token=2):
    rows = GOOD.copy()
    rows[row, token] = value
    return rows


BAD_ROWS = [
    (spoilt(math.nan), r"row 1 has the not finite entry nan at token 2"),
    (spoilt(math.inf), r"row 1 has the not finite entry inf at token 2"),
    (spoilt(-0.25, 0, 1), r"row 0 has the negative entry -0\.25 at token 1"),
    (np.array([[2.0, 1.0, -1.0]] * 2), r"row 0 has the negative entry -1\.0 at token 2.*softmax"),
    (spoilt(0.26), r"row 1 sums to 1\.01, not to 1"),
    (GOOD * np.array([[1.0], [0.6]]), r"row 1 sums to 0\.6, not to 1"),
    (GOOD * 0, r"row 0 sums to 0, not to 1"),
    (GOOD.astype(np.float16), r"has dtype float16; probabilities must be float32 or float64"),
    (GOOD[:, :0], r"has shape \(2, 0\); the last axis must hold V >= 1 tokens"),
    (np.array(1.0), r"has shape \(\); the last axis"),
]


@pytest.mark.parametrize("argument", ["p", "q"])
@pytest.mark.parametrize("call", FUNCTIONS)
@pytest.mark.parametrize(("rows", "message"), BAD_ROWS, ids=[text for _, text in BAD_ROWS])
def test_a_bad_row_is_refused_by_argument_row_and_value(call, rows, message, argument):
    good = np.full_like(rows, 1 / 3) if rows.ndim == 2 and rows.shape[1] else rows
    good = GOOD if rows.dtype == np.float16 else good
    arguments = {"p": good, "q": good, argument: rows}
    # Rows without tokens have no good counterpart: there both arguments are bad, p is named.
    named = argument if rows.size and rows.ndim else "p"
    with pytest.raises(ValueError, match=rf"^{named} {message}"):
        call(**arguments)


@pytest.mark.parametrize("convert", LIBRARIES)
def test_every_library_is_checked(convert):
    good = convert(GOOD)
    for rows, message in BAD_ROWS[:7]:
        with pytest.raises(ValueError, match=rf"^q {message}"):
            one_step(make_rule("sps"), convert(np.full((2, 3), 1 / 3)), convert(rows))
        with pytest.raises(ValueError, match=rf"^h {message}"):
            divergence("kl", convert(rows), good)
        with pytest.raises(ValueError, match=rf"^q {message}"):
            divergence("kl", good, convert(rows))


@pytest.mark.parametrize("call", FUNCTIONS)
def test_unequal_shapes_are_named(call):
    with pytest.raises(ValueError, match=r"one shape: p has shape \(2, 3\), q has shape \(1, 3\)"):
        call(GOOD, GOOD[:1])
    with pytest.raises(ValueError, match=r"p has shape \(3,\), q has shape \(2,\)"):
        call(GOOD[0], np.array([0.5, 0.5]))


@pytest.mark.parametrize("call", FUNCTIONS)
def test_unequal_devices_are_named(call):
    here, there = strict(GOOD), strict(GOOD, SECOND)
    with pytest.raises(ValueError, match=r"p is on .*CPU_DEVICE.*, q is on .*device1"):
        call(here, there)


def test_torch_devices_are_named():
    torch = pytest.importorskip("torch")
    p = torch.asarray(GOOD)
    with pytest.raises(ValueError, match="p is on cpu, q is on meta"):
        one_step(make_rule("sps"), p, p.to("meta"))
    with pytest.raises(ValueError, match="h is on cpu, q is on meta"):
        divergence("kl", p, p.to("meta"))


@pytest.mark.parametrize("call", FUNCTIONS)
def test_two_libraries_are_refused(call):
    with pytest.raises(ValueError, match="arrays of one library are needed"):
        call(GOOD, strict(GOOD))


def test_torch_half_precision_is_refused():
    torch = pytest.importorskip("torch")
    p = torch.asarray(GOOD).to(torch.bfloat16)
    with pytest.raises(ValueError, match="p has dtype bfloat16"):
        one_step(make_rule("sps"), p, p)


@pytest.mark.parametrize("raw", ["p_raw", "q_raw"])
def test_the_rows_before_the_filters_are_checked_too(raw):
    rule = make_rule("cascade_chow", alpha=0.5)
    with pytest.raises(ValueError, match=rf"^{raw} row 1 sums to 1\.01"):
        one_step(rule, GOOD, GOOD, **{raw: spoilt(0.26)})
    with pytest.raises(ValueError, match=rf"{raw} has shape \(1, 3\)"):
        rule.output(GOOD, GOOD, **{raw: GOOD[:1]})


def test_a_tolerance_fits_the_dtype():
    law = one_step(make_rule("sps"), GOOD.astype(np.float32) * np.float32(1 + 4e-6), GOOD)
    assert law.output.dtype == np.float64
    with pytest.raises(ValueError, match=r"p row 0 sums to 1\.000004"):
        one_step(make_rule("sps"), GOOD * (1 + 4e-6), GOOD)
    with pytest.raises(ValueError, match=r"p row 0 sums to 1\.0001"):
        one_step(make_rule("sps"), GOOD.astype(np.float32) * np.float32(1 + 1e-4), GOOD)


def test_validation_can_be_skipped():
    skewed = GOOD * 0.9
    law = one_step(make_rule("sps"), skewed, skewed, validate=False)
    np.testing.assert_allclose(law.output.sum(-1), 0.9)
    np.testing.assert_array_equal(divergence("kl", skewed, skewed, validate=False), 0)


@pytest.mark.parametrize("setting", EXAMPLES, ids=label)
def test_no_input_is_modified(setting):
    rule = make_rule(setting[0], **setting[1])
    for rows in ((P, Q), (WIDE_P, WIDE_Q), (P[0, 0], Q[0, 0]), (P[:0], Q[:0])):
        before = copy.deepcopy(rows)
        law = one_step(rule, *rows)
        rule.accept_prob(*rows)
        rule.recovery(*rows, 0)
        law.output[...] = 7.0  # nor does the output share memory with an input
        for now, then in zip(rows, before):
            np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("n", [-1, 6, [[0, 1, 2, 3], [0, 0, 0, 6]]])
def test_a_candidate_outside_the_vocabulary_is_refused(n):
    with pytest.raises(ValueError, match=r"n row [07] is (-1|6), not a token index in \[0, 5\]"):
        make_rule("cactus", delta=0.1).recovery(P, Q, n)


@pytest.mark.parametrize("n", [0.5, [1.0], np.zeros((2, 4))])
def test_a_candidate_must_be_whole(n):
    with pytest.raises(ValueError, match="n must hold integer token indices"):
        make_rule("cactus", delta=0.1).recovery(P, Q, n)


FAULTS = """
import importlib, resource, sys
import numpy as np
for name in sys.argv[1:]:
    importlib.import_module(name)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    [np.ones(2**17) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_memory_is_kept():
    """Arrays of a megabyte are faulted in once, not each time they are made."""

    def faults(*imported):
        command = [sys.executable, "-c", FAULTS, *imported]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert faults("theory") < 4000 < 40_000 < faults()
